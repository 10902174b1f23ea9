"""Vectors: every reachable item is covered, and an engine in C plays them."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from itertools import pairwise, product, takewhile
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import evolve
from deep import deep_after
from spec_engine import SpecEngine

from conformance.cli import main
from conformance.files import atomic
from conformance.history import Attend, PoisonDead
from conformance.protocol import RESULTS, Action, EngineFailed, Result
from conformance.recordings.fields import fields_of, plain_result
from conformance.recordings.format import Header, Line
from conformance.recordings.validate import validate
from conformance.rungs import chunks, prefix, window
from conformance.rungs.prefix import takes_idle
from conformance.rungs.record import RINGS, RungKit
from conformance.rungs.registry import KITS
from conformance.seeded_bugs import planted
from conformance.seeded_bugs.scoring import vectors
from conformance.seeded_bugs.scoring.attempts import Budget
from conformance.vectors import build, files
from conformance.vectors.build import Cover, Vector
from conformance.vectors.play import play
from conformance.vectors.reach import covered, pair
from conformance.vectors.suites import absent, pairs_apart, suites
from spec import ladder
from spec.fields import BY_NAME
from spec.machines.actions import (
    Allocate,
    Assign,
    Dispatch,
    Hit,
    Pack,
    Reserve,
    Share,
    TakeOutputs,
)
from spec.view import View
from spec.vocabulary import Capacity, InvalidInput, Refused

PAGE = Path(__file__).parents[2] / "docs" / "vectors.md"
ALLOCATOR = Path(__file__).with_name("vectors_allocator.c")
BUGS = {
    1: "a release forgets the last page of a row",
    2: "a release lowers counts twice, and a clamp at zero hides it",
    3: "a clone shares the partial page",
    4: "a refused clone has taken the slot",
    5: "the highest free page is taken first",
    6: "a release leaves the lengths",
    7: "a clone does not raise the counts of the pages it shares",
    8: "a clone may have the request and choice of another sequence",
}
ONE_SUITE = """\
from conformance.vectors import build, files, suites
for name, text in files.contents([build.build(suites.suites()[0])]):
    print(name, text, end="")"""


@pytest.fixture(scope="module")
def covers() -> list[Cover]:
    """The covers of all suites."""
    return [build.build(suite) for suite in suites()]


@pytest.fixture(scope="module")
def folder(covers: list[Cover], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of all vectors."""
    path = tmp_path_factory.mktemp("vectors")
    files.write(covers, path)
    return path


def test_all_that_can_be_reached_is_covered(covers: list[Cover]) -> None:
    """No outcome, boundary case or pair is missing, and the sizes of the graphs are as stated."""
    sizes = {cover.suite.name: (len(cover.reach.steps), len(cover.counts)) for cover in covers}

    assert [] == [item for cover in covers for item in cover.missing]
    assert {
        "table-2": (465, 305),
        "table-1": (538, 323),
        "requests": (97, 111),
        "decode": (945, 351),
        "mixed": (1341, 589),
        "batches": (1010, 209),
        "rollback": (433, 669),
        "window": (1155, 765),
        "index": (556, 767),
        "hits": (401, 300),
        "idle": (834, 669),
        "chunks": (1090, 322),
        "preemption": (74, 275),
        "ahead": (147, 1048),
        "flights": (1564, 288),
    } == sizes


RESERVED = "Assign: OUT_OF_PAGES"
"""The policy of a vector reserves nothing, so that a prompt and a hit take no page."""
TABLE = {
    RESERVED,
    *(f"{name}: SLOT_FINISHED" for name in ("Allocate", "Clone", "Write")),
    *("Clone: QUEUE_FULL", "Write: BATCH_QUEUED"),
}
"""What asks for tokens that are drawn, or queued: a table has neither."""
UNREACHED = {
    RESERVED,
    *("Hit: OUT_OF_PAGES", "Share: OUT_OF_PAGES"),
    *("Admit: CHOICE_TAKEN", "Prefill: STOPS"),
    *("Round: TOO_LONG", "MixedRound: TOO_LONG"),  # of a ring
    "Dispatch: QUEUE_FULL",  # takes two slots, one of them with a full queue
}
"""The refusals that no move of a suite brings about."""


