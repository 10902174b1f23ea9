"""`kvspec explore` on the command line: exit status, the JSON result, and the checkpoint."""

import argparse
import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from deep import deep_after
from explore_tools import save_after, work_alone

from conformance.cli import graphs
from conformance.cli.contract import Report
from conformance.cli.main import main
from conformance.cli.progress import Update
from conformance.exploration import graph, packed_search
from conformance.exploration.packed_clauses import MOVE_CHECKS, STATE_CHECKS, state_violations
from conformance.exploration.packed_states import Allocator, Flags, Masks, Move, States, bit
from conformance.files.geometries import parse_geometry
from conformance.runtime.sources import digest
from spec import clauses
from spec.vocabulary import Reason

SMALL = "pages=3,slots=2,page_size=2,pages_per_seq=2"
TINY = "pages=1,slots=1,page_size=2,pages_per_seq=2"


@pytest.fixture(name="result")
def file_of_result(tmp_path: Path) -> Path:
    """The path of the JSON result."""
    return tmp_path / "e.json"


def run(result: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit status of the command, and its JSON result; {} if there is none."""
    result.unlink(missing_ok=True)  # with status 2 no result replaces it
    status = main(["explore", "--json", str(result), *words])
    return status, json.loads(result.read_text()) if result.exists() else {}


def test_an_exploration_holds_and_says_what_it_saw(
    result: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A complete exploration has status 0, every count, and a list of unchecked clauses."""
    status, found = run(result, "--geometry", SMALL)

    assert (0, "holds", "complete") == (status, found["verdict"], found["scope"])
    assert (185, 1_068, 0, 11) == tuple(
        found[key] for key in ("states", "transitions", "illegal", "depth")
    )
    assert found["per_second"] > 0
    assert {*STATE_CHECKS, *MOVE_CHECKS} == {*found["invariants"]}
    assert len({*found["invariants"]}) == len(found["invariants"])
    assert {"done": 38} == found["actions"]["clone"]
    assert {"done": 330, "OUT_OF_PAGES": 72, "TOO_LONG": 258} == found["actions"]["extend"]
    assert 1_068 == sum(sum(outcomes.values()) for outcomes in found["actions"].values())
    (told,) = found["not_checked"]
    ahead = "SNAP, SETTLED, FENCE, HELD"
    assert told.startswith(
        f"WIN, PC, CHAIN, CONTENT, READ, Q, OUT, {ahead}, EVICT, RB and the edges below"
    )
    assert told.endswith("explore the other rungs")
    assert "kvspec explore: holds (complete)" in capsys.readouterr().out


def test_the_illegal_alphabet_and_open_pages_are_chosen(result: Path) -> None:
    """The illegal alphabet adds actions, and open pages count states up to renaming."""
    status, illegal = run(result, "--geometry", SMALL, "--alphabet", "illegal")
    assert (0, 185, 1_068) == (status, illegal["states"], illegal["transitions"])
    assert illegal["actions"]["twice"] == {"BATCH_POSITIONS": 330}
    assert illegal["illegal"] > 1_068

    status, open_pages = run(result, "--geometry", SMALL, "--pages", "open", "--quiet")
    assert (0, 25, 141) == (status, open_pages["states"], open_pages["transitions"])


def test_the_decode_layer_is_explored_by_workers(result: Path) -> None:
    """The rung `scheduling` is explored by worker processes, with the clauses and the ladder."""
    status, found = run(result, "--rung", "scheduling", "--geometry", TINY)

    assert (0, "complete") == (status, found["scope"])
    assert (48, 713, 1207, 6) == tuple(
        found[key] for key in ("states", "transitions", "illegal", "depth")
    )
    assert {"CONTENT", "OUT", "RESET", "ATOMIC", "sharing to pages"} < {*found["invariants"]}
    assert any(line.startswith("ATOMIC") for line in found["not_checked"])


@pytest.mark.parametrize("instance", ["sharing", "lifecycle", "scheduling"])
def test_a_bound_leaves_it_undecided(
    instance: str, result: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit of states gives status 3 and the number of states so far."""
    work_alone(monkeypatch)
    status, found = run(result, "--rung", instance, "--geometry", TINY, "--states", "3")

    assert (3, "undecided", "sampled") == (status, found["verdict"], found["scope"])
    assert 3 <= found["states"] < 17
    assert "more are left" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--pages", "open", "--alphabet", "illegal"], "--rung sharing --alphabet legal"),
        (["--stop-len", "2"], "no stop sequences"),
        (["--leave-out", "free"], "a fixed list of moves"),
        (["--rung", "lifecycle", "--leave-out", "frei"], "saw 'frei'"),
        (
            ["--cleanup", "end"],
            "or scheduling or chunks or preemption or flights: in the others",
        ),
        (["--rung", "lifecycle", "--cleanup", "none"], "saw '--rung lifecycle'"),
        (["--rung", "attention"], "invalid choice: 'attention'"),
        (["--alphabet", "greek"], "invalid choice: 'greek'"),
        (["--states", "-1"], "an integer from 0"),
        (["--geometry", "pages=300,slots=2,page_size=2,pages_per_seq=2"], "below 255"),
        (["--geometry", "pages=9,slots=4,page_size=9,pages_per_seq=9"], "a state in 64 bits"),
        (["--geometry", "pages=0,slots=2,page_size=2,pages_per_seq=2"], "pages"),
    ],
    ids=lambda words: " ".join(words)[:60] if isinstance(words, list) else "",
)
def test_bad_usage_is_one_line(
    words: list[str], says: str, result: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad usage has status 2, no result, and one line with the allowed values."""
    assert (2, {}) == run(result, *words)

    printed = capsys.readouterr().err
    assert says in printed
    assert 1 == printed.count("\n")


def test_a_checkpoint_is_gone_on_with_and_removed_at_the_end(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run resumed from the checkpoint of a bounded run ends with the counts of one whole run."""
    save_after(monkeypatch, -1.0)
    path = tmp_path / "e.npz"
    words = ("--geometry", SMALL, "--checkpoint", str(path))
    status, first = run(result, *words, "--states", "50")
    assert (3, True) == (status, path.exists())

    status, whole = run(result, *words)
    assert (0, False) == (status, path.exists())
    assert (185, 1_068, 11) == (whole["states"], whole["transitions"], whole["depth"])
    assert first["states"] < 185

    _, at_once = run(result, "--geometry", SMALL)
    assert at_once["actions"] == whole["actions"]


def test_an_interruption_is_told_and_gone_on_with(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is undecided with the counts so far, and the checkpoint keeps the finished levels."""
    save_after(monkeypatch, -1.0)
    path = tmp_path / "e.npz"
    words = ("--geometry", SMALL, "--checkpoint", str(path))

    levels = list[int]()

    def check(instance: Allocator, states: States) -> Iterator[tuple[str, int]]:
        levels.append(len(states))
        if len(levels) == 5:
            raise KeyboardInterrupt
        return state_violations(instance, states)

    with monkeypatch.context() as planted:
        planted.setattr(packed_search, "state_violations", check)
        status, found = run(result, *words)
    assert (3, "undecided", True) == (status, found["verdict"], found["interrupted"])
    assert sum(levels) == found["states"]
    assert path.exists()

    status, found = run(result, *words)
    assert (0, 185, 1_068) == (status, found["states"], found["transitions"])


SHARING = "pages=2,slots=1,page_size=1,pages_per_seq=2"
COUNTS = ("states", "transitions", "depth", "actions")


@pytest.mark.parametrize(
    "words", [("--geometry", SMALL), ("--rung", "sharing", "--geometry", SHARING)]
)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interruption_at_any_time_counts_nothing_twice(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], at: int
) -> None:
    """A level that was not finished is no part of a checkpoint, whenever Ctrl-C comes."""
    save_after(monkeypatch, -1.0)
    kept = (*words, "--checkpoint", str(tmp_path / "e.npz"))
    _, whole = run(result, *words)
    seen = list[tuple[float, str]]()

    @contextmanager
    def stopping(*_: object, **__: object) -> Iterator[Update]:
        def update(done: float, note: str = "") -> None:
            seen.append((done, note))
            if len(seen) == at:
                raise KeyboardInterrupt

        yield update

    with monkeypatch.context() as planted:
        planted.setattr(Report, "progress", stopping)
        status, found = run(result, *kept)
    assert (3, True) == (status, found["interrupted"])

    status, found = run(result, *kept)
    assert (0, [whole[name] for name in COUNTS]) == (status, [found[name] for name in COUNTS])


def test_a_full_disk_costs_the_checkpoint_and_not_the_work(
    result: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a full disk the exploration goes on, and the last checkpoint is kept."""
    save_after(monkeypatch, -1.0)
    path = tmp_path / "e.npz"
    words = ("--geometry", SMALL, "--checkpoint", str(path))
    assert 3 == run(result, *words, "--states", "50")[0]
    held = path.read_bytes()

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as planted:
        planted.setattr(os, "fsync", full)
        main(["explore", *words, "--states", "100"])
    assert held == path.read_bytes()
    assert "not kept: No space left on device; the last one stays" in capsys.readouterr().err
    assert 0 == run(result, *words)[0]


def test_a_checkpoint_of_something_else_is_bad_input(
    result: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A checkpoint of another geometry or source, or a damaged one, is refused and not changed."""
    save_after(monkeypatch, -1.0)
    path = tmp_path / "e.npz"
    words = ("--checkpoint", str(path), "--states", "5")
    assert 3 == run(result, "--geometry", SMALL, *words)[0]
    held = path.read_bytes()

    assert (2, {}) == run(result, "--geometry", TINY, *words)
    monkeypatch.setattr(graphs, "digest", lambda: "other")
    assert (2, {}) == run(result, "--geometry", SMALL, *words)
    assert held == path.read_bytes()
    path.write_bytes(held[:-50])
    assert (2, {}) == run(result, "--geometry", SMALL, *words)
    assert 3 == capsys.readouterr().err.count("Delete it, or name another with --checkpoint.")


def test_a_planted_bug_fails_with_its_history(
    result: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A planted bug gives status 1, its clause and a shortest history."""
    judge = Allocator._judge

    def refuse(instance: Allocator, states: States, move: Move) -> tuple[Flags, Masks]:
        applies, reasons = judge(instance, states, move)
        return applies, reasons | bit(Reason.OUT_OF_PAGES) if move.kind == "clone" else reasons

    monkeypatch.setattr(Allocator, "_judge", refuse)
    status, found = run(result, "--geometry", SMALL)

    failure = "ATOMIC is violated after reserve(0), clone(0, 1)"
    assert (1, [failure], "sampled") == (status, found["failures"], found["scope"])
    assert f"FAILS: {failure}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"tally": {}},
        {"tally": {"checked": "3"}, "names": {}},
        {"tally": {"bogus": 1}, "names": {}},
        {"tally": {}, "names": {"first": [1]}},
        {"tally": {}, "names": {}, "bogus": {}},
    ],
)
def test_a_checkpoint_with_damaged_counts_is_bad_input(
    extra: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The counts of `refine` in a checkpoint are validated like the rest of the file."""
    path = tmp_path / "r.npz"
    words = argparse.Namespace(
        rung="sharing",
        alphabet="illegal",
        cleanup=None,
        geometry=parse_geometry(SMALL),
        pages="lowest",
        stop_len=1,
        leave_out=[],
    )
    about = graphs.about(words) | {"plant": None, "seed": None, "source": digest()}
    graph.save(graph.Graph(), path, about, extra=extra)

    assert 2 == main(["refine", "--geometry", SMALL, "--checkpoint", str(path)])
    err = capsys.readouterr().err
    assert 1 == err.count("\n")
    assert f"checkpoint {path}: saw " in err
    assert path.exists()


@pytest.mark.parametrize("command", deep_after(1, ["explore", "refine"]))
def test_a_run_that_its_bound_ends_keeps_a_checkpoint(command: str, tmp_path: Path) -> None:
    """However short a bounded run is, another run goes on from where it ended."""
    path = tmp_path / "e.npz"
    words = ["--geometry", SMALL, "--checkpoint", str(path), "--quiet"]

    assert 3 == main([command, *words, "--states", "9"])
    assert path.exists()
    assert 0 == main([command, *words])
    assert not path.exists()


def test_moves_without_room_are_told(result: Path) -> None:
    """In rows that are too short for any request, a search that holds says what it has not seen."""
    sizes = "pages=2,slots=1,page_size=1,pages_per_seq=1,window=1"
    _, found = run(result, "--rung", "window", "--geometry", sizes)

    assert any("prefill" in part and "done in no state" in part for part in found["not_checked"])
    _, found = run(result, "--rung", "scheduling", "--geometry", TINY)
    assert not any("prefill" in part for part in found["not_checked"])


def test_a_kind_of_move_is_never_done_if_it_only_lacks_room() -> None:
    """It is refused somewhere for lack of room alone, and done nowhere, whatever else is seen."""
    room, other = "OUT_OF_PAGES", "SLOT_UNUSED"
    outcomes = ("done", room, other, f"{room} or TOO_LONG", f"{room} or {other}")
    seen = [set(some) for size in range(6) for some in combinations(outcomes, size)]

    undone = graphs.never_done({str(some): dict.fromkeys(sorted(some), 1) for some in seen})

    lacking = [some for some in seen if some & {room, f"{room} or TOO_LONG"}]
    assert [str(some) for some in lacking if "done" not in some] == undone


def test_states_up_to_renaming_and_moves_left_out(result: Path) -> None:
    """Fewer states with contents stand for all, and a kind of move that is left out is told."""
    words = ("--rung", "lifecycle", "--geometry", "pages=3,slots=2,page_size=2,pages_per_seq=1")

    status, found = run(result, *words, "--pages", "open")
    assert (0, 60) == (status, found["states"])
    status, found = run(result, *words, "--leave-out", "assign", "write")
    assert (0, True) == (status, found["states"] < 376)
    assert "the moves assign, write: --leave-out" in found["not_checked"]


def test_a_link_to_a_checkpoint_stays(tmp_path: Path) -> None:
    """At the end the written checkpoint is removed, but not the caller's link to it."""
    link = tmp_path / "link"
    link.symlink_to("missing.npz")

    assert 0 == main(["explore", "--geometry", TINY, "--checkpoint", str(link), "--quiet"])
    assert link.is_symlink()


@pytest.mark.parametrize("rung", deep_after(1, ["rollback", "lifecycle", "scheduling"]))
def test_every_clause_is_judged_or_named(rung: str, result: Path) -> None:
    """What a rung has no fields for is among what was not checked, and nothing else of it."""
    _, found = run(result, "--rung", rung, "--geometry", TINY)

    every = {one.id for one in (*clauses.STATE_CLAUSES, *clauses.STEP_CLAUSES)}
    named = {name for text in found["not_checked"] for name in text.partition(":")[0].split(", ")}
    assert every - {*found["invariants"]} == named & every - {"ATOMIC"}
