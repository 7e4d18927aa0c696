"""What a model's tokenizer costs per token of an answer; its weights are not read."""

from pathlib import Path

from ..runner import progress
from .measurement import Measurement

TOKENS = 100_000


def measure_text(model: str | Path, runs: int) -> Measurement:
    from ...actors.text.loading import load_tokenizer
    from ...actors.text_bench import measure
    from ...gpu.loading.resolve import resolve_model

    with progress(f"{TOKENS:,} tokens of text"):
        tokenizer = load_tokenizer(resolve_model(model))
        warm_up, *rows = [measure(tokenizer, TOKENS) for _ in range(runs + 1)]
    return Measurement("text", {"model": str(model), "tokens": TOKENS}, rows, warm_up)