def test_every_action_and_every_refusal_that_matters_is_there(covers: list[Cover]) -> None:
    """Each suite takes all of its actions, and the refusals that no suite reaches are listed."""
    names = {name for cover in covers for name in cover.suite.names}
    asked = {
        f"{kind.__name__}: {reason.name}"
        for cover in covers
        for kind in cover.suite.machine.rules
        if kind.__name__ in cover.suite.names
        for reason in cover.suite.machine.reasons(kind)
    }
    reached = {
        f"{name}: {reason}"
        for name, reasons in (item.split(": ") for item in outcomes(covers))
        for reason in reasons.split("+")
    }
    single = [{item for item in cover.unreachable if ": " in item} for cover in covers]

    for cover in covers:
        tried = {step.kind.split()[0] for steps in cover.reach.steps for step in steps.values()}
        assert tried == set(cover.suite.names)
        assert {f"{name}: done" for name in cover.suite.names} <= cover.counts.keys()
    assert UNREACHED == asked - reached
    assert names.union(absent()) == {call.__name__ for call in ladder.whole().calls}
    assert () == absent()
    assert TABLE == single[0]
    assert {*TABLE, "Clone: OUT_OF_PAGES"} == single[1]


@pytest.mark.deep
def test_what_no_history_shows_is_what_no_step_of_the_graph_shows(covers: list[Cover]) -> None:
    """The list of what cannot be reached is read off the graph a second time."""
    for cover in covers:
        suite, graph = cover.suite, cover.reach.steps
        every = [step for steps in graph for step in steps.values()]
        answers = {step.items[0] for step in every}
        shown = {
            f"{name}: {reason}"
            for name, reasons in (answer.split(": ") for answer in answers)
            for reason in reasons.split("+")
        }
        asked = {
            f"{kind.__name__}: {reason.name}"
            for kind in suite.actions
            for reason in suite.machine.reasons(kind)
        }
        named = {
            name for kit in KITS if kit.rung in suite.machine.names for name in kit.corners
        } - build.NOT_ONE_STEP
        met = {item.rpartition(" (")[0] for step in every for item in step.items[1:]}
        follow = {(one.kind, two.kind) for one in every for two in graph[one.after].values()}
        apart = {*product({step.kind for step in every}, repeat=2)} - follow
        why = f"in any of the {len(graph)} states", f"in none of the {len(graph)} states"

        told = {
            **dict.fromkeys((asked - shown) | (named - met), why[0]),
            **dict.fromkeys(build.NOT_ONE_STEP, "more than one action"),
            **dict.fromkeys((f"{one} > {two}" for one, two in apart), why[1]),
        }

        assert told.keys() == cover.unreachable.keys()
        assert [] == [item for item, part in told.items() if part not in cover.unreachable[item]]


def test_what_a_vector_shows_is_not_called_unreachable(covers: list[Cover]) -> None:
    """No line is refused for a reason, among others or alone, that the statistics deny."""
    for cover in covers:
        lines = [line for vector in cover.vectors for line in vector.lines]
        given = {
            f"{type(line.step).__name__}: {reason.name}"
            for line in lines
            for reason in line.refused or ()
        }

        assert given.isdisjoint(cover.unreachable)
        assert given


def test_the_page_lists_the_suites() -> None:
    """The page has a row for each suite, with its name, its level and its sizes."""
    assert [
        (suite.name, suite.level, ", ".join(map(str, attrs.astuple(suite.instance.geometry)[:4])))
        for suite in suites()
    ] == [(*named(row[0]), *named(row[1]), row[2]) for row in rows_below("suite")]


def test_the_page_lists_the_fields_of_every_action() -> None:
    """The page names each action once, with its fields in their order."""
    assert {
        kind.__name__: [field.name for field in attrs.fields(kind)] for kind in ladder.whole().calls
    } == {name: named(row[1]) for row in rows_below("action") for name in named(row[0])}


def test_the_page_lists_the_pairs_that_no_suite_has() -> None:
    """The page lists the pairs that the command prints, and no suite has both actions of a pair."""
    assert list(pairs_apart().items()) == [
        (tuple(named(row[0])), tuple(named(row[1]))) for row in rows_below("an action of")
    ]
    together = {pair for suite in suites() for pair in product(suite.names, repeat=2)}
    apart = {pair for some, others in pairs_apart().items() for pair in product(some, others)}
    calls = [kind.__name__ for kind in ladder.whole().calls if kind.__name__ not in absent()]
    assert set(product(calls, repeat=2)) == together | apart | {pair[::-1] for pair in apart}
    assert together.isdisjoint(apart)


