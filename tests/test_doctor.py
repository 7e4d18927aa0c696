"""`engine-cli doctor`: what it finds, what it advises, and when it says that no engine can run."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stepahead.cli.doctor import machine, software
from stepahead.cli.doctor.command import report
from stepahead.cli.doctor.finding import Finding
from stepahead.cli.main import main
from stepahead.gpu.choices import auto_dtype, auto_quantization
from stepahead.gpu.cpu import choose_dtype
from stepahead.gpu.cuda import finding
from stepahead.gpu.native.compiling import NoCompiler, find_compiler
from stepahead.gpu.native.library import load_library
from stepahead.gpu.processor import Processor, read_processor

from .cli_process import piped

X86 = """processor\t: 0
model name\t: Some Processor
flags\t\t: fpu sse2 avx2 fma avx512f avx512_bf16 amx_bf16

processor\t: 1
model name\t: Some Processor
flags\t\t: fpu sse2
"""
ARM = """processor\t: 0
Features\t: fp asimd asimddp bf16 i8mm
CPU part\t: 0xd40
"""


def make_processor(*features: str) -> Processor:
    return Processor("Some Processor", "x86_64", frozenset(features), cores=2)


def cpuinfo(folder: Path, text: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(text)
    return path


def test_the_features_are_those_of_the_first_processor(tmp_path: Path) -> None:
    found = read_processor(cpuinfo(tmp_path, X86))

    assert found.name == "Some Processor"
    assert found.notable == ["AMX bfloat16", "AVX-512", "AVX-512 bfloat16", "AVX2", "FMA"]
    assert found.cores >= 1


def test_arm_lists_its_features_under_another_name(tmp_path: Path) -> None:
    found = read_processor(cpuinfo(tmp_path, ARM))

    assert found.notable == ["NEON", "NEON dot product", "int8 matrices", "bfloat16 matrices"]


def test_where_the_system_tells_nothing_nothing_is_known(tmp_path: Path) -> None:
    found = read_processor(tmp_path / "absent")

    assert found.features == frozenset()
    assert found.name


@pytest.mark.parametrize(
    ("features", "value", "why"),
    [
        (["avx2", "amx_bf16", "avx512_bf16"], "bfloat16", "AMX bfloat16"),
        (["avx512f", "avx512_bf16"], "bfloat16", "AVX-512 bfloat16"),
        (["asimd", "bf16"], "bfloat16", "bfloat16 matrices"),
        (["avx2", "fma"], "float32", "does not multiply bfloat16"),
        ([], "float32", "not known"),
    ],
)
def test_auto_picks_the_dtype_by_the_processor_and_says_why(
    features: list[str], value: str, why: str
) -> None:
    choice = auto_dtype(make_processor(*features))

    assert choice.value == value
    assert why in choice.why


def test_the_device_computes_in_what_the_doctor_says() -> None:
    (said,) = [f for f in machine.choices(read_processor()) if f.name == "dtype"]

    assert choose_dtype("auto") == said.values["auto"]


@pytest.mark.parametrize(
    ("features", "value", "why"),
    [
        (["avx512_vnni", "avx512_bf16", "amx_bf16"], "as packed", "AMX bfloat16"),
        (["avx2", "fma", "f16c", "avx512_vnni"], "as packed", "AVX-512 VNNI"),
        (["avx2", "fma", "f16c"], "as packed", "(AVX2)"),
        (["avx2", "fma"], "none", "neither AVX-512 VNNI nor AVX2"),
    ],
)
def test_auto_runs_quantised_weights_where_the_processor_is_fast_at_it(
    features: list[str], value: str, why: str
) -> None:
    choice = auto_quantization(make_processor(*features), has_compiler=True)

    assert choice.value == value
    assert why in choice.why
    assert auto_quantization(make_processor(*features), has_compiler=False).value == "none"


def test_the_native_decoder_runs_where_the_doctor_says() -> None:
    try:
        is_fast = load_library().stepahead_rate() > 0
    except NoCompiler:
        is_fast = False

    said = auto_quantization(read_processor(), has_compiler=find_compiler() is not None)

    assert is_fast == (said.value == "as packed")


def test_without_a_driver_there_is_no_gpu_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_driver", lambda: False)

    found = machine.gpu()

    assert (found.text, found.remedy) == ("none: there is no driver of NVIDIA's", None)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"capability": (9, 0)}, "A GPU, compute capability 9.0, CUDA 13.0: device auto is cuda"),
        ({"capability": (7, 5)}, "none that runs a model: A GPU has compute capability 7.5; 8.0"),
        ({"cuda_version": None}, "none that runs a model: torch 2.11.0 is built without CUDA"),
    ],
)
def test_a_gpu_is_told_of_with_what_auto_makes_of_it(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], text: str
) -> None:
    known: dict[str, Any] = {"torch_version": "2.11.0", "cuda_version": "13.0", "name": "A GPU"}
    monkeypatch.setattr(machine, "has_driver", lambda: True)
    monkeypatch.setattr(finding, "find_gpu", lambda: finding.GpuFacts(**(known | facts)))

    assert machine.gpu().text.startswith(text)


def test_a_cache_folder_is_where_the_user_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new" / "cache"))

    found = machine.cache()

    assert found.values["path"] == str(tmp_path / "new" / "cache" / "stepahead" / "native")
    assert found.remedy is None
    assert list(tmp_path.iterdir()) == []  # looking makes nothing


def test_a_cache_folder_in_a_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    found = machine.cache()

    assert found.remedy is not None
    assert str(tmp_path / "file") in found.remedy
    assert not found.is_fatal


def test_a_compiler_is_what_cc_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "mycc"
    compiler.write_text("#!/bin/sh\necho mycc 1.0\n")
    compiler.chmod(0o755)

    monkeypatch.setenv("CC", str(compiler))
    assert software.compiler().text == f"{compiler}, mycc 1.0"

    monkeypatch.setenv("CC", "/no/such/cc")
    found = software.compiler()
    assert found.values["path"] is None
    assert not found.is_fatal
    assert found.remedy is not None


def test_a_hub_id_is_not_looked_for() -> None:
    found, path = machine.model("owner/name")

    assert "hub id" in found.text
    assert (path, found.is_fatal) == (None, False)


def test_a_damaged_model_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")

    found, path = machine.model(str(file))

    assert found.is_fatal
    assert f"{file} is truncated" in found.text
    assert path is None


def test_what_is_to_be_done_comes_last_and_what_stands_in_the_way_is_marked() -> None:
    findings = [
        Finding("model", "not installed", remedy="pip install it", is_fatal=True),
        Finding("cache", "/", remedy="make it writable"),
        Finding("torch", "2 threads"),
    ]

    lines = report(findings, can_run=False).splitlines()

    assert lines[3:] == [
        "! model: pip install it",
        "- cache: make it writable",
        "no engine can run here yet",
    ]


def test_a_machine_that_runs_engines_is_told_so_on_one_screen() -> None:
    done = piped("doctor")

    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-1] == "an engine can run here"
    assert len(lines) <= 24
    names = [line.split()[0] for line in lines]
    assert names[:6] == [
        "engine",
        "libraries",
        "torch",
        "processor",
        "dtype",
        "quantization",
    ]


def test_the_report_is_one_json_object_for_programs() -> None:
    done = piped("doctor", "--json", "--model", "no-such-model")

    said = json.loads(done.stdout)
    assert (done.returncode, said["can_run"]) == (1, False)
    assert said["model"]["is_fatal"]
    assert "no-such-model" in said["model"]["text"]
    assert said["processor"]["cores"] == len(os.sched_getaffinity(0))
    assert said["dtype"]["auto"] in ("float32", "bfloat16")


def test_output_that_cannot_hold_every_letter_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with open(tmp_path / "out", "w", encoding="ascii") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        found = software.terminal({})

    assert found.values["encoding"] == "ascii"
    assert found.remedy is not None
    assert "UTF-8" in found.remedy


def test_a_mistake_in_the_options_is_not_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--modle", "x"]) == 2
    assert "--modle" in capsys.readouterr().err
