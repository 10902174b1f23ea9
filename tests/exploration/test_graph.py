"""A checkpoint restores its graph or is refused, and an interruption changes nothing."""

import json
import pickle
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from explore_tools import explored, plan, silent, sizes, work_alone
from graph_tools import ABOUT, SMALL, small

from conformance.exploration import packed_search
from conformance.exploration.graph import FORMAT, Graph, load, names, save
from conformance.exploration.instances import instance
from conformance.exploration.packed_search import Plan
from conformance.exploration.search import Search
from spec.vocabulary import InvalidInput, Reason

Run = Callable[[Graph, Callable[[float, str], None], Callable[[], None]], object]
"""Goes on where a graph stands: the graph, `update` and `level_done`."""


def plain(graph: Graph) -> dict[str, object]:
    """All fields of a graph, in a form that can be compared."""
    return {
        "parents": [part.tolist() for part in graph.parents],
        "moves": [part.tolist() for part in graph.moves],
        "expanded": graph.expanded,
        "transitions": graph.transitions,
        "illegal": graph.illegal,
        "outcomes": dict(graph.outcomes),
    }


def loaded(path: Path, about: dict[str, object] = ABOUT) -> Graph:
    """The graph in an existing file."""
    found = load(path, about)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("most_states", [1, 50, 0])
def test_what_is_saved_is_loaded(most_states: int, tmp_path: Path) -> None:
    """Graph, counts and extra data are restored for an empty, a partial and a complete graph."""
    graph, _ = explored(plan(SMALL, illegal=True, most_states=most_states))
    path, extra = tmp_path / "new" / "e.npz", {"checked": 7, "first": [1, 2], "none": None}
    save(graph, path, ABOUT, extra=extra)
    found = load(path, ABOUT)

    assert found is not None
    assert (plain(graph), extra) == (plain(found[0]), found[1])
    assert (graph.levels, graph.complete) == (found[0].levels, found[0].complete)
    assert ["e.npz"] == [file.name for file in path.parent.iterdir()]


@pytest.mark.parametrize("name", ABOUT)
@pytest.mark.parametrize("change", ["lacks", "has more", "differs"])
def test_a_checkpoint_is_of_exactly_this_exploration(
    name: str, change: str, tmp_path: Path
) -> None:
    """Neither one may have a value that the other lacks, or another value."""
    less = {key: value for key, value in ABOUT.items() if key != name}
    other = ABOUT | {name: None}
    held, wanted = {
        "lacks": (less, ABOUT),
        "has more": (ABOUT, less),
        "differs": (other, ABOUT),
    }[change]
    save(small(), tmp_path / "e.npz", held)

    with pytest.raises(InvalidInput, match=name):
        load(tmp_path / "e.npz", wanted)


def test_without_a_file_there_is_nothing(tmp_path: Path) -> None:
    """Without a checkpoint the exploration begins at the initial state."""
    assert load(tmp_path / "e.npz", ABOUT) is None


def test_a_graph_of_nothing() -> None:
    """A new graph has one state and no move, and is not complete."""
    graph = Graph()
    assert ([1], 1, 0, False, ()) == (
        graph.levels,
        graph.states,
        graph.depth,
        graph.complete,
        graph.history(0),
    )
    graph.add_level(np.zeros(0, np.int32), np.zeros(0, np.int32))
    assert graph.complete


def test_a_history_follows_the_parents() -> None:
    """By hand: state 3 comes from 1 by move 7, and 1 from the initial state by move 5."""
    graph = Graph()
    graph.add_level(np.array([0, 0]), np.array([5, 6]))
    graph.add_level(np.array([1]), np.array([7]))

    assert [(), (5,), (6,), (5, 7)] == [graph.history(state) for state in range(4)]
    assert ([1, 2, 1], 4, 2, False) == (graph.levels, graph.states, graph.depth, graph.complete)


def test_the_names_of_a_mask() -> None:
    """One name for each bit that is a reason's code, and "done" for none."""
    both = 1 << Reason.TOO_LONG.value | 1 << Reason.SLOT_USED.value

    assert ("done", "SLOT_USED or TOO_LONG") == (names(0), names(both))


