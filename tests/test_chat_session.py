"""A conversation as a value: what is sent, what is kept, what no longer fits, and its file."""

import json
import stat
from pathlib import Path

import pytest

from stepahead import FinishReason, RequestRejected, SamplingParams
from stepahead.cli.chat.session import Exchange, Message, Session
from stepahead.cli.chat.session_files import Saved, free_name, load, path_of, save, saved_names
from stepahead.cli.chat.settings import Settings
from stepahead.cli.chat.window import make_room
from stepahead.cli.mistake import Mistake
from stepahead.cli.sampling_options import SamplingOptions

STOP = FinishReason.STOP


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def options(**given: object) -> SamplingOptions:
    return SamplingOptions(given)


def test_each_turn_sends_the_whole_conversation_once_under_its_system_prompt() -> None:
    """Field case 154."""
    session = Session("Be brief.")

    session.add("I am Ada.", "Hello Ada.", STOP)

    system = {"role": "system", "content": "Be brief."}
    told = [system, user("I am Ada."), assistant("Hello Ada."), user("Who am I?")]
    assert session.asking("Who am I?") == told


def test_a_question_changes_nothing_until_it_is_answered() -> None:
    session = Session()

    session.asking("Hello?")

    assert session.asking("Anybody?") == [user("Anybody?")]


def test_an_answer_can_be_asked_for_again_continued_and_taken_back() -> None:
    session = Session()
    session.add("one", "1", STOP)
    session.add("two", "zwei", FinishReason.ABORT)

    assert session.asking_again() == [user("one"), assistant("1"), user("two")]
    session.replace_answer("tw", FinishReason.ABORT)
    assert session.going_on()[-1] == assistant("tw")
    session.extend_answer("o", STOP)

    assert session.undo() == Exchange("two", "two", STOP)
    assert session.asking("?") == [user("one"), assistant("1"), user("?")]
    session.undo()
    assert session.undo() is None


def test_a_fork_and_its_origin_do_not_change_each_other() -> None:
    session = Session("Be brief.", name="first")
    session.add("one", "1", STOP)

    fork = session.fork()
    fork.add("two", "2", STOP)
    session.undo()

    assert (fork.system, fork.name, len(fork.exchanges)) == ("Be brief.", None, 2)
    assert session.exchanges == []


async def words(messages: list[Message]) -> int:
    """A tokenizer by which every word is a token."""
    return sum(len(message["content"].split()) for message in messages)


async def test_the_oldest_turns_are_dropped_whole_and_half_the_context_becomes_free() -> None:
    session = Session("short system")
    for number in range(5):
        session.add(f"question {number}", "an answer of five words", STOP)  # 7 words a turn

    def messages() -> list[Message]:
        return session.asking("and now?")

    fits = await make_room(session, messages, words, context=60, max_tokens=10)
    dropped = await make_room(session, messages, words, context=48, max_tokens=10)

    assert (fits, dropped) == (0, 3)
    assert messages() == [
        {"role": "system", "content": "short system"},
        *(
            message
            for number in (3, 4)
            for message in (user(f"question {number}"), assistant("an answer of five words"))
        ),
        user("and now?"),
    ]
    assert await words(messages()) <= 24


async def test_a_question_that_cannot_fit_by_itself_is_left_to_the_engine_to_refuse() -> None:
    session = Session()
    session.add("one", "1", STOP)

    dropped = await make_room(
        session, lambda: session.asking("x " * 99), words, context=40, max_tokens=None
    )

    assert dropped == 0
    assert session.asking("more") == [user("one"), assistant("1"), user("more")]


def test_taking_turns_back_brings_no_dropped_ones_back_but_new_ones_are_sent() -> None:
    session = Session()
    session.add("one", "1", STOP)
    session.num_dropped = 1

    session.undo()
    session.add("two", "2", STOP)

    assert session.asking("?") == [user("two"), assistant("2"), user("?")]


