"""Compile a build ahead of time, without a GPU, and read what the compiler and assembler made.

Registers, shared memory and the stack are the assembler's word on the finished machine code;
instructions are counted in the PTX that it was given, which names them one for one.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .build import Build

_SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024}  # bytes that one block may have
_REGISTERS = 65_536  # of a multiprocessor: a block that wants more never starts
_THREADS_PER_WARP = 32
_WIDE = r"\b(?:ld|st)\.global\S*\.v4\.b32|\bcp\.async\.\S+ [^;]*, 0x10\b"
_LOOP = re.compile(r"^( *)(?:\S.* = )?scf\.for .*\n((?:\1 .*\n)*)", re.MULTILINE)
_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@dataclass(frozen=True, slots=True)
class MachineCode:
    """What the assembler reports of one build for one compute capability."""

    kernel: str
    build: str
    capability: int
    num_warps: int
    registers: int  # per thread
    shared_bytes: int  # per block
    stack_bytes: int  # per thread; more than none is a spill
    local_accesses: int  # instructions that load from or store to memory of a thread's own
    tensor_core_instructions: int  # of one warp (mma) and, on 90, of a warp group (wgmma)
    warp_group_instructions: int
    wide_accesses: int  # instructions that move 128 bits of global memory
    idle_loops: int  # loops that wait for all that they have asked memory for

    def faults(self, build: Build) -> list[str]:
        """What makes this build unfit to ship; none if it is fit."""
        faults = []
        if self.stack_bytes or self.local_accesses:
            faults.append(f"spills: {self.stack_bytes} B, {self.local_accesses} local accesses")
        if self.shared_bytes > _SHARED_MEMORY[self.capability]:
            faults.append(f"{self.shared_bytes} B of shared memory")
        if self.registers * self.num_warps * _THREADS_PER_WARP > _REGISTERS:
            faults.append(f"{self.registers} registers in each of {self.num_warps} warps")
        if build.uses_tensor_cores and not self.tensor_core_instructions:
            faults.append("no tensor-core instruction")
        if build.uses_warp_groups and not self.warp_group_instructions:
            faults.append("no tensor-core instruction of a warp group")
        if build.moves_wide and not self.wide_accesses:
            faults.append("no access of 128 bits")
        if build.loads_ahead and self.idle_loops:
            faults.append(f"{self.idle_loops} loops wait for memory before they ask for more")
        return faults


def compile_build(build: Build, capability: int) -> MachineCode:
    """The whole pipeline down to machine code, as a launch on that capability would run it."""
    signature = dict(build.types) | dict.fromkeys(build.constants, "constexpr")
    names = build.kernel.arg_names
    source = ASTSource(
        fn=build.kernel,
        signature={name: signature[name] for name in names},
        constexprs=dict(build.constants),
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in build.aligned},
    )
    target = GPUTarget("cuda", capability, _THREADS_PER_WARP)
    compiled = triton.compile(source, target=target, options=dict(build.options))
    usage, ptx = _resource_usage(compiled.asm["cubin"]), compiled.asm["ptx"]
    warp_group = len(re.findall(r"\bwgmma\.mma_async", ptx))
    return MachineCode(
        kernel=build.kernel.__name__,
        build=build.name,
        capability=capability,
        num_warps=compiled.metadata.num_warps,
        registers=int(usage["REG"]),
        shared_bytes=compiled.metadata.shared,
        stack_bytes=int(usage["STACK"]) + int(usage["LOCAL"]),
        local_accesses=len(re.findall(r"\b(?:ld|st)\.local\b", ptx)),
        tensor_core_instructions=len(re.findall(r"\bmma\.sync", ptx)) + warp_group,
        warp_group_instructions=warp_group,
        wide_accesses=len(re.findall(_WIDE, ptx)),
        idle_loops=_idle_loops(compiled.asm["ttgir"]),
    )


def _idle_loops(code: str) -> int:
    """Loops of Triton's GPU code that wait until no copy to shared memory is under way."""
    loops: list[tuple[str, str]] = _LOOP.findall(code)
    return sum("ttg.async_wait" in body and "{num = 0 : i32}" in body for _, body in loops)


def _resource_usage(cubin: bytes) -> dict[str, str]:
    """Registers, stack and local memory of a thread by name."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_CUOBJDUMP), "--dump-resource-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", done.stdout))
