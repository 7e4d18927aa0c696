"""A unix socket on which a running engine tells its counts to whoever asks, frame by frame.

Each frame is its payload's length and CRC-32 and the payload in msgpack, as in a recording. A
client sends `["stats"]` and gets a map, as often as it asks; an engine that nobody asks does
nothing for it. The socket belongs to its owner alone (0600).
"""

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from ..messages import ConfigError, DecodeError
from ..messages.codec import pack, unpack
from ..messages.frames import HEAD, sealed, unsealed
from .loop_lag import LoopLag

QUESTION = ["stats"]
MAX_QUESTION = 64  # bytes of a payload
VERSION = 1

Counts = Callable[[], Mapping[str, object]]


class StatsSocket:
    """Answers on a path until it is closed; then the path is free again."""

    def __init__(self, path: Path, counts: Counts) -> None:
        self._path = path
        self._counts = counts
        self._lag = LoopLag()
        self._clients: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._inode: int | None = None  # of the socket's file

    @classmethod
    async def open(cls, path: str | Path, counts: Counts) -> Self:
        """Listen. Raises ConfigError where that is not possible."""
        opened = cls(Path(path), counts)
        listener = _bound(opened._path)
        opened._inode = _inode(opened._path)
        opened._server = await asyncio.start_unix_server(opened._serve, sock=listener)
        return opened

    async def close(self) -> None:
        """Let every client go, and remove the socket, unless the path is somebody else's now."""
        if self._server is None:
            return
        self._server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        if _inode(self._path) == self._inode:
            os.unlink(self._path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        self._lag.start()
        try:
            while await _asked(reader):
                writer.write(sealed(pack(self._frame())))
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass  # it has left, or it is to leave
        finally:
            self._clients.discard(task)
            if not self._clients:
                self._lag.stop()
            writer.close()

    def _frame(self) -> dict[str, object]:
        lag = {"loop_lag_s": self._lag.take(), "pid": os.getpid()}
        return {"version": VERSION, **self._counts(), **lag}


def check_free(place: str | Path | None) -> None:
    """Raise ConfigError where no engine can serve on this path, before anything takes long."""
    if place is None:
        return
    path = Path(place)
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError("stats_socket needs unix sockets, which this system does not have")
    if len(os.fsencode(path)) > 100:
        raise ConfigError(f"stats_socket is {str(path)!r}; a socket's path has 100 bytes at most")
    if not path.parent.is_dir():
        raise ConfigError(f"stats_socket is {str(path)!r}; there is no folder {path.parent}")
    _clear(path)


def _bound(path: Path) -> socket.socket:
    """A socket that nobody else may connect to: its mode is set before it listens."""
    check_free(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror}") from error
    return listener


def _clear(path: Path) -> None:
    """Remove a socket that an engine left behind when it died. Raises ConfigError for others."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot listen on {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"stats_socket is {str(path)!r}, which is there and no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        refusal = probe.connect_ex(str(path))
    if refusal != errno.ECONNREFUSED:
        raise ConfigError(f"another engine serves its stats on {path}; give another path")
    with suppress(FileNotFoundError):
        path.unlink()


def _inode(path: Path) -> int | None:
    """Which file is there now."""
    try:
        return path.lstat().st_ino
    except OSError:
        return None


async def _asked(reader: asyncio.StreamReader) -> bool:
    """Wait for the next question; False where the client has left, or asks nonsense."""
    try:
        head = await reader.readexactly(HEAD.size)
        length, _ = HEAD.unpack(head)
        if length > MAX_QUESTION:
            return False
        return bool(unpack(unsealed(head, await reader.readexactly(length))) == QUESTION)
    except (asyncio.IncompleteReadError, DecodeError):
        return False
