"""Builds the libraries of a CUDA that computes nothing, in place of those that torch brings.

What the real ones export and these do not have is there too: of the runtime as a call that says so
and fails, of cuBLAS as one that does nothing.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
RUNTIME, DRIVER = "libcudart.so.13", "libcuda.so.1"
BLAS = ("libcublas.so.13", "libcublasLt.so.13")
PRELOADED = (RUNTIME, *BLAS)

_QUEUES = re.compile("emm|emv|trsm|dot", re.IGNORECASE)  # products, by what a handle points to
_MADE = "int {name}(void **out) {{ *out = calloc(1, 1024); return 0; }}"
_ASKED = "int {name}(void *handle, int *out) {{ *out = 0; return 0; }}"
_BLAS = {
    "cublasCreate_v2": _MADE,
    "cublasLtCreate": _MADE,
    "cublasLtMatmulDescCreate": _MADE,
    "cublasLtMatrixLayoutCreate": _MADE,
    "cublasLtMatmulPreferenceCreate": _MADE,
    "cublasGetMathMode": _ASKED,
    "cublasGetPointerMode_v2": _ASKED,
    "cublasLtGetVersion": "size_t {name}(void) {{ return 130100; }}",
    "cublasGetVersion_v2": "int {name}(void *handle, int *out) {{ *out = 130100; return 0; }}",
    "cublasSetStream_v2": "int {name}(void **handle, void *s) {{ *handle = s; return 0; }}",
    "cublasLtMatmulAlgoGetHeuristic": "int {name}(void *a, void *b, void *c, void *d, void *e, "
    "void *f, void *g, int h, void *out, int *n) {{ memset(out, 0, 64); *n = 1; return 0; }}",
    "cublasLtMatmul": "int {name}(void *a, void *b, void *c, void *d, void *e, void *f, void *g, "
    "void *h, void *i, void *j, void *k, void *l, void *m, void *n, size_t o, void *stream) "
    '{{ return null_cuda_library("{name}", stream) ? 13 : 0; }}',
}


def lacking(packages: Path) -> str | None:
    """What is not there to build with, and where it comes from; None where all of it is."""
    if sys.platform != "linux":
        return "it stands in for the libraries of Linux"
    for tool, where in (("cc", "a C compiler"), ("nm", "binutils")):
        if shutil.which(tool) is None:
            return f"{tool} is not there; install {where}"
    if not (packages / "nvidia/cu13/lib" / RUNTIME).exists():
        return "torch is not one with CUDA 13; `make check-gpu` installs it in a place of its own"
    return None


def build(packages: Path, out: Path) -> None:
    """Write them to `out`; `packages` is where torch, Triton and NVIDIA's libraries lie."""
    out.mkdir(parents=True, exist_ok=True)
    real = packages / "nvidia/cu13"
    includes = [real / "include", packages / "triton/backends/nvidia/include"]
    sources = sorted(HERE.glob("*.c"))
    own = {name for source in sources for name in re.findall(r"\b\w+(?=\()", source.read_text())}
    missing = sorted(_exports(real / "lib" / RUNTIME) - own)
    rest = _written(out / "rest.c", "#include <stdio.h>\n", map(_refused, missing))
    _link(out / RUNTIME, [*sources, rest], includes)
    # Who looks into the driver finds what it is linked with.
    _link(
        out / DRIVER, [_written(out / "empty.c", "", ())], (), "-Wl,--no-as-needed", out / RUNTIME
    )
    begin = (
        "#include <stdlib.h>\n#include <string.h>\nint null_cuda_library(const char *, void *);\n"
    )
    for name in BLAS:
        calls = map(_of_blas, sorted(_exports(real / "lib" / name)))
        _link(out / name, [_written(out / f"{name}.c", begin, calls)], (), out / RUNTIME)


def _exports(library: Path) -> set[str]:
    told = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    lines = (line.split() for line in told.stdout.splitlines())
    return {line[2].split("@")[0] for line in lines if line[1] in "TW"}


def _refused(name: str) -> str:
    said = f'fprintf(stderr, "null cuda: {name} is not there\\n")'
    return f"int {name}(void) {{ {said}; return 801; }}"


def _of_blas(name: str) -> str:
    if name in _BLAS:
        return _BLAS[name].format(name=name)
    if _QUEUES.search(name) and "Lt" not in name:
        return f'int {name}(void **h) {{ return null_cuda_library("{name}", *h) ? 13 : 0; }}'
    return f"int {name}(void) {{ return 0; }}"


def _written(path: Path, begin: str, lines: Iterable[str]) -> Path:
    path.write_text(begin + "\n".join(lines) + "\n")
    return path


def _link(
    library: Path, sources: Sequence[Path], includes: Sequence[Path], *more: str | Path
) -> None:
    versions = library.with_suffix(".map")  # who was linked with the real one asks for its name
    versions.write_text(f"{library.name} {{ global: *; }};\n")
    flags = ["-O2", "-w", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    where = [f"-I{folder}" for folder in includes]
    subprocess.run(
        ["cc", *flags, f"-Wl,--version-script={versions}", *where, "-o", library, *sources, *more],
        check=True,
    )


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
