"""Builds the libraries and runs the checks on them; arguments go on to pytest.

Behind `--` they go on to Python instead: `-- -m stepahead.actors.gpu_bench doctor`.
"""

import os
import sys
import sysconfig
from pathlib import Path

from .build import PRELOADED, build, lacking

HERE = Path(__file__).parent
_SETTINGS = (f"testpaths={HERE}", "python_files=check_*.py", "filterwarnings=")
_PYTEST = ("-m", "pytest", *(part for setting in _SETTINGS for part in ("-o", setting)))


def main() -> None:
    libraries = Path(sys.prefix) / "null_cuda"
    packages = Path(sysconfig.get_paths()["purelib"])
    if (lack := lacking(packages)) is not None:
        print(f"null cuda: {lack}", file=sys.stderr)
        sys.exit(2)
    build(packages, libraries)
    changes = {
        "LD_LIBRARY_PATH": str(libraries),
        "LD_PRELOAD": " ".join(PRELOADED),  # by name: a path with a space would be two
        "TRITON_LIBCUDA_PATH": str(libraries),
    }
    arguments = sys.argv[1:]
    command = arguments[1:] if arguments[:1] == ["--"] else [*_PYTEST, *arguments]
    os.execve(sys.executable, [sys.executable, *command], os.environ | changes)


if __name__ == "__main__":
    main()
