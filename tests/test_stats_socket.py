"""The socket on which a running engine tells its counts, and `engine-cli top`, which asks there."""

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import termios
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepahead import ConfigError, Engine, SamplingParams
from stepahead.actors.loop_lag import LoopLag
from stepahead.cli.mistake import Mistake
from stepahead.cli.top.client import EngineGone, StatsClient
from stepahead.cli.top.view import Reading, line, screen

from .cli_process import COMMAND, GOES_ON, Terminal, environment, heed_interrupts, piped
from .engines import make_engine

LONG = SamplingParams(max_tokens=40, ignore_eos=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stats"


def with_engine(path: Path, story: Callable[[Engine], Coroutine[None, None, None]]) -> None:
    """Run a story beside a live engine, in an ordinary event loop."""

    async def run() -> None:
        async with make_engine(stats_socket=path) as engine:
            await story(engine)

    asyncio.run(run())


async def asked(path: Path) -> dict[str, Any]:
    def ask() -> dict[str, Any]:
        with StatsClient(path) as client:
            return client.ask()

    return await asyncio.to_thread(ask)


def test_an_engine_tells_its_counts_while_it_works_and_after(path: Path) -> None:
    async def story(engine: Engine) -> None:
        answer = engine.stream("hello", LONG)
        await anext(answer)
        await engine.pause()  # so that it is still there, however long the question takes
        during = await asked(path)
        await engine.resume()
        await answer.result()
        after = await asked(path)

        assert (during["running"], during["live_requests"], during["state"]) == (1, 1, "running")
        assert during["blocks_held"] > 0
        assert 0 < during["completion_tokens"] < after["completion_tokens"] == 40
        assert (after["running"], after["requests_finished"], after["pid"]) == (0, 1, os.getpid())
        assert after["loop_lag_s"] >= 0

    with_engine(path, story)


def test_the_socket_is_its_owners_alone_and_goes_with_the_engine(path: Path) -> None:
    async def story(_: Engine) -> None:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600

    with_engine(path, story)
    assert not path.exists()


def test_a_socket_that_a_dead_engine_left_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))

    async def story(_: Engine) -> None:
        assert (await asked(path))["state"] == "running"

    with_engine(path, story)


def test_a_path_that_is_taken_is_not_taken_away(path: Path) -> None:
    async def story(_: Engine) -> None:
        with pytest.raises(ConfigError, match="another engine"):
            await make_engine(stats_socket=path).start()
        assert (await asked(path))["state"] == "running"

    with_engine(path, story)

    path.write_text("a file")
    with pytest.raises(ConfigError, match="no socket"):
        with_engine(path, story)
    assert path.read_text() == "a file"


@pytest.mark.parametrize(
    ("place", "fault"), [("/no/such/folder/x", "no folder"), ("/tmp/" + "x" * 120, "100 bytes")]
)
def test_a_path_that_cannot_be_is_refused_before_the_model_loads(place: str, fault: str) -> None:
    async def start() -> None:
        await make_engine(stats_socket=Path(place)).start()

    with pytest.raises(ConfigError, match=fault):
        asyncio.run(start())


@pytest.mark.parametrize("nonsense", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 40, b"\x01"])
def test_whoever_asks_nonsense_is_let_go_and_nobody_else_notices(
    path: Path, nonsense: bytes
) -> None:
    async def story(_: Engine) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(nonsense)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        assert (await asked(path))["state"] == "running"

    with_engine(path, story)


def test_a_client_is_told_when_the_engine_ends(path: Path) -> None:
    clients: list[StatsClient] = []

    async def story(_: Engine) -> None:
        clients.append(await asyncio.to_thread(StatsClient, path))
        await asyncio.to_thread(clients[0].ask)

    with_engine(path, story)
    with clients[0] as client, pytest.raises(EngineGone):
        client.ask()
    with pytest.raises(Mistake, match="--stats-socket"):
        StatsClient(path)


def test_a_loop_that_is_held_up_is_told_as_late() -> None:
    async def run() -> None:
        lag = LoopLag()
        lag.start()
        time.sleep(0.08)  # noqa: ASYNC251  # this holds it up
        assert lag.take() > 0.02
        lag.stop()
        assert lag.take() == 0

    asyncio.run(run())


