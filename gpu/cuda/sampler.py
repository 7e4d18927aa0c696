"""From a step's logits to token ids on the device, in the order of docs/sampling.md.

Nothing here asks the device for a number: what a step uses is known to the host (`Needs`).
"""

from dataclasses import replace

import torch
from torch import Tensor

from ..kernels.adjust import RowMasks
from ..uploads import on_host
from .ops import Ops
from .sampling_tables import NO_NEEDS, Needs, SamplingTables
from .typical import keep_typical


def sample_rows(
    logits: Tensor,
    slots: Tensor,
    positions: Tensor,
    tables: SamplingTables,
    needs: Needs,
    masks: RowMasks | None = None,
    *,
    ops: Ops,
) -> Tensor:
    """A token id for each row of logits [rows, vocab], which are the caller's no more; NOT_NUMBERS
    where they are not numbers, NONE_LEFT where nothing can be sampled, 0 for padding (slot -1).
    # [rows] of int32

    Slots and the positions that the samples take are [rows] of int32 on the device; `needs` is what
    the tables say of the same rows, whose padding stands last.
    """
    if needs is not NO_NEEDS or masks is not None:
        logits = _adjusted(logits, slots, positions, tables, needs, masks, ops)
    cuts = None
    if needs.has_top or needs.has_min_p or needs.typical is not None:
        top = {"has_top": needs.has_top, "has_top_p": needs.has_top_p}
        cuts = ops.find_cuts(logits, slots, tables.lines, **top)
    if cuts is not None and needs.typical is not None:
        logits = logits.float()
        at, mass = needs.typical
        temperature = tables.temperature[slots[at].long()]
        logits[at] = keep_typical(logits[at], temperature, cuts[at], mass)
    sampled = ops.draw(
        logits,
        slots=slots,
        positions=positions,
        temperature=tables.temperature,
        seed=tables.seed,
        index=tables.index,
        cuts=cuts,
    )
    return sampled if needs.processors is None else needs.processors.marked(sampled)


def _adjusted(
    logits: Tensor,
    slots: Tensor,
    positions: Tensor,
    tables: SamplingTables,
    needs: Needs,
    masks: RowMasks | None,
    ops: Ops,
) -> Tensor:
    """Logits as requests and grammars want them; as they are where nobody wants anything."""
    wishes, bans = tables.wishes(needs), tables.bans(needs, masks)
    if needs.processors is None:  # nothing comes between: one pass does it all
        wishes = replace(wishes, bans=bans.bans, masks=bans.masks)
        bans = tables.bans(NO_NEEDS, None)
    if wishes.counts is not None:
        ops.count_tokens(slots, positions, wishes)
    if not wishes.are_none:
        logits = ops.adjust(logits, slots, positions, wishes)
    if needs.processors is not None:
        logits = logits.float()
        needs.processors.apply(logits, tables.tokens)
    if needs.forbids is not None:
        tables.forbid(logits, needs.forbids)
    if needs.bans:
        logits = logits.float()
        for ban in needs.bans:
            ban.apply(logits, tables.tokens)
    return logits if bans.are_none else ops.adjust(logits, slots, positions, bans)


def sample_padding(logits: Tensor, ops: Ops) -> None:
    """Sample rows of padding in every way there is, so that no kernel is compiled, nor memory
    asked for, when a request is the first to want something.  # logits [rows, vocab]"""
    device, (rows, vocab) = logits.device, logits.shape
    tokens = torch.zeros((1, 2), dtype=torch.int32, device=device)
    tables = SamplingTables(tokens, vocab, on_host)  # nobody begins, so nothing is uploaded
    tables.fill_all()
    none = torch.full((rows,), -1, dtype=torch.int32, device=device)
    words = torch.zeros((1, -(-vocab // 32)), dtype=torch.int32, device=device)
    everything = Needs(has_counts=True, has_biases=True, has_bans=True)
    for masks in (None, RowMasks(words, none)):
        # In float32 already where something of the host's stands between wishes and bans.
        ops.adjust(logits.float(), none, none, tables.bans(everything, masks))
        for needs in (NO_NEEDS, everything):
            for has_top, has_top_p in ((False, False), (True, False), (True, True)):
                cuts = replace(needs, has_min_p=True, has_top=has_top, has_top_p=has_top_p)
                sample_rows(logits, none, none, tables, cuts, masks, ops=ops)
            sample_rows(logits, none, none, tables, needs, masks, ops=ops)