def rows_below(head: str) -> list[list[str]]:
    """The rows of the page's table whose first column has this heading."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(f"| {head} |")) + 2
    rows = takewhile(lambda line: line.startswith("|"), lines[start:])
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]


def named(cell: str) -> list[str]:
    """The names in code style in a cell of a table."""
    return re.findall(r"`([\w-]+)`", cell)


def outcomes(covers: list[Cover]) -> set[str]:
    """The outcomes that at least one vector covers."""
    return {item for cover in covers for item in cover.counts if ": " in item}


def test_no_vector_is_superfluous(covers: list[Cover]) -> None:
    """Without any one of the vectors an item is not covered, and the cover reports it."""
    for cover in covers:
        for vector in cover.vectors:
            others = tuple(other for other in cover.vectors if other is not vector)
            assert evolve(cover, vectors=others).missing


def test_no_step_is_superfluous(covers: list[Cover]) -> None:
    """Without any one step a history leaves an item uncovered, or cannot be taken."""
    cover = covers[0]
    for steps in cover.histories:
        for at in range(len(steps)):
            fewer = cover.reach.taken(step.move for step in steps[:at] + steps[at + 1 :])
            others = [other for other in cover.histories if other is not steps]
            left = set(cover.counts).difference(*map(covered, [*others, fewer or []]))
            assert fewer is None or left


def test_what_is_covered_is_told_by_the_lines_alone(covers: list[Cover]) -> None:
    """The pairs that a vector covers are the pairs of kinds of its lines."""
    for vector in (vector for cover in covers for vector in cover.vectors):
        kinds = [
            f"{type(line.step).__name__} {'done' if line.refused is None else 'refused'}"
            for line in vector.lines
        ]
        pairs = {pair(one, two) for one, two in pairwise(kinds)}
        assert {item for item in vector.covers if ">" in item} == pairs


@pytest.mark.deep
def test_every_vector_is_a_legal_recording(folder: Path) -> None:
    """The judge of recordings finds no vector illegal."""
    found = [validate(path).found for path in sorted(folder.glob("*.jsonl"))]

    assert [None] * len(found) == found
    assert len(found) > 100


def test_the_specification_passes_and_what_it_shows_otherwise_does_not(covers: list[Cover]) -> None:
    """The specification passes every vector, and with a wrong count in its view it fails by RC."""
    for vector in (vector for cover in covers for vector in cover.vectors):
        header = vector.header
        engine = SpecEngine(header.geometry, header.limits, header.cleanup)
        assert play(engine, vector) is None

    vector = covers[0].vectors[0]
    engine = SpecEngine(vector.header.geometry, vector.header.limits, vector.header.cleanup)
    observe = engine.observe
    engine.observe = lambda: evolve(observe(), counts=(1, 0, 0))  # type: ignore[method-assign]
    found = play(engine, vector)
    assert found is not None
    assert "RC" == found.clause


def test_every_entry_that_is_shown_is_compared_on_every_line(covers: list[Cover]) -> None:
    """A value that is not the expected one is found on its line, in any slot or page."""
    vector = max(covers[0].vectors, key=lambda vector: len(vector.lines))
    header, tried = vector.header, set[str]()
    for at in range(1, len(vector.lines) + 1):
        engine = SpecEngine(header.geometry, header.limits, header.cleanup)
        for line in vector.lines[:at]:
            assert not isinstance(line.step, PoisonDead | Attend)
            with suppress(Refused):
                engine.apply(line.step)
        for field, entries in fields_of(engine.observe()).items():
            if field not in header.shows or BY_NAME[field].index == "whole":
                continue
            for index in entries:
                found = play(Showing(header, at, field, index), vector)

                assert found is not None, (at, field, index)
                assert at + 1 == found.line
                tried.add(field)
    assert {"used", "rows", "counts", "tokens", "allocated", "written"} <= tried


class Showing(SpecEngine):
    """The specification, which after so many actions shows another value in one entry."""

    def __init__(self, header: Header, after: int, field: str, index: int) -> None:
        super().__init__(header.geometry, header.limits, header.cleanup)
        self.left, self.field, self.index = after, field, index

    def apply(self, action: Action) -> Result:
        """Take an action."""
        self.left -= 1
        return super().apply(action)

    def observe(self) -> View:
        """The view, with the entry changed if this is the time."""
        seen = super().observe()
        if self.left:
            return seen
        values = getattr(seen, self.field)
        changed: Any = {
            self.field: (
                *values[: self.index],
                other(values[self.index]),
                *values[self.index + 1 :],
            )
        }
        return evolve(seen, **changed)


def other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return (0 if value[:1] == (1,) else 1, *value[1:])
    return value + 1


class Returning(SpecEngine):
    """The specification, which returns another result for one of its actions."""

    def __init__(self, header: Header, after: int) -> None:
        super().__init__(header.geometry, header.limits, header.cleanup)
        self.left = after

    def apply(self, action: Action) -> Result:
        """Take an action."""
        self.left -= 1
        result: Any = plain_result(super().apply(action))
        if not self.left:
            result = [*result, 0] if isinstance(result, list) else result + 1
        returned: Result = result
        return returned


def test_every_result_of_a_vector_is_compared(covers: list[Cover]) -> None:
    """Another result is found on its line, in the place of 0 or of an empty one too."""
    tried = set[tuple[type, bool]]()
    for vector in (vector for cover in covers for vector in cover.vectors):
        for at, line in enumerate(vector.lines, start=1):
            case = type(line.step), bool(line.result)
            if line.result is None or case in tried:
                continue
            tried.add(case)

            found = play(Returning(vector.header, at), vector)

            assert found is not None, line
            assert (at + 1, "the result", str(line.result)) == (
                *(found.line, found.what),
                found.expected,
            )
    kinds = {kind for kind in RESULTS if kind.__name__ not in absent()}
    assert {*product(kinds, [True])} <= tried
    assert {(kind, False) for kind in (Reserve, Allocate, Pack, TakeOutputs)} <= tried


class Failing(SpecEngine):
    """The specification, whose adapter tells of a failure in one of its methods."""

    def __init__(self, header: Header, method: str) -> None:
        super().__init__(header.geometry, header.limits, header.cleanup)
        self.method = method

    def apply(self, action: Action) -> Result:
        """Take an action, or fail."""
        if self.method == "apply":
            raise EngineFailed("it admits another", clause="DET")
        return super().apply(action)

    def observe(self) -> View:
        """The view, or a failure."""
        if self.method == "observe":
            raise EngineFailed("it admits another", clause="DET")
        return super().observe()


@pytest.mark.parametrize("method", ["apply", "observe"])
def test_a_failure_that_the_adapter_tells_is_a_finding(covers: list[Cover], method: str) -> None:
    """It is found on its line, under its clause."""
    vector = covers[0].vectors[0]

    found = play(Failing(vector.header, method), vector)

    assert found is not None
    assert (2, "DET", "it admits another") == (found.line, found.clause, found.seen)


@pytest.mark.parametrize("name", [field.name for field in attrs.fields(Capacity)])
def test_an_engine_with_another_policy_is_not_blamed(name: str) -> None:
    """It is refused before its first action, whatever it is of its policy that differs."""
    suite = suites()[0]
    chosen, sizes = suite.instance, suite.instance.geometry
    other = {"copy": "lazy", "lookahead": 1, "reserve": "request", "ring": sizes.pages_per_seq}
    capacity = Capacity(**{name: other[name]})  # type: ignore[arg-type]
    engine = SpecEngine(chosen.geometry, chosen.limits, chosen.cleanup, capacity=capacity)
    before, header = engine.state, Header(geometry=chosen.geometry, limits=chosen.limits)

    with pytest.raises(InvalidInput, match=r"Profile\.capacity"):
        play(engine, Vector("any", header, (Line(Reserve(), None, None, {}),), frozenset()))

    assert before is engine.state


class Taking(SpecEngine):
    """The specification, which takes a slot whenever it refuses something."""

    has_taken = False

    def apply(self, action: Action) -> Result:
        """Take an action, or refuse it and reserve a slot where one is free."""
        try:
            return super().apply(action)
        except Refused:
            if None in self.state.sequences:
                self.state, self.has_taken = self.machine.step(self.state, Reserve()), True
            raise


def test_a_refusal_that_changes_what_is_shown_fails(covers: list[Cover]) -> None:
    """It does at its own line, also at the last one, which no other line follows."""
    for vector in covers[0].vectors:
        header, lines = vector.header, vector.lines
        first = next((at for at, line in enumerate(lines) if line.refused is not None), None)
        engine = Taking(header.geometry, header.limits, header.cleanup)
        found = play(
            engine, evolve(vector, lines=lines[: len(lines) if first is None else first + 1])
        )

        assert engine.has_taken is (found is not None)
    assert engine.has_taken


class Shy(SpecEngine):
    """The specification, which refuses one action, as it sees fit."""

    left = 0

    def apply(self, action: Action) -> Result:
        """Take an action, or refuse that one."""
        self.left -= 1
        if not self.left:
            raise Refused(())
        return super().apply(action)


def test_what_a_vector_does_must_be_done(covers: list[Cover]) -> None:
    """An engine that may refuse more elsewhere fails at each line that is not refused."""
    kinds = set[type]()
    for vector in covers[0].vectors:
        header, lines = vector.header, vector.lines
        for at, line in enumerate(lines, start=1):
            if line.refused is not None or type(line.step) in kinds:
                continue
            kinds.add(type(line.step))
            engine = Shy(header.geometry, header.limits, header.cleanup)
            engine.left, engine.profile = at, evolve(engine.profile, refuses="may_refuse_more")
            found = play(engine, evolve(vector, lines=lines[:at]))

            assert found is not None
            assert at + 1 == found.line
    assert len(kinds) > 8


@pytest.mark.deep
def test_the_words_say_what_the_recording_says(folder: Path) -> None:
    """The words of each vector equal those that are derived from its recording by other code."""
    for path in sorted(folder.glob("*.jsonl")):
        told = path.with_suffix(".txt").read_text().splitlines()
        data = [json.loads(line) for line in path.read_text().splitlines()]
        assert list(expected_words(data)) == told


def expected_words(data: list[dict[str, Any]]) -> Iterator[str]:
    """The expected lines of words for a recording, derived by other code than the writer's."""
    head = data[0]
    yield f"kvspec vectors 1 {head['spec_version']}"
    yield f"geometry {flat(head['geometry'])}"
    yield f"limits {flat(head['limits'])} {head['cleanup']}"
    for line in data[1:]:
        told = {"refused", "result", "saw"}
        yield f"do {flat({key: value for key, value in line.items() if key not in told})}"
        if "refused" in line:
            yield f"refused {' '.join(line['refused'])}"
        if "result" in line:
            yield f"result {flat(line['result'])}"
        for field, values in line.get("saw", {}).items():
            for at, value in values.items() if isinstance(values, dict) else [("0", values)]:
                yield f"saw {field} {at} {flat(value)}"
        yield "end"


