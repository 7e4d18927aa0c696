"""Compile every build of every kernel and refuse what is unfit.

Run `python -m stepahead.gpu.kernels.gate`.

Prints the table of docs/kernels.md, or writes it into the file that is named. Exit code 1 if a
build spills, wants more than a multiprocessor has, or lacks the instructions it is written for.
"""

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

import triton

from . import __path__ as kernels_path
from .build import Build
from .machine_code import MachineCode, compile_build

BEGIN, END = "<!-- begin: made by the gate -->", "<!-- end: made by the gate -->"


def builds() -> Iterator[Build]:
    """What every file of this folder ships."""
    for module in sorted(pkgutil.iter_modules(kernels_path), key=lambda found: found.name):
        if module.name != "gate" and not module.ispkg:
            yield from getattr(
                importlib.import_module(f"{__package__}.{module.name}"), "BUILDS", ()
            )


def judged() -> Iterator[tuple[MachineCode, list[str]]]:
    """Every build for every capability it is for, and what is wrong with it."""
    for build in builds():
        for capability in build.capabilities:
            code = compile_build(build, capability)
            yield code, code.faults(build)


def table(codes: list[MachineCode]) -> str:
    lines = [
        f"Compiled with Triton {triton.__version__}.",
        "",
        "| kernel | build | sm | warps | registers | shared memory, B | tensor-core instructions "
        "(of a warp group) | 128-bit accesses |",
        "| --- | --- | --: | --: | --: | --: | --: | --: |",
    ]
    for code in codes:
        cores = f"{code.tensor_core_instructions} ({code.warp_group_instructions})"
        lines.append(
            f"| `{code.kernel}` | {code.build} | {code.capability} | {code.num_warps} "
            f"| {code.registers} | {code.shared_bytes:,} | {cores} | {code.wide_accesses} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    codes, is_fit = [], True
    for code, faults in judged():
        codes.append(code)
        for fault in faults:
            is_fit = False
            print(f"{code.kernel} ({code.build}) on sm_{code.capability}: {fault}", file=sys.stderr)
    if not arguments:
        print(table(codes), end="")
    else:
        file = Path(arguments[0])
        head, _, rest = file.read_text().partition(BEGIN)
        _, _, tail = rest.partition(END)
        file.write_text(f"{head}{BEGIN}\n\n{table(codes)}\n{END}{tail}")
    return 0 if is_fit else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
