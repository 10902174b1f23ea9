"""Recordings of engines that take any free page, of all actions: the numbers are those shown."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deep import deep_after
from recording_tools import altered, recorded, renamed, rewrite, whole
from spec_engine import small

from conformance.engines import ours
from conformance.history import Attend
from conformance.protocol import Action
from conformance.recordings.format import Header, Line, write
from conformance.recordings.validate import Outcome, validate
from conformance.rungs.pages import PAGE_REUSED
from spec import ladder
from spec.machines import actions as act
from spec.machines.actions import Allocate, Reserve, Truncate
from spec.vocabulary import INVALID, CleanupMode, Params, default_limits

SIZES = small(pages=7, page_size=2, slots=3, pages_per_seq=4)
WINDOWED = small(pages=7, page_size=2, slots=3, pages_per_seq=4, window=3)
LEVELS = ("lifecycle", "scheduling", "admission")
RUNGS = {
    "rollback": {"Propose", "Commit", "Truncate"},
    "window": {"Release"},
    "prefix": {"Publish", "Hit", "Merge", "Evict", "Drop"},
    "lifecycle": {"Assign", "FreeFinished", "TakeOutputs", "Reset"},
    "scheduling": {"Enqueue", "Prefill", "Round", "Generate"},
    "admission": {"Submit", "Admit"},
}
"""Actions of each rung."""


def done(outcome: Outcome) -> set[str]:
    """The actions that were done."""
    return {name for name in outcome.coverage.actions if outcome.coverage.outcomes[f"{name}: done"]}


def of_the_specification(tmp_path: Path, level: str, seed: int, steps: int = 100) -> Path:
    """A recording with other numbers of pages; of a model with a window."""
    path = recorded(tmp_path / f"{level}{seed}.jsonl", whole(WINDOWED), level, seed, steps)
    return renamed(path, seed)


def test_every_rung_is_judged(tmp_path: Path) -> None:
    """Actions of each are done, in pages of other numbers, and all results are compared."""
    outcome = validate(of_the_specification(tmp_path, "scheduling", 8, 500))

    assert (None, "any") == (outcome.found, outcome.header.policy)
    assert not outcome.uncompared
    assert set().union(*RUNGS.values()) <= done(outcome)


@pytest.mark.parametrize("seed", deep_after(1, range(4)))
@pytest.mark.parametrize("level", LEVELS)
def test_pages_of_other_numbers_are_legal_under_that_policy_alone(
    tmp_path: Path, level: str, seed: int
) -> None:
    """The numbers are those that the rows show, and not the lowest ones."""
    path = of_the_specification(tmp_path, level, seed)

    assert validate(path).found is None
    rewrite(path, 1, lambda header: header.update(policy="lowest"))
    assert validate(path).found is not None


@pytest.mark.deep
def test_our_engine_with_pages_of_other_numbers_is_legal(tmp_path: Path) -> None:
    """Its rounds, drafts, hits and evictions among them; these sizes have no window."""
    engine = ours.make(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)
    path = renamed(recorded(tmp_path / "r.jsonl", engine, "scheduling", 6, 600), 6)
    outcome = validate(path)

    assert outcome.found is None
    assert set().union(*RUNGS.values()) - {"Release"} <= done(outcome)
    number = altered(path)
    assert number == getattr(validate(path).found, "line", None)


def values(path: Path, draws: Random, most: int) -> Iterator[tuple[int, str, str | None]]:
    """Some values of a recording: the number of the line, the field, and the slot or page."""
    found = list[tuple[int, str, str | None]]()
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for field, entries in json.loads(text).get("saw", {}).items():
            at: list[str | None] = [*entries] if isinstance(entries, dict) else [None]
            found += [(number, field, index) for index in at]
    yield from draws.sample(found, min(most, len(found)))


def other(value: Any) -> Any:
    """Another value of the same kind: of a row, one with another last page."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case [*before, int(last)] if last != INVALID:
            return [*before, (last + 1) % SIZES.pages]
        case [_, *rest]:
            return rest
        case _:
            return [0]


