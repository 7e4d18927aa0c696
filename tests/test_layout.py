"""The shape of the repository: which folders there are, and which may import which."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "messages": set[str](),
    "kvpool": {"messages"},
    "gpu": {"messages"},
    "actors": {"messages", "kvpool", "gpu"},
    "cli": {"messages", "kvpool", "gpu", "actors"},
}
LIBRARIES_KEPT_OUT = {
    "messages": {"asyncio", "anyio", "torch", "transformers"},
    "kvpool": {"asyncio", "anyio", "torch", "transformers"},
    "gpu": {"asyncio", "anyio"},
    "actors": set[str](),
    "cli": {"anyio"},
}
SETUPTOOLS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
    "setuptools"
]


def sources(folder: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path, ast.parse(path.read_text(), filename=str(path))


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """How many dots an import begins with, and the first name after them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            targets = [node.module] if node.module else [alias.name for alias in node.names]
            for target in targets:
                yield node.level, target.partition(".")[0]


def floors_imported(path: Path, tree: ast.Module) -> set[str]:
    """The folders that a file reaches: relatively, by as many dots as lead above its own folder."""
    above = len(path.relative_to(ROOT).parts)
    return {name for dots, name in imported(tree) if dots == above and name in MAY_IMPORT}


def libraries_imported(tree: ast.Module) -> set[str]:
    return {name for dots, name in imported(tree) if dots == 0}


def test_every_folder_is_mapped_for_the_build_and_linked_for_the_checkout() -> None:
    mapping = {"stepahead": "stepahead"} | {f"stepahead.{name}": name for name in MAY_IMPORT}

    assert SETUPTOOLS["package-dir"] == mapping
    for name in MAY_IMPORT:
        assert (ROOT / "stepahead" / name).readlink() == Path("..", name)


def test_the_listed_packages_are_exactly_those_that_exist() -> None:
    folders = [path for name in MAY_IMPORT for path in (ROOT / name).rglob("__init__.py")]
    names = {".".join(path.parent.relative_to(ROOT).parts) for path in folders}

    assert set(SETUPTOOLS["packages"]) == {"stepahead"} | {f"stepahead.{name}" for name in names}


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_every_folder_with_code_is_a_package(folder: str) -> None:
    for path, _ in sources(folder):
        assert (path.parent / "__init__.py").is_file(), f"{path.parent} lacks an __init__.py"


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_only_go_down(folder: str) -> None:
    for path, tree in sources(folder):
        upward = floors_imported(path, tree) - MAY_IMPORT[folder]

        assert not upward, f"{path}: {folder}/ may not import {upward}"


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_the_package_imports_itself_only_relatively(folder: str) -> None:
    for path, tree in sources(folder):
        absolute = libraries_imported(tree) & {*MAY_IMPORT, "stepahead"}

        assert not absolute, f"{path}: import {absolute} relatively"


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_each_floor_keeps_out_the_libraries_that_are_not_its_business(folder: str) -> None:
    for path, tree in sources(folder):
        strange = libraries_imported(tree) & LIBRARIES_KEPT_OUT[folder]

        assert not strange, f"{path}: {folder}/ may not import {strange}"


@pytest.mark.parametrize(
    ("line", "floors"),
    [
        ("from ..messages import Abort", {"messages"}),
        ("from .. import gpu", {"gpu"}),
        ("from .messages import Abort", set()),
        ("def f():\n    from ..actors.engine import Engine", {"actors"}),
    ],
)
def test_the_check_sees_every_way_to_import_a_floor(line: str, floors: set[str]) -> None:
    assert floors_imported(ROOT / "kvpool" / "pool.py", ast.parse(line)) == floors
