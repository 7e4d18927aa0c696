"""The commands of a chat, on a whole engine over the simulated device in virtual time."""

import asyncio
import base64
import json
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from stepahead import FinishReason, SamplingParams
from stepahead.actors.virtual_time import run_virtual
from stepahead.cli.chat.commands import COMMANDS, Left
from stepahead.cli.chat.comparing import parted
from stepahead.cli.chat.conversation import Chat
from stepahead.cli.chat.look import Look
from stepahead.cli.chat.session import Session
from stepahead.cli.chat.settings import NAMES, Settings
from stepahead.cli.mistake import Mistake
from stepahead.cli.sampling_options import SamplingOptions

from .chat_vocabularies import byte_tokenizer
from .engines import make_config, make_device, make_engine
from .screen import Screen
from .scripted import scripted_engine

Shown: TypeAlias = pytest.CaptureFixture[str]
Story: TypeAlias = Callable[[Chat], Coroutine[None, None, None]]
QWEN = byte_tokenizer(
    shown=("<think>", "</think>"),
    template="{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '<|im_end|>' }}"
    "{% endfor %}{{ 'assistant: ' }}{# <think> #}",
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, without a desktop."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "stepahead"


def chatting(
    story: Story,
    *,
    coloured: bool = False,
    draws: bool = False,
    in_loop: Callable[[Coroutine[None, None, None]], None] = run_virtual,
    **options: Any,
) -> None:
    """Run a story in a chat whose answers have 6 tokens and are always the same."""

    async def run() -> None:
        device = make_device(make_config(**options), draws=True) if draws else None
        async with make_engine(device=device, **options) as engine:
            settings = Settings(SamplingOptions({"temperature": 0.0, "max_tokens": 6}))
            chat = Chat(engine, engine.config, Session(), settings, Look(is_coloured=coloured))
            await story(chat)
            await chat.engine.close()

    in_loop(run())


async def obey(chat: Chat, line: str) -> None:
    name, _, argument = line.partition(" ")
    await COMMANDS[name].act(chat, argument)


def test_an_answer_is_shown_kept_and_followed_by_what_it_cost(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        await chat.ask("hello")
        (exchange,) = chat.session.exchanges

        answer, status = capsys.readouterr().out.removesuffix("\n").rsplit("\n", 1)
        assert exchange.question == "hello"
        assert exchange.answer == answer
        assert exchange.ending is FinishReason.LENGTH
        assert status == (
            "6 tokens · 100.0 tok/s · first after 10 ms · cached 0 of 8 · context 5% of 256 · "
            "cut off at max_tokens"
        )

    chatting(story)


def test_logprobs_that_were_asked_for_stand_below_the_answer(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        await obey(chat, "/set logprobs 1")
        await obey(chat, '/set logit_bias {"40": -100}')  # as JSON names ids
        capsys.readouterr()
        await chat.ask("hello")

        _, rows = capsys.readouterr().out.split("\n\n")
        assert rows.splitlines()[0].split()[:3] == ["answer", "logprob", "rank"]
        assert len(rows.splitlines()) == 1 + 6 + 1  # the heading, the tokens, and what it cost

    chatting(story)


def test_an_answer_to_the_end_of_the_context_says_that_it_is_full(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        chat.settings.choose("max_tokens", "none", SamplingParams())
        chat.settings.choose("ignore_eos", "true", SamplingParams())
        await chat.ask("hello")

        assert "cut off: the context is full" in capsys.readouterr().out

    chatting(story, max_model_len=32)


def test_regen_asks_again_and_replaces_the_answer(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        await obey(chat, "/regen")
        await chat.ask("one")
        await chat.ask("two")
        before = list(chat.session.exchanges)
        await obey(chat, "/regen")

        assert chat.session.exchanges == before
        said = capsys.readouterr().out
        assert "no answer to replace yet" in said
        assert "the answer hardly changes" in said

        chat.settings.choose("temperature", "2", SamplingParams())
        chat.settings.choose("max_tokens", "3", SamplingParams())
        await obey(chat, "/regen")
        first, second = chat.session.exchanges
        assert first == before[0]
        assert (second.question, second.answer) == ("two", before[1].answer[:3])
        assert "hardly changes" not in capsys.readouterr().out

    chatting(story)


def test_diff_shows_where_another_seed_parts_and_keeps_the_answer(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        chat.settings.choose("temperature", "8", SamplingParams())
        chat.settings.choose("seed", "1", SamplingParams())
        await chat.ask("hello")
        kept = list(chat.session.exchanges)
        with pytest.raises(Mistake, match="'seven' is no seed"):
            await obey(chat, "/diff seven")
        capsys.readouterr()
        await obey(chat, "/diff 7")
        said, seeded, hint = capsys.readouterr().out.splitlines()

        assert chat.session.exchanges == kept
        assert said == f"said    {kept[0].answer}"
        assert seeded.startswith("seed 7  ")
        assert hint == "(to go on with the other one: /set seed 7, then /regen)"

        await obey(chat, "/set seed 7")
        await obey(chat, "/regen")
        assert seeded == f"seed 7  {chat.session.exchanges[0].answer}"
        capsys.readouterr()
        await obey(chat, "/diff 7")
        assert capsys.readouterr().out == "With seed 7 the answer is the same.\n"

    chatting(story, draws=True)


def test_diff_without_answer_or_chance_says_so(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        await obey(chat, "/diff")
        await chat.ask("hello")
        await obey(chat, "/diff 7")

        said = capsys.readouterr().out
        assert said.startswith("There is no answer to compare yet.\n")
        assert said.endswith("With temperature 0 every seed gives the same answer; see /set.\n")

    chatting(story)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("I am Bob, a fox.", "I am Bobby.", "I am "),
        ("Hello", "Hello there", "Hello"),
        ("yes", "no", ""),
        ("答えは川です", "答えは山です", "答えは"),
    ],
)
def test_answers_part_between_words_where_there_are_any(one: str, other: str, both: str) -> None:
    assert parted(one, other) == (both, one.removeprefix(both), other.removeprefix(both))


def test_continue_goes_on_where_the_answer_was_cut_off() -> None:
    async def story(chat: Chat) -> None:
        await obey(chat, "/continue")
        await chat.ask("hello")
        await obey(chat, "/continue")
        cut = chat.session.exchanges[0].answer
        await obey(chat, "/undo")
        chat.settings.choose("max_tokens", "12", SamplingParams())
        await chat.ask("hello")

        assert [exchange.answer for exchange in chat.session.exchanges] == [cut]

    chatting(story)


def test_undo_takes_turns_back_until_there_is_none(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        await chat.ask("one")
        await chat.ask("t" * 100)
        capsys.readouterr()
        for _ in range(3):
            await obey(chat, "/undo")

        assert capsys.readouterr().out.splitlines() == [
            f"Taken back: {'t' * 57}... (1 turn left)",
            "Taken back: one (0 turns left)",
            "There is nothing to take back.",
        ]

    chatting(story)


def test_a_chat_is_saved_loaded_and_forked(state: Path, capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        await obey(chat, "/load")
        await obey(chat, "/system Be brief.")
        await chat.ask("one")
        await obey(chat, "/set temperature 0.5")
        await obey(chat, "/save first")
        await obey(chat, "/fork")
        await chat.ask("two")
        await obey(chat, "/save")

        assert chat.session.name == "first-2"
        await obey(chat, "/load first")
        assert [exchange.question for exchange in chat.session.exchanges] == ["one"]
        assert (chat.session.system, chat.params.temperature) == ("Be brief.", 0.5)
        capsys.readouterr()
        await obey(chat, "/load")
        assert capsys.readouterr().out == "Saved: first, first-2\n"
        with pytest.raises(Mistake, match="already"):
            await obey(chat, "/save first-2")

    chatting(story)
    saved = json.loads((state / "chats" / "first-2.json").read_text())
    assert [message["content"] for message in saved["messages"][::2]] == ["one", "two"]


def test_a_fork_finds_all_of_its_origin_in_the_prefix_cache() -> None:
    async def story(chat: Chat) -> None:
        await chat.ask("a question that is long enough to fill some blocks")
        await obey(chat, "/fork")
        await chat.ask("and another")

        assert chat.asked is not None
        assert chat.asked.final.usage is not None
        assert chat.asked.final.usage.cached_tokens >= 52

    chatting(story)


def test_what_cannot_be_is_a_mistake(state: Path) -> None:
    async def story(chat: Chat) -> None:
        for line in ("/save " + "x" * 300, "/save ~nobody-of-that-name/a.json"):
            with pytest.raises(Mistake):
                await obey(chat, line)

    chatting(story)


def test_settings_that_hold_objects_are_saved_and_come_back_as_they_would_be_typed(
    capsys: Shown,
) -> None:
    async def story(chat: Chat) -> None:
        await obey(chat, '/set logit_bias {"3": 1}')
        await obey(chat, '/set structured_output {"regex": "[a-z]{3}"}')
        await obey(chat, "/save shaped")
        await obey(chat, "/set logit_bias default")
        await obey(chat, "/load shaped")
        await obey(chat, "/set")

        shown = capsys.readouterr().out.splitlines()[-len(NAMES) :]
        told = {line.split()[0]: line.removesuffix("by /set").split(None, 1)[1] for line in shown}
        assert told["logit_bias"].strip() == '{"3": 1.0}'
        assert told["structured_output"].strip() == '{"regex": "[a-z]{3}"}'
        await chat.ask("hello")
        assert re.fullmatch("[a-z]{3}", chat.session.exchanges[0].answer)

    chatting(story, in_loop=asyncio.run)


def test_what_a_session_quotes_cannot_command_the_terminal(state: Path, capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        chat.session.system = "\x1b[2Jgone"
        chat.session.add("\x1b]52;c;aGk=\x07ask", "answer", None)
        for line in ("/system", "/undo"):
            await obey(chat, line)

        assert not set(capsys.readouterr().out) & {"\x1b", "\x07"}

    chatting(story)


def test_clear_forgets_the_conversation_but_not_the_system_prompt(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        await obey(chat, "/system Be brief.")
        await chat.ask("one")
        await obey(chat, "/clear")

        assert chat.session.asking("?") == Session("Be brief.").asking("?")
        capsys.readouterr()
        await obey(chat, "/stats")
        assert "none yet" in capsys.readouterr().out

    chatting(story)


def test_set_shows_who_said_so_and_changes_the_next_answer(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        await obey(chat, "/set max_tokens 3")
        await chat.ask("hello")
        assert chat.asked is not None
        assert chat.asked.final.usage is not None
        assert chat.asked.final.usage.completion_tokens == 3
        await obey(chat, "/set temperature")
        said = capsys.readouterr().out.splitlines()
        assert said[0].split()[:4] == ["max_tokens", "3", "by", "/set"]
        assert said[-1].split()[:4] == ["temperature", "0.0", "by", "an"]
        await obey(chat, "/set")
        assert "top_p" in capsys.readouterr().out
        with pytest.raises(Mistake, match="/set lists"):
            await obey(chat, "/set temprature")

    chatting(story)


def test_turns_that_no_longer_fit_are_dropped_and_it_is_said_so(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        for number in range(4):
            await chat.ask(f"question {number} " + "x" * 30)

        said = capsys.readouterr().out
        assert said.count("not fit into the context of 128 tokens any more") == 1
        assert "(the oldest 2 turns do not fit" in said
        assert [len(chat.session.exchanges), chat.session.num_dropped] == [4, 2]

    chatting(story, max_model_len=128)


def test_a_question_longer_than_the_context_is_refused_and_not_kept(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        await chat.ask("x" * 70)
        assert "64" in capsys.readouterr().out
        assert chat.session.exchanges == []

    chatting(story, max_model_len=64)


def test_what_is_refused_for_its_length_drops_no_turns(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        await chat.ask("hello")
        await chat.ask("x" * 300)

        assert "may have 63" in capsys.readouterr().out
        assert [len(chat.session.exchanges), chat.session.num_dropped] == [1, 0]

    chatting(story, max_model_len=64)


def test_an_answer_that_filled_the_context_can_be_asked_for_again_and_is_not_forgotten(
    capsys: Shown,
) -> None:
    async def story(chat: Chat) -> None:
        chat.settings.choose("max_tokens", "none", SamplingParams())
        chat.settings.choose("ignore_eos", "true", SamplingParams())
        await chat.ask("hello")
        capsys.readouterr()

        await obey(chat, "/continue")
        assert "the prompt has 64 tokens; it may have 63" in capsys.readouterr().out
        await obey(chat, "/regen")
        assert [len(chat.session.exchanges), chat.session.num_dropped] == [1, 0]

    chatting(story, max_model_len=64)


def test_trace_draws_and_explain_tells_what_happened_to_the_last_answer(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        await obey(chat, "/trace")
        await obey(chat, "/explain")
        assert capsys.readouterr().out == "There is no answer yet.\n" * 2
        await chat.ask("x" * 150)
        capsys.readouterr()
        await obey(chat, "/trace")
        drawn = capsys.readouterr().out.splitlines()
        await obey(chat, "/explain")
        told = capsys.readouterr().out

        names = [line.split()[0] for line in drawn]
        assert names == ["prefill", "chunk", "chunk", "chunk", "decode"]  # it did not queue
        assert [line.split("  ")[-1] for line in drawn[1:4]] == [
            "64 tokens",
            "64 tokens",
            "25 tokens",
        ]
        assert drawn[0].endswith("30 ms")
        assert drawn[4].endswith("50 ms")
        assert told.startswith(
            "chat-1 (serial 1): 153 prompt tokens, 0 of them cached, 6 generated"
        )

    chatting(story)


def test_copy_asks_the_terminal_where_there_is_no_desktop(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        await obey(chat, "/copy")
        await chat.ask("hello")
        capsys.readouterr()
        await obey(chat, "/copy")

        answer = chat.session.exchanges[0].answer
        data = base64.b64encode(answer.encode()).decode()
        assert capsys.readouterr().out == (
            f"\x1b]52;c;{data}\x07Copied {len(answer)} characters (through the terminal).\n"
        )

    chatting(story, coloured=True, in_loop=asyncio.run)  # it asks the desktop on a thread


def test_copy_on_a_plain_terminal_writes_no_control_bytes(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        await chat.ask("hello")
        await obey(chat, "/copy")

        said = capsys.readouterr().out
        assert "There is no clipboard here" in said
        assert "\x1b" not in said

    chatting(story, in_loop=asyncio.run)


def test_reasoning_is_shown_before_the_answer_and_kept_with_it(capsys: Shown) -> None:
    prompt, _ = QWEN.encode_chat([{"role": "user", "content": "hello"}])
    answer = "<think>\nHm\n</think>\n\n**Hi**"

    async def run() -> None:
        script = [(prompt, QWEN.encode(answer))]
        async with scripted_engine(QWEN, script, max_model_len=1024, num_blocks=512) as engine:
            chat = Chat(engine, engine.config, Session(), Settings(SamplingOptions({})), Look(True))
            await chat.ask("hello")

            assert chat.session.exchanges[0].answer == answer

    run_virtual(run())
    said = capsys.readouterr().out.replace("\x1b[0m", "").replace("\x1b[2m", "")
    assert said.startswith("Hm\n\n**Hi**\r\x1b[1m**Hi**\n")


def test_what_was_said_before_reasoning_is_not_painted_over_it(capsys: Shown) -> None:
    prompt, _ = QWEN.encode_chat([{"role": "user", "content": "hello"}])

    async def run() -> None:
        script = [(prompt, QWEN.encode("**A**<think>Hm</think>**B**"))]
        async with scripted_engine(QWEN, script, max_model_len=1024, num_blocks=512) as engine:
            chat = Chat(engine, engine.config, Session(), Settings(SamplingOptions({})), Look(True))
            await chat.ask("hello")

    run_virtual(run())
    screen = Screen(80, 24)
    screen.write(capsys.readouterr().out.replace("\r\n", "\n"))
    assert screen.copied.splitlines()[:5] == ["**A**", "", "Hm", "", "**B**"]
    assert screen.style_of("**A**") == screen.style_of("**B**") == {"1"}


def test_another_model_goes_on_with_the_conversation(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        await chat.ask("one")
        before = chat.engine
        await obey(chat, "/model")
        await obey(chat, "/model another")

        assert chat.engine is not before
        assert (await before.health()).state == "closed"
        await chat.ask("two")
        assert len(chat.session.exchanges) == 2
        said = capsys.readouterr().out
        assert "oracle on simulated in none, context 256" in said
        assert "simulated on simulated in none goes on with the conversation." in said

    chatting(story, in_loop=asyncio.run)  # where an engine may use threads


def test_help_lists_every_command_and_exit_leaves(capsys: Shown) -> None:
    async def story(chat: Chat) -> None:
        await obey(chat, "/help")
        said = capsys.readouterr().out
        assert all(command.usage in said for command in COMMANDS.values())
        with pytest.raises(Left):
            await obey(chat, "/exit")

    chatting(story)
