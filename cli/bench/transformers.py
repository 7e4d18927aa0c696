"""The single stream of the engine beside `generate` of transformers: same weights, and the same
dtype, or what suits the processor where the engine computes quantised weights.

The two run in turn, so that a machine whose speed drifts drifts for both, and in two processes:
in one, each side's idle threads slow the other down.
"""

import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ...actors.config import EngineConfig
from ...gpu.choices import auto_dtype
from ...gpu.loading.resolve import resolve_model
from ...gpu.processor import read_processor
from ..runner import progress, running_engine
from .measurement import Measurement
from .measures import of_stream
from .on_model import engine_facts
from .process import peak_memory_mb
from .reporting import Report
from .traces import Run, Trace, run_together
from .workload import Job, Shapes


async def compare(config: EngineConfig, runs: int, report: Report) -> None:
    """Report the engine's runs, those of transformers, and the ratios pair by pair."""
    async with running_engine(config) as engine:
        facts = engine.facts
        with progress("loading the same model in transformers"):
            peer = _Peer(resolve_model(config.model), _dtype_of(facts.dtype))
        workload = Shapes(facts.vocab_size, facts.max_model_len).single(runs + 1)
        pairs = []
        try:
            with progress(f"in turn, {runs} runs after a warm-up"):
                for (job,) in workload.runs:
                    pairs.append((await run_together(engine, [job]), peer.run(job)))
        finally:
            peer.close()
        about = engine_facts(engine)
    ours, theirs = ([of_stream(run) for run in side] for side in zip(*pairs[1:], strict=True))
    here = about | {"peak_memory_mb": peak_memory_mb()}
    ratios = [{"ratio": a["out_tok_s"] / b["out_tok_s"]} for a, b in zip(ours, theirs, strict=True)]
    report.add(Measurement("single", here, ours))
    beside = about | {"dtype": _dtype_of(str(about["dtype"]))}
    report.add(Measurement("transformers generate", beside, theirs))
    report.add(Measurement("engine to transformers", {}, ratios))


class _Peer:
    """transformers in a process of its own, which answers one job at a time."""

    def __init__(self, path: Path, dtype: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, path, dtype), daemon=True)
        self._process.start()
        theirs.close()
        self._connection.recv()  # it is ready

    def run(self, job: Job) -> Run:
        self._connection.send(job)
        run: Run = self._connection.recv()
        return run

    def close(self) -> None:
        self._connection.close()
        self._process.join()


def _dtype_of(ours: str) -> str:
    return auto_dtype(read_processor()).value if ours == "quantised" else ours


def _serve(connection: Connection, path: Path, dtype: str) -> None:
    model = _load(path, dtype)
    connection.send("ready")
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(_timed_generate(model, job))


def _load(path: Path, dtype: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    if path.is_file():
        model = _from_gguf(path, getattr(torch, dtype))
    else:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id = None
    return model


def _from_gguf(path: Path, dtype: Any) -> Any:
    """The model of transformers with the file's weights in full, and attention of its own."""
    from ...gpu.loading.gguf_file import GgufFile
    from ...gpu.loading.gguf_weights import GgufWeights
    from ...gpu.models.generic_gguf import load_generic_gguf
    from ...gpu.models.gguf_config import config_of_gguf

    file = GgufFile(path)
    config = config_of_gguf(file)
    weights = GgufWeights(file, config.head_dim)
    model = load_generic_gguf(config, weights, dtype, config.context_length)
    model.set_attn_implementation("sdpa")
    return model


class _FirstToken:
    """Given to `generate` as a streamer; notes when the first token came."""

    def __init__(self) -> None:
        self.times: list[float] = []  # the prompt is handed over first, then each token

    def put(self, value: object) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def _timed_generate(model: Any, job: Job) -> Run:
    import torch

    prompt = torch.tensor([job.prompt])
    streamer = _FirstToken()
    started = time.perf_counter()
    with torch.inference_mode():
        ids = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=job.output_tokens,
            do_sample=False,
            pad_token_id=0,
            streamer=streamer,
        )
    seconds = time.perf_counter() - started
    answer = ids[0, prompt.shape[1] :].tolist()
    return Run(seconds, [Trace(started, streamer.times[1:], answer)])
