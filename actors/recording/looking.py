"""Looking into the cores between two messages: the state of a sequence, and of a block."""

from dataclasses import dataclass

from ..cores import Cores


@dataclass(frozen=True, slots=True)
class SequenceState:
    """Where a sequence stands; positions are those of the ledger (docs/rules.md, 4)."""

    serial: int
    request_id: str
    state: str  # "runs" or "waits"
    slot: int | None
    epoch: int
    written: int
    scheduled: int
    confirmed: int
    covered: int  # positions that its blocks reach
    last_step: int
    preemptions: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockState:
    """Where a block is, and who refers to it."""

    block: int
    state: str  # "held", "due", "blank", "cached" or "pinned"
    is_findable: bool
    holders: tuple[int, ...]  # serials


def look_at_sequence(cores: Cores, serial: int) -> SequenceState | None:
    """None for one that is not live."""
    roster, ledger = cores.batcher.roster, cores.batcher.ledger
    sequence = roster.get(serial)
    if sequence is None:
        return None
    slot = sequence.slot

    def at(column: str) -> int:
        return 0 if slot is None else int(getattr(ledger, column)[slot])

    return SequenceState(
        serial=serial,
        request_id=sequence.request.request_id,
        state="runs" if roster.is_running(sequence) else "waits",
        slot=slot,
        epoch=at("epoch"),
        written=at("written"),
        scheduled=at("scheduled"),
        confirmed=len(ledger.confirmed_tokens(sequence)),
        covered=at("covered"),
        last_step=at("last_step"),
        preemptions=sequence.preemptions,
        blocks=() if slot is None else cores.pool.table(slot),
    )


def look_at_block(cores: Cores, block: int) -> BlockState | None:
    """None for one that the pool does not have."""
    pool, ledger = cores.pool, cores.batcher.ledger
    if not 0 <= block < pool.num_blocks:
        return None
    slots = [slot for slot in range(ledger.num_slots) if block in pool.table(slot)]
    holders = tuple(int(ledger.serial[slot]) for slot in slots)
    return BlockState(block, pool.place_of(block), pool.is_findable(block), holders)


def live_serials(cores: Cores) -> tuple[list[int], list[int]]:
    """Who runs and who waits, in the order of importance."""
    roster, ledger = cores.batcher.roster, cores.batcher.ledger
    running = [int(serial) for serial in ledger.serial[roster.running.slots]]
    return running, [sequence.request.serial for sequence in roster.waiting]
