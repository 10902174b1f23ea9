"""Files of fates and of tries: a second reader holds what the first one holds, at any moment."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from conformance.mutation.fates import HANGS, Fate, Fates
from conformance.seeded_bugs.scoring.attempts import Attempt, Attempts, Key

FATES: Final = (Fate("CONS"), Fate(None), Fate(None, run=False), Fate(HANGS))


def now(group: str, method: str) -> str:
    """The stamp of a group and a method."""
    return f"now {group} {method}"


def then(group: str, method: str) -> str:
    """Another one, of other sources."""
    return f"then {group} {method}"


@pytest.mark.parametrize("numbers", [(), (4,), (4, 5), (5, 4), (4, 5, 6, 7)])
def test_one_mutant_alone_is_killed_by_a_hang(tmp_path: Path, numbers: Sequence[int]) -> None:
    """Of several mutants that hang together each is a suspect, and none has a fate."""
    fates = Fates(tmp_path / "fates", now)

    fates.hung("contents", "fuzz", numbers)

    every = {("contents", "fuzz", number) for number in numbers}
    for held in (fates, Fates(tmp_path / "fates", now)):
        assert (dict.fromkeys(every, Fate(HANGS)) if len(numbers) == 1 else {}) == held.known
        assert (every if len(numbers) > 1 else set()) == held.suspects
        left = [number for number in numbers if len(numbers) > 1]
        assert left == held.left("contents", "fuzz", numbers)


def test_fates_of_other_sources_are_used_if_they_are_named(tmp_path: Path) -> None:
    """The last fate of a mutant counts, with its own stamp; others stay unused."""
    path = tmp_path / "fates"
    before, today = Fates(path, then), Fates(path, now)
    for number, killed in enumerate((None, "CONS", None)):
        before.add(("kernel", "gates", number), Fate(killed))
    before.suspect(("kernel", "gates", 4))
    today.add(("kernel", "gates", 2), Fate("worse"))

    both = Fates(path, now, kept=["then kernel gates"])
    strange = Fates(path, now, kept=["then kernel fuzz"])

    fates = {0: Fate(None), 1: Fate("CONS"), 2: Fate("worse")}
    stamps = {0: "then kernel gates", 1: "then kernel gates", 2: "now kernel gates"}
    assert {("kernel", "gates", at): fate for at, fate in fates.items()} == both.known
    assert {("kernel", "gates", at): one for at, one in stamps.items()} == both.stamps
    assert {("kernel", "gates", 4)} == both.suspects
    assert today.known == strange.known == {("kernel", "gates", 2): Fate("worse")}
    assert today.stamps == {("kernel", "gates", 2): "now kernel gates"}


@pytest.mark.parametrize("seed", range(8))
def test_fates_are_read_as_they_were_kept(tmp_path: Path, seed: int) -> None:
    """After each step another reader, new or old, knows what the writer knows, and no other run."""
    draws, path = random.Random(seed), tmp_path / "fates"
    writer, reader, other = (Fates(path, stamp) for stamp in (now, now, then))

    for _ in range(12):
        key = (draws.choice("ab"), draws.choice("xy"), draws.randrange(3))
        if draws.random() < 0.5:
            writer.add(key, draws.choice(FATES))
        else:
            writer.hung(*key[:2], draws.sample(range(4), draws.randrange(4)))
        reader.refresh()
        for held in (reader, Fates(path, now)):
            assert (writer.known, writer.suspects) == (held.known, held.suspects)
    other.refresh()
    assert ({}, set()) == (other.known, other.suspects)


@pytest.mark.parametrize("seed", range(8))
def test_tries_are_read_as_they_were_kept(tmp_path: Path, seed: int) -> None:
    """After each step another reader knows what the writer knows, and what it forgot is gone."""
    draws, path = random.Random(seed), tmp_path / "tries"
    writer, reader, other = (Attempts(path, stamp) for stamp in ("now", "now", "then"))
    kept: dict[Key, Attempt] = {("CW5", "fuzz", 0): Attempt(caught=True, steps=1, seconds=0.5)}
    other.add(*next(iter(kept.items())))

    for _ in range(12):
        if draws.random() < 0.25:
            writer.forget()
            assert {} == writer.made
        else:
            key = (draws.choice("ab"), draws.choice("xy"), draws.randrange(3))
            caught = draws.random() < 0.5
            writer.add(key, Attempt(caught=caught, steps=draws.randrange(9), seconds=0.0))
        reader.refresh()
        for held in (reader, Attempts(path, "now")):
            assert writer.made == held.made
    other.refresh()
    assert kept == other.made
