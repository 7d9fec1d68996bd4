"""The search itself: it misses nothing, shows the shortest way, and the command line says what it found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from smallworlds.__main__ import main
from smallworlds.catalog import MODELS
from smallworlds.searching import Label, search


class Jugs:
    """Two jugs, of five and three; `wanted` in the first breaks the promise."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted

    def start(self) -> tuple[int, int]:
        return 0, 0

    def alike(self, state: tuple[int, int]) -> tuple[int, int]:
        return state

    def broken(self, state: tuple[int, int]) -> str:
        return f"it holds {self._wanted}" if state[0] == self._wanted else ""

    def steps(self, state: tuple[int, int]) -> Iterator[tuple[Label, tuple[int, int]]]:
        five, three = state
        yield ("fill", 5), (5, three)
        yield ("fill", 3), (five, 3)
        yield ("empty", 5), (0, three)
        yield ("empty", 3), (five, 0)
        over, back = min(five, 3 - three), min(three, 5 - five)
        yield ("pour", 5, "into", 3), (five - over, three + over)
        yield ("pour", 3, "into", 5), (five + back, three - back)


def test_the_search_finds_one_of_the_shortest_ways() -> None:
    """Four from five and three takes six steps."""
    found = search(Jugs(4))
    assert found.trace == ("fill 5", "pour 5 into 3", "empty 3", "pour 5 into 3", "fill 5", "pour 5 into 3")


def test_the_search_sees_every_state() -> None:
    """Sixteen states of two jugs can be reached, and with six in a jug of five there is none."""
    found = search(Jugs(6))
    assert (found.states, found.broken, found.trace) == (16, "", ())


def test_every_rule_has_a_world_that_shows_it() -> None:
    """No rule can be dropped without a world where that is looked for."""
    for entry in MODELS.values():
        assert entry.witness.keys() == entry.rules.keys()
        assert set(entry.witness.values()) <= entry.worlds.keys()


def test_the_command_line_shows_a_lost_write(capsys: pytest.CaptureFixture[str]) -> None:
    """A dropped rule is searched in the world that shows it, and the way to the loss is printed."""
    assert main(["position", "--drop", "noset"]) == 1
    assert "VIOLATION" in capsys.readouterr().out


def test_the_command_line_searches_to_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """A world that keeps its promises is said to be searched to the end."""
    assert main(["collector", "--world", "alone"]) == 0
    assert "searched to the end" in capsys.readouterr().out
