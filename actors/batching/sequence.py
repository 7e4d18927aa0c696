"""A sequence: one request while it is being run."""

from dataclasses import dataclass, field

from ...messages import NO_INTS, Adjustments, Generate, Ints, RowState
from .asking import first_told, wanted
from .grammar import Grammar


@dataclass(slots=True, eq=False)
class Sequence:
    """What is kept of a request beside its positions, which the ledger holds by slot."""

    request: Generate
    tokens: Ints  # what is confirmed, while it has no slot
    most_drafts: int = 0  # guessed tokens that a row may carry
    grammar: Grammar | None = None  # once it is compiled
    mask: Ints = field(default_factory=lambda: NO_INTS)  # what it allows next
    slot: int | None = None
    raised: int = 0  # classes gained by waiting; kept until the end (rule 13)
    was_admitted: bool = False
    bypassed: int = 0  # sequences that were admitted before it while it did not fit
    preemptions: int = 0
    failed_steps: int = 0  # steps it lost to the device
    prompt_told: int = 0  # no position of the prompt before it is still to be told of

    def __post_init__(self) -> None:
        self.prompt_told = first_told(self.request)

    @property
    def priority(self) -> int:
        """Its class; the smallest comes first."""
        return self.request.priority - self.raised

    @property
    def order(self) -> tuple[int, int]:
        """Importance: class, then arrival. The smallest comes first."""
        return self.priority, self.request.serial

    @property
    def is_ready(self) -> bool:
        """Whether it can run: it need not wait for its grammar."""
        return self.request.grammar is None or self.grammar is not None

    @property
    def most_kv(self) -> int:
        """Positions whose KV it may come to need; that of the last token is never needed."""
        return len(self.request.prompt) + self.request.max_tokens - 1

    @property
    def most_found(self) -> int | None:
        """Tokens it may take from the cache: the logits of the position before one that is to be
        told of are computed, not read. None: all."""
        return self.prompt_told - 1 if self.prompt_told < len(self.request.prompt) else None

    def is_expired(self, now_ns: int) -> bool:
        """Whether its deadline has passed, or it has waited longer than it would."""
        deadline, queue_deadline = self.request.deadline_ns, self.request.queue_deadline_ns
        if deadline is not None and deadline <= now_ns:
            return True
        return queue_deadline is not None and queue_deadline <= now_ns and not self.was_admitted

    def row_state(self, slot: int, epoch: int, token_ids: Ints, block_ids: Ints) -> RowState:
        """All that a device must know of it at the start of an epoch."""
        request, params = self.request, self.request.params
        return RowState(
            slot=slot,
            epoch=epoch,
            token_ids=token_ids,
            num_prompt_tokens=len(request.prompt),
            block_ids=block_ids,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            seed=request.seed,
            min_end=len(request.prompt) + params.min_tokens,
            banned_ids=request.stop_token_ids,
            logprobs=wanted(request, self.prompt_told),
            typical_p=params.typical_p,
            index=request.index,
            adjustments=Adjustments.of(params, request.bad_words),
        )