class Stop:
    """Raises KeyboardInterrupt at the n-th progress report."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, done: float, note: str) -> None:
        """Count down."""
        del done, note
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def interrupted(run: Run, path: Path, at: int) -> Graph:
    """Run, interrupted after every `at` progress reports, with a checkpoint after every level."""
    for _ in range(100):
        found = load(path, ABOUT)
        graph = found[0] if found else Graph()
        try:
            run(graph, Stop(at), lambda graph=graph: save(graph, path, ABOUT))  # type: ignore[misc]
        except KeyboardInterrupt:
            at += 1
            continue
        return graph
    raise AssertionError("never done")


@pytest.mark.parametrize("chosen", [{}, {"illegal": True}, {"open_pages": True}], ids=str)
@pytest.mark.parametrize("at", [1, 8])
def test_an_interruption_changes_nothing(
    chosen: dict[str, bool], at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exploration interrupted in the middle of levels and resumed gives the same graph."""
    monkeypatch.setattr(packed_search, "CHUNK", 10)
    whole = plan(SMALL, **chosen)
    expected, _ = explored(whole)

    def run(graph: Graph, update: Callable[[float, str], None], done: Callable[[], None]) -> object:
        return packed_search.explore(whole, graph, update=update, level_done=done)

    assert plain(expected) == plain(interrupted(run, tmp_path / "e.npz", at))
    assert expected.complete


def test_an_interruption_of_a_search_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds for a search with the specification: states, order and outcomes."""
    work_alone(monkeypatch)
    chosen, states = instance("scheduling", sizes((1, 1, 2, 2))), list[object]()

    def run(graph: Graph, update: Callable[[float, str], None], done: Callable[[], None]) -> object:
        search = Search(chosen, graph)
        wrong = search.run(update=update, level_done=done)
        states[:] = search.states
        return wrong

    expected = Graph()
    assert run(expected, silent, lambda: None) is None
    in_order = [*states]

    assert plain(expected) == plain(interrupted(run, tmp_path / "e.npz", 3))
    assert in_order == states


def test_a_bound_is_gone_past(tmp_path: Path) -> None:
    """A bounded run is resumed as if there had been no bound."""
    path = tmp_path / "e.npz"
    graph, _ = explored(plan(SMALL, most_states=60))
    save(graph, path, ABOUT)
    further = loaded(path)

    assert packed_search.explore(plan(SMALL), further, update=silent) is None
    assert plain(small()) == plain(further)


def test_what_is_complete_stays_as_it_is(tmp_path: Path) -> None:
    """A complete graph is explored again without counting anything twice."""
    save(small(), tmp_path / "e.npz", ABOUT)
    again = loaded(tmp_path / "e.npz")

    assert packed_search.explore(Plan(instance=plan(SMALL).instance), again, update=silent) is None
    assert plain(small()) == plain(again)


def test_a_crash_while_writing_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partial file is written beside the checkpoint, never over it; the next write succeeds."""
    path, graph = tmp_path / "e.npz", small()
    first, _ = explored(plan(SMALL, most_states=20))
    save(first, path, ABOUT)

    def half(file: Any, **_: object) -> None:
        file.write(path.read_bytes()[:100])
        raise OSError("no space left")

    with monkeypatch.context() as planted:
        planted.setattr(np, "savez_compressed", half)
        with pytest.raises(OSError, match="no space"):
            save(graph, path, ABOUT)
    assert plain(first) == plain(loaded(path))
    save(graph, path, ABOUT)
    assert plain(graph) == plain(loaded(path))


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.witness,)


def written(path: Path, header: object, **arrays: Any) -> None:
    """A file that looks like a checkpoint."""
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    held = {"parents": np.zeros(0, np.int32), "moves": np.zeros(0, np.int32), **arrays}
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=True, header=text, **held)


HEADER = {
    "format": FORMAT,
    "about": ABOUT,
    "extra": {},
    "levels": [],
    "expanded": 0,
    "transitions": 0,
    "illegal": 0,
    "outcomes": {},
}


