"""The limits a Batcher keeps."""

from dataclasses import dataclass, field

from ...messages.codec import LATER

MAX_FAILED_STEPS = 2  # steps one request may lose to the device before it fails
MAX_PREEMPTIONS = 3  # then a sequence resumes only where nobody earlier can take its blocks again
MAX_BYPASSES = 16  # then nobody is admitted before a sequence that does not fit yet
TTL_TICKS = 64  # how often within their time to live the age of cached prefixes is looked at
MAX_MISFITS = 8  # waiting sequences that are tried in one step though they do not fit


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits a Batcher keeps, from the engine's options and the device's facts."""

    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int | None
    steps_in_flight: int
    prefix_caching: bool
    explains_prefixes: bool = True  # whether requests get account of their prefix
    holds_sampling: bool = False  # whether the device samples rows later, when their masks come
    ageing_ns: int | None = None  # waiting that long raises a sequence by one class
    prefix_ttl_ns: int | None = None  # cached content that nobody uses for that long is forgotten
    num_host_blocks: int = 0  # blocks in host memory that victims may be saved to
    block_copy_s: float = 0.0  # seconds to move a block there, or back
    token_s: float = 0.0  # seconds to compute a position of a prompt
    doubling_context: int | None = field(default=None, metadata=LATER)  # positions behind which one
    # more costs twice as much; the threshold is then work, in positions without context

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    @property
    def num_slots(self) -> int:
        """Rows of the slot table: spare ones, because a slot frees up behind a fence."""
        return 2 * self.max_num_seqs