def flat(value: Any) -> str:
    """A JSON value as words in one line."""
    if isinstance(value, dict):
        return " ".join(map(flat, value.values()))
    if isinstance(value, list):
        return " ".join([str(len(value)), *map(flat, value)])
    return "-" if value is None else str(int(value)) if isinstance(value, bool) else str(value)


def test_the_manifest_knows_the_files(folder: Path) -> None:
    """Names and digests in the manifest are those of the files, and there are no other files."""
    manifest = json.loads((folder / "manifest.json").read_text())
    named = {
        f"{entry['name']}.{ending}": digest
        for entry in manifest["vectors"]
        for ending, digest in entry["sha256"].items()
    }
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}

    assert {**named, "manifest.json": there["manifest.json"]} | {
        "statistics.md": there["statistics.md"]
    } == there


def test_the_files_are_the_same_with_another_hash(folder: Path, covers: list[Cover]) -> None:
    """A process with another hash seed, and so another order of sets, writes the same bytes."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    command = [sys.executable, "-c", ONE_SUITE]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    there = subprocess.run(command, env=environment, check=True, capture_output=True)

    here = "".join(f"{name} {text}" for name, text in files.contents(covers[:1]))
    assert here.encode() == there.stdout
    assert all(path.read_text() in here for path in folder.glob("table-2-*"))


def test_a_folder_with_other_files_is_left_alone(covers: list[Cover], tmp_path: Path) -> None:
    """A folder with other files is refused, and the same vectors can be written again."""
    files.write(covers[:1], tmp_path / "new")
    files.write(covers[:1], tmp_path / "new")
    (tmp_path / "notes").write_text("mine")

    with pytest.raises(InvalidInput, match="2 other files"):
        files.write(covers[:1], tmp_path)
    with pytest.raises(InvalidInput, match="folder to write to"):
        files.write(covers[:1], tmp_path / "notes")
    assert ["new", "notes"] == sorted(path.name for path in tmp_path.iterdir())


def test_files_that_are_no_vectors_of_these_are_found_beside_a_manifest(
    covers: list[Cover], tmp_path: Path
) -> None:
    """A vector that another version wrote would stay among the new ones, so it is refused."""
    files.write(covers[:1], tmp_path)
    (tmp_path / "table-0-of-another-version.jsonl").write_text("{}")
    before = contents_of(tmp_path)

    with pytest.raises(InvalidInput, match="1 other files, table-0-of-another-version"):
        files.write(covers[:1], tmp_path)
    assert before == contents_of(tmp_path)


Contents = dict[str, bytes]


def contents_of(folder: Path) -> Contents:
    """The files of a folder, and of its folders, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    "function", deep_after(1, [((Path, "replace"),), ((atomic, "write"),), ((Path, "unlink"),)])
)
def test_a_folder_with_a_manifest_is_complete_wherever_a_write_ends(
    function: tuple[Any, str],
    covers: list[Cover],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An interrupt before any of its calls leaves all of one version, or no manifest."""
    old = [evolve(covers[0], vectors=covers[0].vectors[:1])]
    new = [evolve(covers[0], vectors=(evolve(covers[0].vectors[0], lines=()),))]
    texts = {name: text.encode() for name, text in files.contents(new)}
    ends = 0
    for calls in range(20):
        folder = tmp_path / str(calls)
        files.write(old, folder)
        before = contents_of(folder)
        with monkeypatch.context() as patch:
            interrupt_after(patch, *function, calls=calls)
            with suppress(KeyboardInterrupt):
                files.write(new, folder)
                ends += 1

        seen = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        assert files.MANIFEST not in seen or seen in (before, texts)
        files.write(new, folder)
        assert texts == contents_of(folder)
    assert 0 < ends < 20


def interrupt_after(patch: pytest.MonkeyPatch, owner: Any, name: str, *, calls: int) -> None:
    """Raise KeyboardInterrupt in the place of a call, after so many of this function."""
    left, function = [calls], getattr(owner, name)

    def called(*arguments: Any, **options: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return function(*arguments, **options)

    patch.setattr(owner, name, called)


@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_folders_that_a_killed_write_has_left_are_removed(
    count: int, covers: list[Cover], tmp_path: Path, *, manifest: bool
) -> None:
    """The next write leaves its own files alone, whichever process left what."""
    short = [evolve(covers[0], vectors=covers[0].vectors[:1])]
    for process in range(count):
        left = atomic.beside(tmp_path / "any", process=2**30 + process)
        left.mkdir()
        (left / "table.txt").write_text("half")
        if manifest:
            (left / files.MANIFEST).write_text('{"kvspec": "vectors"}')

    files.write(short, tmp_path)

    assert {name: text.encode() for name, text in files.contents(short)} == contents_of(tmp_path)


@pytest.mark.deep
def test_the_command_fails_if_something_is_not_covered(
    covers: list[Cover], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a vector removed the command fails, and with all of them it holds."""
    by_name = {cover.suite.name: cover for cover in covers}
    monkeypatch.setattr(build, "build", lambda suite: by_name[suite.name])
    arguments = ["vectors", str(tmp_path / "v"), "--quiet", "--json", str(tmp_path / "j.json")]
    assert 0 == main.main(arguments)
    result = json.loads((tmp_path / "j.json").read_text())
    assert 305 == sum(
        result["suites"]["table-2"][name] for name in ("outcomes and corners", "pairs")
    )

    by_name["table-2"] = evolve(covers[0], vectors=covers[0].vectors[1:])
    shutil.rmtree(tmp_path / "v")
    assert 1 == main.main(arguments)
    assert json.loads((tmp_path / "j.json").read_text())["failures"]


OF_PREFIX = {takes_idle(kind) for kind in (Assign, Dispatch, Hit, Share)}
"""Corner states of the index in which a page is reserved, or a step in flight takes one."""


def test_every_corner_state_of_the_index_is_there(covers: list[Cover]) -> None:
    """Those that are in no suite ask for another capacity policy."""
    shown = {item.rpartition(" (")[0] for cover in covers for item in cover.counts}

    assert OF_PREFIX == {*prefix.KIT.corners} - shown


@pytest.mark.parametrize("kit", [chunks.KIT, window.KIT], ids=["chunks", "window"])
def test_every_corner_state_of_a_rung_is_in_its_suite(covers: list[Cover], kit: RungKit) -> None:
    """No corner state of the rung is missing in the suite of its level."""
    (cover,) = (cover for cover in covers if cover.suite.name == kit.rung)
    shown = {item.rpartition(" (")[0] for item in cover.counts}

    assert {name for name, needs in kit.corners.items() if RINGS not in needs} <= shown


@pytest.mark.parametrize(
    ("name", "bug"),
    deep_after(
        1,
        [
            *(("chunks", "CP2"), ("index", "PX1"), ("hits", "PX4")),
            *(("idle", "PX1b"), ("hits", "PX3"), ("chunks", "CP1")),
            *((name, None) for name in ("index", "hits", "idle", "chunks", "preemption")),
            *(("preemption", "QS5"), ("preemption", "QS6"), ("preemption", "QS7")),
            *(("index", bug) for bug in ("RC3", "RC6", "CL5", "PX8", "EV1b", "EV4b")),
            *(("window", bug) for bug in (None, "SW1", "SW4b", "SW5b", "HG8")),
        ],
    ),
)
def test_bugs_of_index_chunks_and_window_are_caught(
    covers: list[Cover], name: str, bug: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each planted bug is caught by the suite that asks for it; the engine without one passes."""
    cover = next(cover for cover in covers if cover.suite.name == name)
    monkeypatch.setattr(vectors, "suites", lambda: (cover.suite,))
    monkeypatch.setattr(vectors, "build", lambda _suite: cover)
    with planted(bug) if bug else nullcontext():
        found = vectors.vectors(bug, 0, Budget(steps=1))

    assert found.error is None
    assert found.caught == (bug is not None)


@pytest.mark.parametrize("bug", deep_after(1, ["QS4b", None, "QS1b", "QS4", "AD1"]))
def test_bugs_of_the_host_are_caught(
    covers: list[Cover], bug: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each planted bug of admission is caught, and the engine without a bug passes."""
    requests = next(cover for cover in covers if cover.suite.name == "requests")
    monkeypatch.setattr(vectors, "suites", lambda: (requests.suite,))
    monkeypatch.setattr(vectors, "build", lambda _suite: requests)
    with planted(bug) if bug else nullcontext():
        found = vectors.vectors(bug, 0, Budget(steps=1))

    assert found.error is None
    assert found.caught == (bug is not None)


def test_a_planted_bug_is_caught_and_the_engine_without_it_is_not(
    covers: list[Cover], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The method of `kvspec plant` catches a bug with the vectors of one table."""
    monkeypatch.setattr(vectors, "suites", lambda: suites()[:1])
    monkeypatch.setattr(vectors, "build", lambda _suite: covers[0])
    clean = vectors.vectors(None, 0, Budget(steps=1))
    with planted("RC2"):
        caught = vectors.vectors("RC2", 0, Budget(steps=1))

    assert (False, None) == (clean.caught, clean.error)
    assert clean.steps == sum(len(vector.lines) for vector in covers[0].vectors)
    assert (True, "RC") == (caught.caught, caught.clause)


@pytest.fixture(scope="module")
def compiler() -> str:
    """The path of a C compiler."""
    found = shutil.which("cc")
    if found is None:
        pytest.skip("NOT CHECKED: no C compiler is installed, so no engine in C is tested")
    return found


@pytest.mark.parametrize("bug", [0, *BUGS])
def test_an_allocator_in_c(bug: int, compiler: str, folder: Path, tmp_path: Path) -> None:
    """Without a bug the allocator passes every vector of a table, and with a bug it fails some."""
    program = tmp_path / "allocator"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-DBUG={bug}"]
    subprocess.run([compiler, *flags, "-o", program, ALLOCATOR], check=True)
    tables = sorted(map(str, folder.glob("table-*.txt")))
    run = subprocess.run([program, *tables], check=False, capture_output=True, text=True)

    failed = {line.partition(":")[0] for line in run.stdout.splitlines() if "wrong" in line}
    assert (1 if bug else 0) == run.returncode
    assert f"{len(failed)} of {len(tables)} vectors failed" in run.stdout
    assert failed <= set(tables)
    assert bool(failed) == bool(bug)
