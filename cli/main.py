"""`engine-cli`: finds the command, and turns what went wrong into an exit code.

0 done; 1 a fault, with its traceback; 2 the user's mistake, one line on stderr; 130 interrupted.
"""

import errno
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from threading import current_thread, main_thread

import click

from .. import __version__
from .mistake import INTERRUPTED, Interrupted
from .output import ReaderGone, drop_stdout
from .standard_streams import open_closed_streams, show_what_can_be_shown

DONE, FAULT, MISTAKE = 0, 1, 2

_COMMANDS = (
    "chat",
    "generate",
    "bench",
    "simulate",
    "replay",
    "explain",
    "trace",
    "top",
    "models",
    "doctor",
)


class Commands(click.Group):
    """Imports a command's module when the command is used, so that `--version` is instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f".{cmd_name}", __package__), cmd_name)
        return command


@click.group(
    cls=Commands,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="engine-cli", message="%(prog)s %(version)s")
def engine_cli() -> None:
    """An LLM inference engine that lives inside your asyncio program, on the command line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    _outlive_dump_signals()
    open_closed_streams()
    show_what_can_be_shown()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = engine_cli.main(args=words, prog_name="engine-cli", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as mistake:
        return _complain(_with_help(mistake))
    except (Interrupted, click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (ReaderGone, BrokenPipeError):
        drop_stdout()
        return DONE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return _report(error)
        drop_stdout()
        _complain("there is no space left to write the answer to")
        return FAULT
    except Exception as error:
        return _report(error)
    return code if isinstance(code, int) else DONE


def _outlive_dump_signals() -> None:
    """SIGUSR1 asks for the last messages (see flight.py); before there are any, it ends nothing."""
    number = getattr(signal, "SIGUSR1", None)
    if number is not None and current_thread() is main_thread():
        signal.signal(number, lambda *_: None)


def _report(error: Exception) -> int:
    from ..messages import EngineDead, RequestFailed, StepaheadError

    if isinstance(error, StepaheadError) and not isinstance(error, (EngineDead, RequestFailed)):
        return _complain(str(error))
    traceback.print_exception(error)
    return FAULT


def _with_help(mistake: click.ClickException) -> str:
    message = mistake.format_message().rstrip(".")
    if isinstance(mistake, click.UsageError) and mistake.ctx is not None:
        return f"{message}; see {mistake.ctx.command_path} --help"
    return message


def _complain(message: str) -> int:
    print(f"engine-cli: {' '.join(message.split())}", file=sys.stderr)
    return MISTAKE
