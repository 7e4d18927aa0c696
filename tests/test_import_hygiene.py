"""Importing the package changes nothing in the program that imports it."""

import json
import subprocess
import sys

import stepahead

SURVEY = """
import json, locale, logging, os, signal, sys, threading, warnings
import torch

def survey():
    root = logging.getLogger()
    return {
        "handlers": [repr(handler) for handler in root.handlers],
        "level": root.level,
        "disabled": logging.root.manager.disable,
        "signals": {int(s): repr(signal.getsignal(s)) for s in signal.valid_signals()},
        "environment": dict(os.environ),
        "threads": [thread.name for thread in threading.enumerate()],
        "warnings": [repr(entry) for entry in warnings.filters],
        "hooks": [repr(sys.excepthook), repr(sys.displayhook), repr(threading.excepthook)],
        "path": list(sys.path),
        "locale": locale.setlocale(locale.LC_ALL),
        "torch": [
            str(torch.get_default_dtype()), str(torch.get_default_device()),
            torch.get_num_threads(), torch.get_num_interop_threads(), torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),
            torch.initial_seed(),
        ],
    }
"""
IMPORT_ALL = """
import importlib, pkgutil
import stepahead
names = [m.name for m in pkgutil.walk_packages(stepahead.__path__, "stepahead.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
for name in stepahead.__all__:
    getattr(stepahead, name)
"""


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_importing_the_package_loads_neither_torch_nor_transformers() -> None:
    loaded = python("import sys, stepahead; print(*sys.modules)").split()

    assert not {"torch", "transformers", "numpy", "asyncio"} & set(loaded)


def test_the_names_of_values_load_neither_torch_nor_transformers() -> None:
    loaded = python("import sys; from stepahead import *; print(*sys.modules)").split()

    assert not {"torch", "transformers"} & set(loaded)


def test_importing_every_module_changes_nothing_around_it() -> None:
    code = f"{SURVEY}\nbefore = survey()\n{IMPORT_ALL}\nprint(json.dumps([before, survey()]))"

    before, after = json.loads(python(code))

    assert after == before


def test_the_public_names_are_exactly_those_listed() -> None:
    public = {name for name in dir(stepahead) if not name.startswith("_")}

    assert public == set(stepahead.__all__)
    assert sorted(stepahead.__all__) == stepahead.__all__
    assert all(getattr(stepahead, name).__name__ == name for name in stepahead.__all__)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    assert not hasattr(stepahead, "Scheduler")