@pytest.mark.parametrize("level", deep_after(1, LEVELS))
def test_one_changed_value_is_illegal_on_its_line(tmp_path: Path, level: str) -> None:
    """Of any field; a page in a row too, since its count is shown."""
    path, draws, fields = of_the_specification(tmp_path, level, 1), Random(1), set[str]()
    text = path.read_text(encoding="utf-8")
    for number, field, index in values(path, draws, 60):
        if field in {"queue", "outputs", "flights"}:
            continue  # their entries have a form of their own

        def change(data: dict[str, Any], field: str = field, index: str | None = index) -> None:
            saw = data["saw"]
            here, key = (saw, field) if index is None else (saw[field], index)
            here[key] = other(here[key])

        rewrite(path, number, change)
        found = validate(path).found
        assert found is not None, (number, field, index)
        assert found.line == number, (field, index, str(found))
        fields.add(field)
        path.write_text(text, encoding="utf-8")

    assert {"rows", "counts", "tokens"} <= fields


HELD = small(pages=4, page_size=2, slots=3, pages_per_seq=2)
Shown = tuple[Action, dict[str, Any]]
"""An action, and what its line shows."""


def judged(tmp_path: Path, *lines: Shown, **header: Any) -> Outcome:
    """The outcome of a recording of these actions, which the specification judges."""
    beyond = Line(act.Pack(), None, None, {})
    found = [beyond, *(Line(action, None, None, saw) for action, saw in lines)]
    write(
        tmp_path / "run.jsonl", Header(geometry=HELD, limits=default_limits(HELD), **header), found
    )
    return validate(tmp_path / "run.jsonl")


def begun(slot: int, cells: int, **saw: Any) -> tuple[Shown, Shown]:
    """A slot with cells."""
    batch = tuple((slot, position) for position in range(cells))
    return (Reserve(slot), {}), (Allocate(batch), saw)


