"""The default model twice: in the engine's device, and in transformers as its reference."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stepahead import Engine, EngineConfig, SamplingParams
from stepahead.actors.backend import Backend
from stepahead.actors.text.loading import load_tokenizer
from stepahead.actors.text.tokenizer import Tokenizer
from stepahead.gpu.cpu import CpuDevice, open_cpu_device
from stepahead.gpu.device import DeviceFacts, StepAddress
from stepahead.gpu.loading.gguf_file import GgufFile
from stepahead.gpu.loading.gguf_weights import GgufWeights
from stepahead.gpu.loading.resolve import resolve_model
from stepahead.gpu.options import DeviceOptions
from stepahead.messages import StepPlan

CONTEXT = 512
BLOCK_SIZE = 4
NUM_BLOCKS = 1024
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Once upon a time, in a village at the foot of a mountain, there lived an old clockmaker "
    "who had never once been late. Every morning he wound the great clock in the square, and "
    "every evening he listened to it strike. One day the clock",
    "Once upon a time, in a village at the foot of a mountain, there lived an old clockmaker "
    "who had never once been late. Every morning he wound the great clock in the square, and "
    "every evening he listened to it strike. The children",
    "1, 2, 3, 4,",
    "Water boils at",
    "Q: What is the largest planet?\nA:",
    "import numpy as np\n\ndef mean(values):\n",
    "The three primary colours are red,",
    "Dear Sir or Madam,\n\nI am writing to",
    "In 1969, the first",
    "To make bread you need flour,",
    "She opened the door and",
    "<html>\n<head>\n<title>",
    "The opposite of hot is",
    "Photosynthesis is the process by which plants",
    "A list of fruits:\n- apple\n-",
    "If it rains tomorrow, we",
    "SELECT name, age FROM users WHERE",
    "Roses are red,\nviolets are",
]


class SharedDevice:
    """A device that many engines use one after another; each may see a smaller pool."""

    def __init__(self, device: CpuDevice, facts: DeviceFacts) -> None:
        self._device = device
        self.facts = facts

    def launch(self, plan: StepPlan, done: StepAddress) -> None:
        self._device.launch(plan, done)

    def close(self) -> None:
        """It is closed when the last engine is gone."""


class EngineModel:
    """The default model in float32, loaded once."""

    def __init__(self) -> None:
        self.path = resolve_model("smollm2-135m")
        self.tokenizer: Tokenizer = load_tokenizer(self.path)
        self._loop: asyncio.AbstractEventLoop | None = None
        options = DeviceOptions(
            model=str(self.path),
            dtype="float32",
            block_size=BLOCK_SIZE,
            num_blocks=NUM_BLOCKS,
            max_model_len=CONTEXT,
        )
        self.device = open_cpu_device(options, self._post)

    def _post(self, call: Any) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(call)

    @contextmanager
    def lent(self, num_blocks: int) -> Iterator[Backend]:
        """A backend over the shared device, with a pool of its own size."""
        self._loop = asyncio.get_running_loop()
        facts = replace(
            self.device.facts,
            num_blocks=num_blocks,
            max_model_len=min(CONTEXT, num_blocks * self.device.facts.block_size),
        )
        device = SharedDevice(self.device, facts)
        yield Backend(device, self.tokenizer, SamplingParams())


@dataclass(frozen=True)
class Factors:
    """One way to run the same requests."""

    at_once: bool = True
    chunk: int = 2048
    num_blocks: int = NUM_BLOCKS
    steps_in_flight: int = 2
    prefix_caching: bool = True


SMALL_POOL = 24  # too few for the prompts and answers that run at once
LEVELS: dict[str, tuple[Any, Any]] = {
    "at_once": (True, False),
    "chunk": (2048, 16),
    "num_blocks": (NUM_BLOCKS, SMALL_POOL),
    "steps_in_flight": (2, 1),
    "prefix_caching": (True, False),
}


def one_at_a_time() -> list[Factors]:
    """The default, and each other level by itself."""
    changes = [{name: level} for name, levels in LEVELS.items() for level in levels[1:]]
    return [Factors(), *(Factors(**change) for change in changes), Factors(chunk=64)]


def pairwise() -> list[Factors]:
    """Few runs in which every two levels of two factors meet (greedy choice)."""
    names = list(LEVELS)
    rows = [dict(zip(names, row, strict=True)) for row in itertools.product(*LEVELS.values())]
    open_pairs = {pair for row in rows for pair in itertools.combinations(row.items(), 2)}
    chosen = []
    while open_pairs:
        best = max(rows, key=lambda row: len(_pairs(row) & open_pairs))
        open_pairs -= _pairs(best)
        chosen.append(Factors(**best))
    return chosen


def _pairs(row: dict[str, Any]) -> set[Any]:
    return set(itertools.combinations(row.items(), 2))


def full_product(*, small_pool: int) -> list[Factors]:
    chunks = (2048, 64, 16)
    rows = itertools.product((True, False), chunks, (NUM_BLOCKS, small_pool), (2, 1), (True, False))
    return [Factors(*row) for row in rows]


async def run_engine(
    model: EngineModel, factors: Factors, prompts: Sequence[Sequence[int]], max_tokens: int
) -> tuple[list[list[int]], int]:
    """Greedy ids of every prompt, and how often a sequence was preempted."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    config = EngineConfig(
        dtype="float32",
        block_size=BLOCK_SIZE,
        max_num_seqs=min(factors.chunk, 64),
        max_num_batched_tokens=factors.chunk,
        steps_in_flight=factors.steps_in_flight,
        prefix_caching=factors.prefix_caching,
        watermark=0.0,
    )
    with model.lent(factors.num_blocks) as backend:
        async with Engine(config, backend=backend) as engine:
            if factors.at_once:
                calls = [engine.generate(prompt, params) for prompt in prompts]
                results = await asyncio.gather(*calls)
            else:
                results = [await engine.generate(prompt, params) for prompt in prompts]
            stats = engine.stats()
    assert stats.blocks_held == 0
    return [list(result.token_ids) for result in results], stats.preemptions


def make_reference(model: EngineModel) -> LlamaForCausalLM:
    """transformers' own Llama over the same weights, dequantised to float32."""
    file = GgufFile(model.path)
    about = file.metadata
    config = LlamaConfig(
        vocab_size=model.tokenizer.vocab_size,
        hidden_size=about["llama.embedding_length"],
        intermediate_size=about["llama.feed_forward_length"],
        num_hidden_layers=about["llama.block_count"],
        num_attention_heads=about["llama.attention.head_count"],
        num_key_value_heads=about["llama.attention.head_count_kv"],
        rms_norm_eps=about["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": about["llama.rope.freq_base"]},
        max_position_embeddings=about["llama.context_length"],
        tie_word_embeddings=True,
    )
    reference = LlamaForCausalLM(config).eval()
    weights = GgufWeights(file, config.head_dim)
    state = {name: torch.empty(weights.shape(name)) for name in weights.names()}
    for name, tensor in state.items():
        weights.read(name, tensor)
    missing, unexpected = reference.load_state_dict(state, strict=False)
    assert missing in ([], ["lm_head.weight"])
    assert not unexpected
    return reference


@torch.inference_mode()
def reference_ids(reference: Any, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """Greedy ids by transformers' generate, EOS ignored."""
    ids = torch.tensor([list(prompt)])
    output = reference.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [int(token_id) for token_id in output[0, len(prompt) :]]