COUNTS = {
    "model": "toy",
    "device": "cpu",
    "state": "running",
    "pid": 7,
    "running": 3,
    "waiting": 2,
    "steps_in_flight": 2,
    "preemptions": 1,
    "blocks_held": 30,
    "blocks_total": 120,
    "blocks_cached": 50,
    "requests_finished": 10,
    "completion_tokens": 1_000,
    "steps_done": 100,
    "loop_lag_s": 0.0015,
    "seconds_since_progress": 0.003,
}


def test_two_looks_make_rates() -> None:
    now = {**COUNTS, "completion_tokens": 1_246, "steps_done": 160, "requests_finished": 12}

    reading = Reading.between(COUNTS, now, 2.0)

    assert line(reading) == (
        "running 3, waiting 2, blocks 30 of 120, 123.0 tok/s, 30.0 steps/s, lag 1.5 ms"
    )
    assert "blocks    [#####               ] 30 of 120 held" in screen(reading, 100)
    assert max(map(len, screen(reading, 20))) == 20
    assert reading.fields()["requests_per_s"] == 1.0


@pytest.fixture
def served(path: Path) -> Iterator[Path]:
    """The socket of an engine in a process of its own, which waits for input."""
    words = [*COMMAND, "chat", "--device", "simulated", "--stats-socket", str(path)]
    home = path.parent
    with Terminal(*words[len(COMMAND) :], env=environment(home)) as chat:
        chat.wait_for("\n>>>")
        yield path
        chat.send("\x04")
        assert chat.exit_code() == 0


ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


def test_top_shows_one_picture_on_a_terminal_and_lines_in_a_pipe(served: Path) -> None:
    once = piped("top", str(served), "--once", "--interval", "0.05")
    as_json = piped("top", str(served), "--once", "--interval", "0.05", "--json")
    with subprocess.Popen(
        [*COMMAND, "top", str(served), "--interval", "0.05"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(60) == 130
    with looking_at(served) as terminal:
        for _ in range(3):
            terminal.wait_for("event loop")
        terminal.resize(20, rows=5)
        terminal.wait_for("cached    0 blocksengine    simulated\nbatch")  # five rows, from the top
        terminal.send("\x03")
        assert terminal.exit_code() == 130

    assert (once.returncode, once.stderr) == (0, "")
    assert "simulated on simulated, running" in once.stdout
    assert "\x1b" not in once.stdout
    assert json.loads(as_json.stdout)["tokens_per_s"] == 0
    assert all(text.startswith("running 0, waiting 0, blocks 0 of 4096") for text in lines)
    assert terminal.raw.count("\x1b[H") >= 4


def looking_at(path: Path, command: tuple[str, ...] = COMMAND) -> Terminal:
    words, env = ("top", str(path), "--interval", "0.05"), environment(path.parent)
    return Terminal(*words, env=env, command=command, columns=40)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda terminal: terminal.send("q"), 0),
        (lambda terminal: terminal.send("\x03"), 130),
        (lambda terminal: terminal.process.terminate(), 143),
    ],
    ids=["q", "ctrl-c", "terminated"],
)
def test_however_top_ends_the_terminal_is_as_before_but_for_the_last_picture(
    end: Callable[[Terminal], None], code: int, served: Path
) -> None:
    with looking_at(served) as terminal:
        terminal.wait_for("event loop")
        assert not terminal.modes()[3] & termios.ECHO
        end(terminal)
        assert terminal.exit_code() == code
        assert terminal.modes() == terminal.modes_before

    own, behind = terminal.raw.split(LEAVE)
    assert own.startswith(ENTER)
    assert behind.startswith("engine")
    assert behind.rstrip().count("\n") == 7


def test_ctrl_z_gives_the_terminal_back_until_top_goes_on(served: Path) -> None:
    with looking_at(served, command=(*GOES_ON, *COMMAND)) as terminal:
        terminal.wait_for("event loop")
        terminal.send("\x1a")
        terminal.wait_for("(in the shell)")
        terminal.wait_for("event loop")
        terminal.send("q")
        terminal.wait_for("(again)")

    _, first, second = terminal.raw.split(ENTER)
    assert "(in the shell)" in first.split(LEAVE)[1]
    assert "engine" in second.split(LEAVE)[1]
    assert terminal.raw.count(LEAVE) == 2


def test_top_without_an_engine_is_a_mistake(path: Path) -> None:
    done = piped("top", str(path))

    assert (done.returncode, done.stdout) == (2, "")
    assert "start one with --stats-socket" in done.stderr