WRONG: dict[str, tuple[tuple[Shown, ...], str]] = {
    "too few": (begun(0, 3, rows={0: (1,)}), "ROW: rows[0] is [1], should be 2 pages"),
    "no page": (begun(0, 1, rows={0: (4,)}), "ROW: rows[0] is [4], should be pages below 4"),
    "below 0": (begun(0, 1, rows={0: (-1,)}), "ROW: rows[0] is [-1], should be pages below 4"),
    "twice": (
        begun(0, 3, rows={0: (1, 1)}),
        "SHARE: rows[0] is [1, 1], should be free pages: page 1 stands twice in it",
    ),
    "of another row": (
        (*begun(0, 1, rows={0: (3,)}), *begun(1, 1, rows={1: (3,)})),
        "SHARE: rows[1] is [3], should be free pages: page 3 is in rows[0]",
    ),
    "another one later": (
        (*begun(0, 1, rows={0: (3,)}), (Truncate(0, 1), {"rows": {0: (2,)}})),
        "RB: rows[0] is (2,), should be (3,)",
    ),
    "shown late, and of another row": (
        (*begun(0, 1), *begun(1, 1, rows={1: (2,)}), (Truncate(0, 1), {"rows": {0: (2,)}})),
        "SHARE: rows[0] is [2], should be free pages: page 2 is in rows[1]",
    ),
    "a count of no page": (
        begun(0, 1, rows={0: (3,)}, counts={2: 1}),
        "RC: counts[2] is 1, should be 0",
    ),
    "a count that no unknown page has": (
        begun(0, 1, counts={2: 2}),
        "RC: counts[2] is 2, should be 0",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_page_that_is_not_to_be_had_is_told(tmp_path: Path, case: str) -> None:
    """The first wrong row is told with the page, and where that is."""
    lines, told = WRONG[case]
    found = judged(tmp_path, *lines).found

    assert found is not None
    assert f"line {len(lines) + 2}: {told}" == str(found)


def test_an_idle_page_is_taken_only_in_its_turn(tmp_path: Path) -> None:
    """While free pages are left, the index keeps its own."""
    text, cells = (1, 1), ((0, 0), (0, 1))
    idle: tuple[Shown, ...] = (
        (Reserve(0), {}),
        (act.Assign(0, text, Params(max_new=1), 1), {}),
        (Allocate(cells), {"rows": {0: (3,)}}),
        (act.Write(cells), {}),
        (act.Publish(0, 2), {"indexed": {3: (0, 1, 1)}}),
        (act.Free(0), {"idle_ranks": {3: 1}}),
    )
    found = judged(tmp_path, *idle, *begun(1, 1, rows={1: (3,)})).found

    assert "EVICT: rows[1] is [3], should be free pages: page 3 is in the index" in str(found)
    last = begun(2, 3, rows={2: (0, 3)}, indexed={3: ()})
    assert judged(tmp_path, *idle, *begun(1, 4, rows={1: (1, 2)}), *last).found is None


def test_a_page_that_no_row_has_shown_is_unknown(tmp_path: Path) -> None:
    """Its count may be that of any free page, and the row fixes its number, once."""
    late: tuple[Shown, ...] = (
        *begun(0, 3, counts={3: 1, 0: 0}),
        *begun(1, 1, rows={1: (0,)}),
        (act.Pack(), {"rows": {0: (3, 2)}, "counts": {1: 0, 2: 1}}),
    )

    assert judged(tmp_path, *late).found is None
    again = judged(tmp_path, *late, (act.Pack(), {"rows": {0: (3, 1)}})).found
    assert "ROW: rows[0] is (3, 1), should be (3, 2)" in str(again)
    free = judged(tmp_path, *late, (act.Pack(), {"counts": {1: 1}})).found
    assert "RC: counts[1] is 1, should be 0" in str(free)


def test_the_count_of_an_unknown_page_need_not_be_shown(tmp_path: Path) -> None:
    """Nobody can show it, until a row names the page."""
    late: tuple[Shown, ...] = (*begun(0, 3), (Truncate(0, 1), {"rows": {0: (3,)}}))
    unseen: tuple[Shown, ...] = (*begun(1, 1), (act.Free(1), {}))
    promised = {"shows": ("counts",)}

    assert judged(tmp_path, *late, *unseen, **promised).found is None
    found = judged(tmp_path, *late, *unseen, (act.Free(0), {}), **promised).found
    assert "RC: counts[3] is not shown: unchanged, should be 0" in str(found)


def test_what_an_engine_shows_between_its_steps_names_pages_too(tmp_path: Path) -> None:
    """A line of the harness, or of a refused call, may be the first that shows a row."""
    path = tmp_path / "run.jsonl"
    header = Header(geometry=HELD, limits=default_limits(HELD))
    lines = [
        Line(act.Pack(), None, None, {}),
        *(Line(action, None, None, saw) for action, saw in (*begun(0, 1), *begun(1, 1))),
        Line(Attend(), None, None, {"rows": {0: (3,)}}),
        Line(act.Free(2), frozenset(), None, {"rows": {1: (0,)}}),
    ]
    wrong = Line(act.Pack(), None, None, {"rows": {0: (2,)}})
    write(path, header, lines)
    assert validate(path).found is None
    write(path, header, [*lines, wrong])
    assert "rows[0] is (2,), should be (3,)" in str(validate(path).found)


@pytest.mark.parametrize("shown", [False, True])
def test_destinations_in_unknown_pages_are_not_compared(tmp_path: Path, *, shown: bool) -> None:
    """They are told as uncompared; in pages that are shown, they are compared."""
    path = tmp_path / "run.jsonl"
    lines = [
        Line(act.Pack(), None, None, {}),
        Line(Reserve(0), None, None, {}),
        Line(Allocate(((0, 0),)), None, [4], {"rows": {0: (3,)}} if shown else {}),
    ]
    write(path, Header(geometry=HELD, limits=default_limits(HELD)), lines)
    outcome = validate(path)

    assert shown == (outcome.found is not None)
    assert ({Allocate} if not shown else set()) == outcome.uncompared


def test_a_page_is_taken_again_only_if_its_number_is(tmp_path: Path) -> None:
    """The lowest page of the specification is no page of the engine."""
    first: tuple[Shown, ...] = (*begun(0, 1, rows={0: (3,)}), (act.Free(0), {}))
    for page, again in ((2, 0), (3, 1)):
        outcome = judged(tmp_path, *first, *begun(1, 1, rows={1: (page,)}))
        assert again == outcome.coverage.corners[PAGE_REUSED]
    unknown = judged(tmp_path, *begun(0, 1), (act.Free(0), {}), *begun(1, 1))
    assert not unknown.coverage.corners[PAGE_REUSED]


@pytest.mark.parametrize("append", [False, True])
def test_the_machine_is_that_of_the_actions(tmp_path: Path, *, append: bool) -> None:
    """With Append it has no queue, under the policy any too."""
    path = tmp_path / "run.jsonl"
    begin: list[Action] = [
        Reserve(0),
        act.Assign(0, (1,), Params(max_new=2), 1),
        act.Propose(0, (1,)),
    ]
    last: list[Action] = [act.Append(1, ())] if append else [act.Pack()]
    lines = [Line(action, None, None, {}) for action in begin]
    lines += [Line(one, frozenset() if append else None, None, {}) for one in last]
    write(path, Header(geometry=HELD, limits=default_limits(HELD)), lines)

    machine = ladder.whole_appending() if append else ladder.whole()
    assert machine is validate(path).machine
