"""`engine-cli chat`: a conversation on a terminal, or one quiet answer anywhere else."""

import sys

import click

from ..actors.config import EngineConfig
from .conversation import Conversation
from .mistake import Mistake
from .options import EngineOptions, engine_options
from .output import is_terminal, write, write_answer, write_json
from .piped import read_stdin, stdin_is_terminal
from .render import result_fields
from .runner import run, running_engine
from .sampling_options import SamplingOptions, sampling_options


@click.command(short_help="Talk to a model, or get one answer in a pipe.")
@click.argument("prompt", required=False)
@click.option("--system", metavar="TEXT", help="What the model is told before the conversation.")
@click.option("--json", "as_json", is_flag=True, help="Print the one answer as a JSON object.")
@sampling_options
@engine_options
def chat(
    prompt: str | None,
    system: str | None,
    as_json: bool,
    sampling: SamplingOptions,
    engine: EngineOptions,
) -> None:
    """Chat on a terminal; with PROMPT or in a pipe give one answer and nothing else."""
    params = sampling.params()  # what is wrong with the options is said before the model loads
    if params.n > 1:
        raise Mistake("a chat has one answer at a time; `generate --n` gives several")
    config, conversation = engine.config(), Conversation(system)
    if prompt is None and stdin_is_terminal() and is_terminal(sys.stdout):
        if as_json:
            raise Mistake("--json gives one answer; add a PROMPT or pipe one in")
        run(_converse(conversation, sampling, config))
        return
    question = _question(prompt)
    if question:
        run(_answer(question, conversation, sampling, config, as_json=as_json))


def _question(prompt: str | None) -> str:
    """PROMPT, then an empty line, then what was piped in; either may be missing."""
    if prompt is not None and not prompt.strip():
        raise Mistake("the prompt is empty; give some text, or none to chat")
    piped = "" if prompt is not None and stdin_is_terminal() else read_stdin()
    return "\n\n".join(part for part in (prompt, piped) if part is not None and part.strip())


async def _answer(
    question: str,
    conversation: Conversation,
    sampling: SamplingOptions,
    config: EngineConfig,
    *,
    as_json: bool,
) -> None:
    async with running_engine(config) as engine:
        messages, params = conversation.ask(question), sampling.params(engine.default_params)
        if as_json:
            write_json(result_fields(await engine.chat(messages, params)))
            return
        async for delta in engine.stream_chat(messages, params):
            write_answer(delta.text)
        write("\n")


async def _converse(
    conversation: Conversation, sampling: SamplingOptions, config: EngineConfig
) -> None:
    from .terminal import TerminalChat

    async with running_engine(config) as engine:
        await TerminalChat(engine, conversation, sampling.params(engine.default_params)).run()
