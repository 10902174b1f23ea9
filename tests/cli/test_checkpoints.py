"""Checkpoints of `explore` and `refine`: after a failure, of another graph, and gone on with."""

import argparse
import json
from collections.abc import Iterator
from itertools import count, cycle
from pathlib import Path
from typing import Any, Final

import jax.numpy as jnp
import pytest
from deep import deep_after
from explore_tools import save_after, work_alone

from conformance.cli import explore, refine
from conformance.cli.main import main
from conformance.exploration import graph, packed_search, search
from conformance.exploration.instances import RUNGS
from conformance.exploration.packed_clauses import state_violations
from conformance.refinement import run as refinement
from conformance.refinement.vmapped import Checker, Kind
from impl import entries

TINY: Final = "pages=1,slots=1,page_size=2,pages_per_seq=2"
GEOMETRIES: Final = {
    "sharing": "pages=3,slots=2,page_size=1,pages_per_seq=2",
    "window": TINY + ",window=1",
    "lifecycle": "pages=2,slots=2,page_size=1,pages_per_seq=1",
}
"""Those that are not TINY: they have pages to rename, or a window."""
BREAKS: Final = {"sharing": 3, "lifecycle": 4}
"""Where a clause breaks, if not in state 9: in a level of packed states, or among fewer states."""
COUNTED: Final = (
    *("states", "transitions", "illegal", "depth", "actions", "checked", "mismatches"),
    *("names_checked", "names_mismatches"),
)
"""The counts that do not depend on how often a run was interrupted."""
OFTEN: Final = (
    *(
        ("explore", rung, pages)
        for rung, pages in zip(RUNGS[::3], cycle(("open", "lowest")), strict=False)
    ),
    ("refine", "sharing", "open"),
)
COMMANDS: Final = tuple(
    dict.fromkeys(
        (
            *OFTEN,
            *(("explore", rung, pages) for rung in RUNGS for pages in ("lowest", "open")),
            *(("refine", rung, "lowest") for rung in refine.RUNGS),
            ("refine", "lifecycle", "open"),
        )
    )
)

MOSTLY: Final = deep_after(len(OFTEN), [(one,) for one in COMMANDS])
Command = tuple[str, str, str]


def words_of(command: Command) -> list[str]:
    """The words of a command on a small geometry."""
    name, rung, pages = command
    words = [name, "--rung", rung, "--pages", pages, "--quiet"]
    return [*words, "--geometry", GEOMETRIES.get(rung, TINY)]


@pytest.fixture(autouse=True)
def _only_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search in this process, find every transition right, and save after each level."""
    work_alone(monkeypatch)
    save_after(monkeypatch, -1.0)

    kinds = {
        name: Kind(name, lambda *_: jnp.ones((), bool), lambda *_: True) for name in entries.NAMES
    }

    def checker(_chosen: Any, state: Any, **how: Any) -> Checker:
        return Checker(kinds, size=64, tally=state.tally, **how)

    def blind(_chosen: Any, state: Any, **how: Any) -> Checker:
        return Checker(kinds, size=64, sample=0, tally=state.names, **how)

    monkeypatch.setattr(refinement, "blind_checker", blind)
    monkeypatch.setattr(refinement, "blind_cells_checker", blind)
    monkeypatch.setattr(refinement, "allocator_checker", checker)
    monkeypatch.setattr(refinement, "cells_checker", checker)


def result(path: Path, words: list[str]) -> tuple[int, dict[str, Any]]:
    """The exit status of a command, and its counts."""
    status = main([*words, "--json", str(path)])
    found = json.loads(path.read_text())
    return status, {name: found.get(name) for name in COUNTED}


def break_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Break a clause in the piece of work of this number: a state, or a level of packed states."""
    states, levels = count(), count()
    expand_one = search._expand_one

    def one(*given: Any) -> search.Expanded:
        if next(states) == number:
            return search.Expanded((), ("CONS", "planted", None))
        return expand_one(*given)

    def several(*given: Any) -> Iterator[tuple[str, int]]:
        yield from [("CONS", 0)] if next(levels) == number else state_violations(*given)

    monkeypatch.setattr(search, "_expand_one", one)
    monkeypatch.setattr(packed_search, "state_violations", several)


