"""The kernels of a step at sizes that fill a card, with the bytes and operations each must cost."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...gpu.attention import Scores
from ...gpu.cuda.ops import Ops
from ...gpu.cuda.quantised import Matrix, parts_of
from ...gpu.kernels.attention_parts import PagedRows, keeps_e4m3
from ...gpu.kernels.packing import quantised_4, quantised_8
from ...gpu.models.config import ModelConfig
from ...gpu.models.rotary import rotary_tables

_PAGE = 16


@dataclass(frozen=True, slots=True)
class KernelCase:
    """Something to time."""

    name: str
    run: Callable[[], object]
    num_bytes: int = 0  # read and written at least
    flops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSizes:
    """How large the cases are; larger than a card's cache, so that they are read from memory."""

    rows: int  # that decode
    length: int  # positions of each
    few_rows: int  # that decode alone
    long: int  # positions of each
    prompts: tuple[int, ...]  # tokens of a prompt that is computed at once
    tokens: int  # of a large step


class Kernels:
    """Makes the cases of one model's shape, one at a time: each holds memory of its own."""

    def __init__(
        self, config: ModelConfig, ops: Ops, device: torch.device, sizes: KernelSizes
    ) -> None:
        self._config = config
        self._ops = ops
        self._device = device
        self._sizes = sizes

    def cases(self) -> Iterator[KernelCase]:
        sizes = self._sizes
        yield self._decode(sizes.rows, sizes.length)
        yield self._decode(sizes.few_rows, sizes.long)
        for tokens in sizes.prompts:
            yield self._prefill(tokens)
        yield self._sampling(sizes.rows)
        yield self._norm(sizes.tokens)
        yield self._silu_mul(sizes.tokens)
        yield self._cache_write(sizes.tokens)
        yield self._product(sizes.rows)
        yield self._packed_product(sizes.few_rows, quantised_8, "8 bits")
        yield self._packed_product(sizes.few_rows, quantised_4, "4 bits")
        if keeps_e4m3(self._device):
            yield self._decode(sizes.rows, sizes.length, torch.float8_e4m3fn)

    def _random(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=self._device).normal_()

    def _ints(self, values: Tensor) -> Tensor:
        return values.to(torch.int32).to(self._device)

    def _memory(
        self, num_rows: int, kept_in: torch.dtype = torch.bfloat16
    ) -> tuple[Tensor, Tensor]:
        shape = (num_rows, self._config.num_kv_heads, self._config.head_dim)
        return self._random(*shape).to(kept_in), self._random(*shape).to(kept_in)

    def _rows(self, rows: int, tokens: int, length: int) -> PagedRows:
        """Rows of so many tokens and positions each, their blocks scattered over the memory."""
        blocks = -(-length // _PAGE)
        order = torch.randperm(rows * blocks, generator=torch.Generator().manual_seed(0))
        return PagedRows(
            starts=self._ints(torch.arange(rows + 1) * tokens),
            lengths=self._ints(torch.full((rows,), length)),
            slots=self._ints(torch.arange(rows)),
            block_table=self._ints(order.view(rows, blocks)),
            block_size=_PAGE,
            longest=tokens,
        )

    def _attention(
        self, rows: int, tokens: int, length: int, kept_in: torch.dtype = torch.bfloat16
    ) -> Callable[[], object]:
        config = self._config
        keys, values = self._memory(rows * -(-length // _PAGE) * _PAGE, kept_in)
        query = self._random(rows * tokens, config.num_heads, config.head_dim)
        paged, scores = self._rows(rows, tokens, length), Scores(config.head_dim**-0.5)
        return lambda: self._ops.attend(query, keys, values, paged, scores)

    def _decode(self, rows: int, length: int, kept_in: torch.dtype = torch.bfloat16) -> KernelCase:
        config = self._config
        kept = 2 * config.num_kv_heads * config.head_dim * kept_in.itemsize
        return KernelCase(
            f"decode attention, {rows} rows of {length:,}"
            f"{'' if kept_in.itemsize > 1 else ' in fp8'}",
            self._attention(rows, 1, length, kept_in),
            num_bytes=rows * (length * kept + 2 * 2 * config.num_heads * config.head_dim),
        )

    def _prefill(self, tokens: int) -> KernelCase:
        seen = tokens * (tokens + 1) // 2
        return KernelCase(
            f"prefill attention, {tokens:,} tokens",
            self._attention(1, tokens, tokens),
            flops=4 * self._config.num_heads * self._config.head_dim * seen,
        )

    def _sampling(self, rows: int) -> KernelCase:
        vocab = self._config.vocab_size
        logits = self._random(rows, vocab)
        slots = self._ints(torch.arange(rows))
        tables = {
            "temperature": torch.ones(rows, device=self._device),
            "seed": torch.arange(rows, device=self._device),
            "index": torch.zeros(rows, dtype=torch.int32, device=self._device),
        }
        return KernelCase(
            f"sampling, {rows} rows of {vocab:,}",
            lambda: self._ops.draw(logits, slots=slots, positions=slots, **tables),
            num_bytes=2 * rows * vocab,
        )

    def _norm(self, tokens: int) -> KernelCase:
        size = self._config.hidden_size
        x, residual, weight = self._random(tokens, size), self._random(tokens, size), None
        weight = self._random(1, size)[0]
        return KernelCase(
            f"addition and norm, {tokens:,} tokens",
            lambda: self._ops.add_rms_norm(x, residual, weight, 1e-6),
            num_bytes=2 * 4 * tokens * size,
        )

    def _silu_mul(self, tokens: int) -> KernelCase:
        inner = self._config.intermediate_size
        gate_up = self._random(tokens, 2 * inner)
        return KernelCase(
            f"silu and product, {tokens:,} tokens",
            lambda: self._ops.silu_mul(gate_up),
            num_bytes=2 * 3 * tokens * inner,
        )

    def _cache_write(self, tokens: int) -> KernelCase:
        config = self._config
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        qkv, (keys, values) = self._random(tokens, width), self._memory(tokens + _PAGE)
        rows = self._rows(1, tokens, tokens)
        cos, sin = (
            table.to(self._device)
            for table in rotary_tables(config.rope, config.head_dim, tokens, torch.bfloat16)
        )
        positions = self._ints(torch.arange(tokens))
        slots = torch.zeros_like(positions)

        def run() -> Tensor:
            return self._ops.write_cache(
                qkv,
                keys,
                values,
                positions=positions,
                slots=slots,
                block_table=rows.block_table,
                block_size=_PAGE,
                cos=cos,
                sin=sin,
                norms=None,
                eps=0.0,
            )

        return KernelCase(
            f"rotation and cache write, {tokens:,} tokens", run, num_bytes=2 * 2 * tokens * width
        )

    def _product(self, rows: int) -> KernelCase:
        hidden, inner = self._config.hidden_size, self._config.intermediate_size
        x, weight = self._random(rows, hidden), self._random(2 * inner, hidden)
        return KernelCase(
            f"product, {rows} rows with {2 * inner:,} x {hidden:,}",
            lambda: self._ops.linear(x, weight),
            num_bytes=2 * (weight.numel() + rows * (hidden + 2 * inner)),
            flops=2 * rows * weight.numel(),
        )

    def _packed_product(
        self, rows: int, quantise: Callable[[Tensor], Matrix], name: str
    ) -> KernelCase:
        hidden, inner = self._config.hidden_size, self._config.intermediate_size
        x, weight = self._random(rows, hidden), quantise(self._random(2 * inner, hidden))
        size = sum(part.numel() * part.itemsize for part in parts_of(weight))
        return KernelCase(
            f"product, {rows} rows with {2 * inner:,} x {hidden:,} of {name}",
            lambda: self._ops.linear(x, weight),
            num_bytes=size + 2 * rows * (hidden + 2 * inner),
        )
