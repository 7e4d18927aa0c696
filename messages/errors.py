"""Every exception the engine raises on purpose.

StepaheadError
├── ConfigError            the options contradict each other, the model or the machine
├── ModelError             model files are missing, unsupported or corrupt
├── RequestError           one request failed; the engine goes on
│   ├── RequestRejected    it can never be served (too long, empty, bad sampling options)
│   ├── EngineOverloaded   it could be served later
│   └── RequestFailed      it was accepted and then failed
├── EngineDead             an actor failed; no request will finish
└── DecodeError            a frame was not a message

A message says what was wrong, what was given and what would be right, in one sentence.
"""


class StepaheadError(Exception):
    """The root of the tree: everything the engine raises on purpose."""


class ConfigError(StepaheadError):
    """Raised when options contradict each other, the model or the machine."""


class ModelError(StepaheadError):
    """Raised when a model's files are missing, unsupported or corrupt."""


class RequestError(StepaheadError):
    """Raised when one request failed; the engine and its other requests go on."""


class RequestRejected(RequestError):
    """Raised when a request can never be served as it was given."""


class EngineOverloaded(RequestError):
    """Raised when the waiting queue is full or the engine drains; the request could be served
    later."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds until it is worth trying again


class RequestFailed(RequestError):
    """Raised when a request that had been accepted failed while it was running."""

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text  # what had been generated until then


class EngineDead(StepaheadError):
    """Raised when an actor failed, with its exception as the cause; also to later callers."""


class DecodeError(StepaheadError):
    """Raised when bytes are not a message of this engine."""