def test_a_saved_session_comes_back_as_it_was_and_is_private(tmp_path: Path) -> None:
    session = Session("sei höflich", num_dropped=1, name="a")
    session.add('naïve 🙂 \x07"', "1\n\n2", STOP)
    session.add("two", "half an ans", FinishReason.ABORT)
    path = tmp_path / "deep" / "a.json"

    save(Saved(session, {"temperature": 0.5, "stop": ["x"]}, "some-model"), path)

    assert load(path, "a") == Saved(session, {"temperature": 0.5, "stop": ["x"]}, "some-model")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["a.json"]
    messages = json.loads(path.read_text())["messages"]
    assert messages[3] == {**assistant("half an ans"), "finish_reason": "abort"}


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "not JSON"),
        ("[1]", "stepahead_chat"),
        ('{"stepahead_chat": 99}', "stepahead_chat"),
        ('{"stepahead_chat": 1}', "messages"),
        ('{"stepahead_chat": 1, "messages": [{"role": "user", "content": "x"}]}', "take turns"),
        (
            '{"stepahead_chat": 1, "messages": [{"role": "user", "content": 1},'
            '{"role": "assistant", "content": "x"}]}',
            "take turns",
        ),
        ('{"stepahead_chat": 1, "messages": [], "dropped_turns": 3}', "dropped_turns"),
        ('{"stepahead_chat": 1, "messages": [], "system": 3}', "system"),
        ('{"stepahead_chat": 1, "messages": [], "settings": {"warmth": 1}}', "'warmth' is not a"),
        ("[" * 100_000, "not JSON text: maximum recursion depth"),
        (
            '{"stepahead_chat": 1, "messages": [{"role": "user", "content": "\\ud800"},'
            '{"role": "assistant", "content": "x"}]}',
            "not a saved chat: .*surrogates",
        ),
    ],
)
def test_a_file_that_is_no_session_is_a_mistake_that_names_the_fault(
    content: str, fault: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.json"
    path.write_text(content)

    with pytest.raises(Mistake, match=fault):
        load(path, "file")


def test_a_session_that_is_not_there_or_cannot_be_written_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(Mistake, match="No such file"):
        load(tmp_path / "none.json", "none")
    with pytest.raises(Mistake, match="directory"):
        load(tmp_path, "folder")
    with pytest.raises(Mistake, match="/dev/zero is not a file"):
        load(Path("/dev/zero"), "endless")
    with pytest.raises(Mistake, match="no home for ~nobody-of-that-name"):
        path_of("~nobody-of-that-name/a.json")
    with pytest.raises(Mistake, match="cannot write"):
        save(Saved(Session(), {}, ""), tmp_path / "file" / "a.json")


def test_names_lie_in_the_state_folder_and_paths_where_they_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "stepahead" / "chats"

    assert saved_names() == []
    assert path_of("my-chat") == folder / "my-chat.json"
    assert path_of("./x") == Path("x")
    assert path_of("x.json") == Path("x.json")
    for name in ("..", "a b", ""):
        with pytest.raises(Mistake, match="no name"):
            path_of(name)
    for name in ("chat", "chat-2"):
        save(Saved(Session(), {}, ""), path_of(name))
    assert saved_names() == ["chat", "chat-2"]
    assert free_name("chat-2") == "chat-3"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.5", 0.5),
        ("max_tokens", "20", 20),
        ("max_tokens", "none", None),
        ("ignore_eos", "true", True),
        ("stop", '["a", "b"]', ("a", "b")),
        ("stop", "END", ("END",)),
        ("seed", "7", 7),
        ("logit_bias", '{"3": -1.5}', {3: -1.5}),
        ("stop", "[" * 100, ("[" * 100,)),
    ],
)
def test_a_setting_is_read_from_its_text(name: str, text: str, value: object) -> None:
    settings = Settings(options(max_tokens=5, temperature=0.1))

    settings.choose(name, text, SamplingParams())

    assert getattr(settings.params(SamplingParams()), name) == value


def test_a_setting_stands_before_an_option_and_an_option_before_the_model() -> None:
    model = SamplingParams(temperature=0.2, top_p=0.9, top_k=5)
    settings = Settings(options(temperature=0.5, top_p=0.8))

    settings.choose("temperature", "0.7", model)
    chosen = settings.params(model)
    settings.choose("temperature", "default", model)

    assert (chosen.temperature, chosen.top_p, chosen.top_k) == (0.7, 0.8, 5)
    assert settings.params(model).temperature == 0.5


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("temprature", "1", "did you mean temperature"),
        ("temperature", "-1", "temperature is -1"),
        ("top_p", "warm", "top_p is 'warm'"),
        ("max_tokens", "0", "max_tokens is 0"),
        ("n", "2", "one answer at a time"),
        ("stop", "[1]", "stop is"),
        ("temperature", "[" * 100_000, "temperature is"),
        ("logit_bias", '{"3a": 1}', "a token id of logit_bias is '3a'"),
    ],
)
def test_a_setting_without_meaning_is_refused_and_changes_nothing(
    name: str, text: str, fault: str
) -> None:
    settings = Settings(options())

    with pytest.raises(RequestRejected, match=fault):
        settings.choose(name, text, SamplingParams())

    assert settings.params(SamplingParams()) == SamplingParams()