@pytest.mark.parametrize("command", MOSTLY, ids="-".join)
def test_a_violation_keeps_the_checkpoint_of_the_last_whole_level(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a violation the last checkpoint stays, and a run from it has the counts of one run."""
    words, path, told = words_of(command), tmp_path / "e.npz", tmp_path / "r.json"
    kept, save = list[bytes](), graph.save

    def saved(held: Any, at: Path, *given: Any, **rest: Any) -> None:
        save(held, at, *given, **rest)
        kept.append(path.read_bytes())
        assert held.expanded == len(kept)

    with monkeypatch.context() as patch:
        patch.setattr(graph, "save", saved)
        break_at(patch, BREAKS.get(command[1], 9))
        status, failed = result(told, [*words, "--checkpoint", str(path)])

    assert 1 == status
    assert kept[1:]
    assert kept[-1] == path.read_bytes()
    status, resumed = result(told, [*words, "--checkpoint", str(path)])
    assert (0, False) == (status, path.exists())
    assert (0, resumed) == result(told, words)
    assert failed["transitions"] < resumed["transitions"]


@pytest.mark.parametrize("command", MOSTLY, ids="-".join)
def test_a_violation_writes_no_checkpoint(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A violation before the first time to save leaves no file."""
    path = tmp_path / "e.npz"
    save_after(monkeypatch, 1e9)
    break_at(monkeypatch, BREAKS.get(command[1], 9))

    assert 1 == main([*words_of(command), "--checkpoint", str(path)])
    assert not path.exists()


@pytest.mark.parametrize("command", MOSTLY, ids="-".join)
def test_a_search_in_pieces_has_the_counts_of_one(command: Command, tmp_path: Path) -> None:
    """Runs that each end after one more level have, all together, the counts of one run."""
    words, path, told = words_of(command), tmp_path / "e.npz", tmp_path / "r.json"
    status, whole = result(told, words)
    assert 0 == status

    states, found = 0, dict[str, Any]()
    for _ in range(whole["depth"] + 2):  # no level at first, and none new at last
        bounded = [*words, "--checkpoint", str(path), "--states", str(states + 1)]
        status, found = result(told, bounded)
        assert states <= found["states"]
        assert path.exists() == (status == 3)
        states = found["states"]

    assert (0, whole) == (status, found)


CHANGED: Final = {
    "geometry": ["pages=2,slots=1,page_size=2,pages_per_seq=2"],
    "rung": ["lifecycle", "sharing"],
    "alphabet": ["legal", "illegal"],
    "cleanup": ["end", "none"],
    "pages": ["open"],
    "stop_len": ["2"],
    "leave_out": ["enqueue", "purge"],
    "plant": ["RC2"],
}
"""Other values of the options that change the graph or its verdict."""
SAME_GRAPH: Final = {"help", "states", "checkpoint", "unbatched", "measure"}
"""The options by which a graph is neither larger nor smaller, and no verdict another one."""


@pytest.mark.parametrize("command", deep_after(1, [explore, refine]), ids=["explore", "refine"])
def test_a_checkpoint_knows_every_option_that_changes_its_graph(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run with any one option changed does not go on with a checkpoint, and leaves it alone."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = {option.dest: option for option in parser._actions if option.dest not in SAME_GRAPH}
    assert {*options} == {*CHANGED} - ({"plant"} if command is explore else set())
    path = tmp_path / "e.npz"
    words = [command.NAME, "--rung", "scheduling", "--geometry", TINY, "--states", "2"]
    words += ["--checkpoint", str(path), "--quiet"]
    assert 3 == main(words)
    held = path.read_bytes()
    capsys.readouterr()

    for name, option in options.items():
        for value in (value for value in CHANGED[name] if value != option.default):
            assert 2 == main([*words, option.option_strings[0], value]), (name, value)
            assert "a checkpoint of " in capsys.readouterr().err
            assert held == path.read_bytes()
    assert 3 == main(words)


def test_a_checkpoint_of_renamed_states_knows_the_seed_of_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With another seed a run would go on with other names; without names it is not asked."""
    path = tmp_path / "r.npz"
    words = ["refine", "--geometry", GEOMETRIES["sharing"], "--checkpoint", str(path), "--quiet"]
    for pages, status in (("open", 2), ("lowest", 0)):
        given = [*words, "--pages", pages]
        assert 3 == main([*given, "--states", "3"])
        capsys.readouterr()
        assert status == main([*given, "--seed", "1"])
        assert ("seed 0" in capsys.readouterr().err) == (status == 2)
        path.unlink(missing_ok=True)
