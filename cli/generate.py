"""`engine-cli generate`: continue a prompt as it stands, without a chat template."""

import click

from ..actors.config import EngineConfig
from ..messages import SamplingParams
from .logprobs import ToldTokens, logprob_table
from .mistake import Mistake
from .options import EngineOptions, engine_options
from .output import write, write_answer, write_json
from .piped import read_stdin
from .render import result_fields
from .runner import run, running_engine
from .sampling_options import SamplingOptions, sampling_options
from .structure_options import structure_options


@click.command(short_help="Continue a prompt as it stands.")
@click.argument("prompt")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: text, ids, timings.")
@sampling_options
@structure_options
@engine_options
def generate(prompt: str, as_json: bool, sampling: SamplingOptions, engine: EngineOptions) -> None:
    """Continue PROMPT as it stands; `-` reads it from standard input."""
    if not prompt.strip():
        raise Mistake("the prompt is empty; give some text, or - for standard input")
    text = read_stdin() if prompt == "-" else prompt
    params, config = sampling.params(), engine.config()
    if text.strip():
        run(_generate(text, params, config, as_json=as_json))


async def _generate(
    prompt: str, params: SamplingParams, config: EngineConfig, *, as_json: bool
) -> None:
    async with running_engine(config) as engine:
        if as_json:
            result = await engine.generate(prompt, params)
            write_json(result_fields(result))
            return
        if params.n > 1:
            for output in (await engine.generate(prompt, params)).outputs:
                write_answer(f"[{output.index}] {output.text}")
                write("\n")
                if output.logprobs:
                    write(logprob_table("answer", output.logprobs) + "\n")
            return
        told = ToldTokens()
        async for delta in engine.stream(prompt, params):
            write_answer(delta.text)
            told.add(delta)
        write("\n" + told.tables())
