"""How large each run is: on a GPU, and where the runs themselves are tried out on a processor."""

from dataclasses import dataclass

from .kernel_cases import KernelSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The shapes that are run, and how much of each."""

    small: str  # a shape on which the host has the least time to hide in
    large: str  # the one that most others publish
    sampled: str  # the one for many samples of a prompt

    copy_bytes: int  # of the copy that bandwidth is measured by
    product_width: int  # of the matrices that the rate of operations is measured by
    kernels: KernelSizes
    kernel_repeats: int

    grid: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]  # R3: rows and lengths by shape
    grid_steps: int
    idle_rows: tuple[int, ...]  # R4
    idle_prompt: int
    idle_output: int

    mixed: int  # R1: requests
    mixed_bounds: tuple[int, int]
    equal: int  # R2: requests
    equal_prompt: int
    equal_outputs: tuple[int, ...]
    full: int  # R5: requests at most
    full_rows: int  # of them that run at once
    full_length: int  # of prompt and answer
    prefixes: tuple[int, ...]  # R7: tokens
    sampled_prompts: int  # R8
    sampled_answers: int
    sampled_shared: int
    sampled_own: int
    sampled_output: int

    max_num_seqs: dict[str, int]
    max_num_batched_tokens: int


ON_GPU = Sizes(
    small="qwen3-0.6b",
    large="llama-3.1-8b",
    sampled="llama-3.2-1b",
    copy_bytes=2 * 2**30,
    product_width=8_192,
    kernels=KernelSizes(
        rows=64, length=4_096, few_rows=4, long=32_768, prompts=(2_048, 8_192), tokens=16_384
    ),
    kernel_repeats=10,
    grid={
        "qwen3-0.6b": ((1, 8, 32, 128, 256), (512, 2_048, 8_192)),
        "llama-3.1-8b": ((1, 8, 32, 64, 256), (512, 2_048, 8_192)),
    },
    grid_steps=20,
    idle_rows=(8, 256),
    idle_prompt=128,
    idle_output=256,
    mixed=256,
    mixed_bounds=(100, 1_024),
    equal=32,
    equal_prompt=32,
    equal_outputs=(1_024, 8_192),
    full=1_200,
    full_rows=256,
    full_length=1_000,
    prefixes=(32_768, 130_816),
    sampled_prompts=128,
    sampled_answers=64,
    sampled_shared=1_024,
    sampled_own=32,
    sampled_output=128,
    max_num_seqs={"qwen3-0.6b": 256, "llama-3.1-8b": 512, "llama-3.2-1b": 512},
    max_num_batched_tokens=8_192,
)

TRIAL = Sizes(
    small="tiny",
    large="tiny",
    sampled="tiny",
    copy_bytes=2**16,
    product_width=32,
    kernels=KernelSizes(rows=2, length=40, few_rows=1, long=70, prompts=(24,), tokens=16),
    kernel_repeats=2,
    grid={"tiny": ((1, 3), (20,))},
    grid_steps=3,
    idle_rows=(2,),
    idle_prompt=8,
    idle_output=12,
    mixed=4,
    mixed_bounds=(3, 12),
    equal=2,
    equal_prompt=4,
    equal_outputs=(5,),
    full=6,
    full_rows=2,
    full_length=8,
    prefixes=(96,),
    sampled_prompts=2,
    sampled_answers=2,
    sampled_shared=32,
    sampled_own=3,
    sampled_output=4,
    max_num_seqs={"tiny": 4},
    max_num_batched_tokens=64,
)