def test_a_checkpoint_by_hand_is_one(tmp_path: Path) -> None:
    """A checkpoint made by hand loads: the files below are refused for their fault alone."""
    written(tmp_path / "e.npz", HEADER)

    assert plain(Graph()) == plain(loaded(tmp_path / "e.npz"))


@pytest.mark.parametrize(
    "header",
    [
        HEADER | {"format": FORMAT + 1},
        HEADER | {"about": {"rung": "scheduling"}},
        HEADER | {"levels": [3]},
        HEADER | {"levels": None},
        {"format": FORMAT},
        [HEADER],
        "text",
        None,
    ],
    ids=lambda header: str(header)[-40:],
)
def test_another_header_is_invalid(header: object, tmp_path: Path) -> None:
    """A checkpoint of another format or exploration, or without a header, is refused."""
    written(tmp_path / "e.npz", header)

    with pytest.raises(InvalidInput, match="Delete it, or name another"):
        load(tmp_path / "e.npz", ABOUT)


def test_a_foreign_file_is_invalid(tmp_path: Path) -> None:
    """An empty file, text, an array, another archive and a folder are refused."""
    path = tmp_path / "e.npz"
    for content in (b"", b"PK", b"PK\x03\x04 and no archive", b"garbage\n", b"\x93NUMPY"):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match=r"checkpoint .*e\.npz"):
            load(path, ABOUT)
    for store in (np.save, np.savez):
        with path.open("wb") as file:
            store(file, np.zeros(3))
        with pytest.raises(InvalidInput, match=r"checkpoint .*e\.npz"):
            load(path, ABOUT)
    path.unlink()
    path.mkdir()
    with pytest.raises(InvalidInput, match=r"checkpoint .*e\.npz"):
        load(path, ABOUT)


def test_a_damaged_file_is_invalid(tmp_path: Path) -> None:
    """A truncated file is refused; one with a changed byte is refused, or gives the same graph."""
    path, graph = tmp_path / "e.npz", small()
    save(graph, path, ABOUT)
    right = path.read_bytes()
    for length in range(0, len(right), 23):
        path.write_bytes(right[:length])
        with pytest.raises(InvalidInput):
            load(path, ABOUT)
    refused = 0
    for place in range(0, len(right), 7):
        path.write_bytes(right[:place] + bytes([right[place] ^ 0x55]) + right[place + 1 :])
        try:
            assert plain(graph) == plain(loaded(path))
        except InvalidInput:
            refused += 1
    assert refused > len(right) / 7 / 2


def test_no_pickle_is_ever_loaded(tmp_path: Path) -> None:
    """Neither a pickled file nor a pickled array in an archive runs its code."""
    path, witness = tmp_path / "e.npz", tmp_path / "witness"
    evil = np.array([Evil(witness)], object)
    assert pickle.loads(pickle.dumps(evil[0])) is None
    assert witness.exists()
    witness.unlink()

    path.write_bytes(pickle.dumps(evil))
    with pytest.raises(InvalidInput):
        load(path, ABOUT)
    for name in ("parents", "moves"):
        written(path, HEADER, **{name: evil})
        with pytest.raises(InvalidInput, match="a file that is damaged") as caught:
            load(path, ABOUT)
        assert "allow_pickle" in str(caught.value.__cause__)
    assert not witness.exists()


def test_a_parent_is_a_state_of_the_level_above(tmp_path: Path) -> None:
    """A checkpoint loads exactly if each state's parent is one of the level just above it."""
    path, graph = tmp_path / "e.npz", small()
    bounds = np.cumsum([0, *graph.levels]).tolist()
    for level, parents in enumerate(graph.parents):
        first, end = bounds[level], bounds[level + 1]
        for place, parent in product((0, -1), (first - 1, first, end - 1, end, 1 << 30)):
            changed = parents.copy()
            changed[place] = parent
            others = [changed if at == level else part for at, part in enumerate(graph.parents)]
            save(evolve(graph, parents=others), path, ABOUT)

            if first <= parent < end:
                assert plain(evolve(graph, parents=others)) == plain(loaded(path))
            else:
                with pytest.raises(InvalidInput, match="one level above"):
                    load(path, ABOUT)
