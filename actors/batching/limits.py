"""The limits a Batcher keeps."""

from dataclasses import dataclass

MAX_FAILED_STEPS = 2  # steps one request may lose to the device before it fails


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits a Batcher keeps, from the engine's options and the device's facts."""

    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int | None
    steps_in_flight: int
    prefix_caching: bool

    @property
    def num_slots(self) -> int:
        """Rows of the slot table: spare ones, because a slot frees up behind a fence."""
        return 2 * self.max_num_seqs
