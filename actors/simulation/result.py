"""What a simulated trace came to."""

from dataclasses import asdict, dataclass

from .measures import Occupancy, Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """Counts, times and occupancy of one run; the same trace and options give the same result."""

    device: str
    requests: int  # in the trace
    finished: int
    refused: int  # prompts longer than the context
    shortened: int  # answers that the context cut
    prompt_tokens: int  # of the requests that finished
    output_tokens: int
    seconds: float  # from 0 to the last token
    steps: int
    device_busy: float  # share of the time
    requests_per_s: float
    tokens_per_s: float  # of the answers
    ttft_s: Spread  # from the arrival to the first token
    inter_token_s: Spread
    latency_s: Spread  # from the arrival to the last token
    preemptions: int
    swaps: int  # how often a sequence came back from host memory
    moved_blocks: int  # to host memory and back
    computed_tokens: int  # positions, those computed again after a preemption included
    cache_hit_tokens: int  # found when a request was first admitted
    num_blocks: int
    max_model_len: int
    peak_running: int
    peak_waiting: int
    peak_blocks_held: int
    occupancy: tuple[Occupancy, ...]

    def fields(self) -> dict[str, object]:
        """As JSON has it."""
        return asdict(self)
