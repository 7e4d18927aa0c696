"""The simulation: lives of whole engines, each given by a seed (tests/simulation)."""

from dataclasses import replace
from pathlib import Path

import pytest

from stepahead.actors.recording import read_recording, replay

from .simulation.draw import draw_script
from .simulation.life import Lived, Violation, live
from .simulation.report import report_failure
from .simulation.script import Operation, Script, Settings, Submit

SEEDS = 200


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """The lives of many seeds, in each of which everything held."""
    total = Lived()
    for seed in range(SEEDS):
        try:
            total.add(live(draw_script(seed)))
        except Violation:
            folder = tmp_path_factory.mktemp("violation")
            pytest.fail(f"seed {seed} fails:\n\n{report_failure(seed, folder)}", pytrace=False)
    return total


def test_everybody_gets_exactly_their_own_and_every_invariant_holds(lived: Lived) -> None:
    assert lived.steps > SEEDS * 50


def test_the_lives_are_rough_enough_to_see_every_end_and_preemptions(lived: Lived) -> None:
    expected = {"stop", "length", "abort", "timeout", "error", "refused", "given up", "dead"}
    assert set(lived.ends) == expected
    assert lived.preemptions > SEEDS


def test_a_quiet_life_has_a_plain_end() -> None:
    assert live(Script(Settings(), (Submit(name="r"),))).ends == {"length": 1}


def test_a_seed_gives_the_whole_life(tmp_path: Path) -> None:
    for name in ("one", "other"):
        live(draw_script(5), record=tmp_path / name)

    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


@pytest.mark.parametrize("seed", range(6))
def test_a_life_replays(seed: int, tmp_path: Path) -> None:
    script = draw_script(seed)
    script = replace(script, settings=replace(script.settings, drafts=()))
    live(script, record=tmp_path / "recording")

    assert replay(read_recording(tmp_path / "recording")).difference is None


def test_a_script_is_told_as_python_that_makes_it_again() -> None:
    script = draw_script(7)

    names = {cls.__name__: cls for cls in (*Operation.__subclasses__(), Script, Settings)}
    assert eval(str(script), names) == script
