"""Asks an engine for its counts, over the socket that it serves them on."""

import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ...messages import DecodeError
from ...messages.codec import MAX_FRAME, pack, unpack
from ...messages.frames import HEAD, sealed, unsealed
from ..mistake import Mistake

TIMEOUT_S = 10.0  # an engine whose event loop is held up for longer is told as one
_QUESTION = sealed(pack(["stats"]))


class EngineGone(Exception):
    """Raised when the engine that was looked at has ended."""


class StatsClient:
    """One connection. Raises Mistake where there is no engine to connect to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(TIMEOUT_S)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise Mistake(
                f"no engine tells its stats on {path} ({error.strerror or error}); start one with "
                "--stats-socket"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def ask(self) -> dict[str, Any]:
        """The counts at this moment. Raises EngineGone, or Mistake where it is no engine."""
        try:
            self._socket.sendall(_QUESTION)
            head = self._receive(HEAD.size)
            length, _ = HEAD.unpack(head)
            if length > MAX_FRAME:
                raise DecodeError("the frame is too long")
            answer = unpack(unsealed(head, self._receive(length)))
        except TimeoutError:
            raise Mistake(f"the engine on {self._path} has not answered for 10 s") from None
        except OSError:
            raise EngineGone from None
        except DecodeError as error:
            raise Mistake(f"what answers on {self._path} is no engine: {error}") from error
        if not isinstance(answer, dict) or answer.get("version") != 1:
            raise Mistake(f"what answers on {self._path} is an engine of another version")
        return answer

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EngineGone
            data += piece
        return data
