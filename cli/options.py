"""The options that commands share, gathered into one value each."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args

import click

from ..actors.config import (
    DEFAULT_MODEL,
    Device,
    DType,
    EngineConfig,
    GrammarBackend,
    KVDType,
    Quantization,
)
from .logs import configure_logs

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What was said about the engine; None where nothing was."""

    model: str
    device: str | None
    dtype: str | None
    quantization: str | None
    kv_dtype: str | None
    kv_memory: int | None
    gpu_memory_fraction: float | None
    max_model_len: int | None
    num_blocks: int | None
    num_host_blocks: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    steps_in_flight: int | None
    no_prefix_caching: bool
    deterministic: bool
    grammar_backend: str | None
    max_logprobs: int | None
    record: Path | None
    stats_socket: Path | None
    log: str

    def config(self) -> EngineConfig:
        """The configuration; raises ConfigError where the options make no sense."""
        configure_logs(self.log)
        unlike = ("no_prefix_caching", "log")
        given = _given(self, without=unlike)
        return EngineConfig(**given, prefix_caching=not self.no_prefix_caching)

    def words(self) -> list[str]:
        """What was said, as the words of another command line; it neither logs nor records."""
        unlike = ("no_prefix_caching", "deterministic", "log", "record", "stats_socket")
        given = _given(self, without=unlike)
        words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        words += ["--no-prefix-caching"] * self.no_prefix_caching
        return words + ["--deterministic"] * self.deterministic


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """What was said about the limits of an imagined engine; None where nothing was."""

    block_size: int | None
    max_model_len: int | None
    num_blocks: int | None
    num_host_blocks: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    steps_in_flight: int | None
    no_prefix_caching: bool

    def config(self, **defaults: int) -> EngineConfig:
        """The configuration; raises ConfigError where the options make no sense."""
        given = {**defaults, **_given(self, without=("no_prefix_caching",))}
        return EngineConfig(device="simulated", prefix_caching=not self.no_prefix_caching, **given)


Options: TypeAlias = EngineOptions | LimitOptions


def _given(options: Options, *, without: tuple[str, ...]) -> dict[str, Any]:
    values = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in without}
    return {name: value for name, value in values.items() if value is not None}


_LIMITS = (
    click.option("--max-model-len", type=int, metavar="N", help="Positions per sequence."),
    click.option("--num-blocks", type=int, metavar="N", help="KV blocks in the pool."),
    click.option(
        "--num-host-blocks",
        type=int,
        metavar="N",
        help="KV blocks in host memory, for sequences that have to give way.",
    ),
    click.option("--max-num-seqs", type=int, metavar="N", help="Sequences that run at once."),
    click.option(
        "--max-num-batched-tokens", type=int, metavar="N", help="Token positions per step."
    ),
    click.option("--steps-in-flight", type=int, metavar="N", help="Steps ahead of the results."),
    click.option("--no-prefix-caching", is_flag=True, help="Compute every prompt from its start."),
)

_ENGINE = (
    click.option(
        "--model",
        default=DEFAULT_MODEL,
        show_default=True,
        metavar="NAME",
        help="A GGUF file, a Hugging Face folder, a short name (see `models`) or a hub id.",
    ),
    click.option("--device", type=click.Choice(get_args(Device)), help="Where to compute."),
    click.option("--dtype", type=click.Choice(get_args(DType)), help="What to compute in."),
    click.option(
        "--quantization",
        type=click.Choice(get_args(Quantization)),
        help="auto: a GGUF file's weights as they are; none: unpacked to the dtype; int8, int4: "
        "what has more bits is quantised.",
    ),
    click.option(
        "--kv-dtype",
        type=click.Choice(get_args(KVDType)),
        help="What keys and values are kept in; fp8 on GPUs that have it.",
    ),
    click.option(
        "--kv-memory", type=int, metavar="BYTES", help="Memory of the pool, instead of its blocks."
    ),
    click.option(
        "--gpu-memory-fraction",
        type=float,
        metavar="SHARE",
        help="What the engine may take of a GPU's memory.",
    ),
    click.option(
        "--deterministic",
        is_flag=True,
        help="Logits have the same bits alone and in any batch: slower, see the documentation.",
    ),
    click.option(
        "--grammar-backend",
        type=click.Choice(get_args(GrammarBackend)),
        help="The library that follows schemas, expressions and grammars.",
    ),
    click.option(
        "--max-logprobs",
        type=int,
        metavar="N",
        help="Likeliest tokens that --logprobs may tell of at a position.",
    ),
    *_LIMITS,
    click.option(
        "--record",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write every message for `replay`: prompts and answers, too.",
    ),
    click.option(
        "--stats-socket",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="Make a unix socket there, for `top`.",
    ),
    click.option(
        "--log",
        default="warning",
        show_default=True,
        metavar="LEVEL|FILE",
        help="Log to standard error from a level on, or JSON lines into a file.",
    ),
)


def engine_options(command: Command) -> Command:
    """Give a command the options about the engine, as its argument `engine`."""
    return gather(command, "engine", EngineOptions, _ENGINE)


def limit_options(command: Command) -> Command:
    """Give a command the limits of an engine that is only imagined, as its argument `limits`."""
    block_size = click.option("--block-size", type=int, metavar="N", help="Positions per KV block.")
    return gather(command, "limits", LimitOptions, (block_size, *_LIMITS))


def gather(
    command: Command,
    argument: str,
    kind: type[Any],
    options: tuple[Callable[[Command], Command], ...],
) -> Command:
    """Give a command options that it gets as one value: a dataclass with a field for each."""
    names = [field.name for field in fields(kind)]

    @wraps(command)
    def gathered(**values: Any) -> Any:
        own = {name: values.pop(name) for name in names}
        return command(**values, **{argument: kind(**own)})

    for option in reversed(options):
        gathered = option(gathered)
    return gathered  # type: ignore[return-value]
