"""Passes over a file: what they tell on the way, what they find, and what is required of it."""

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import evolve

from conformance.recordings import required, validate
from conformance.recordings.format import FIELDS, VERSION, Header, profile_of, saw_to_data
from conformance.recordings.required import EVERYTHING, NOTHING
from conformance.rungs.chunks import BESIDE, SEVERAL
from conformance.rungs.coverage import Coverage, offered_by
from conformance.rungs.flights import SHORT_BESIDE, short_beside
from conformance.rungs.pages import FULL, PAGE_REUSED, REFUSED
from conformance.rungs.sharing import SHARED
from spec import ladder
from spec.fields import BY_NAME, entries
from spec.machines import actions as act
from spec.vocabulary import CleanupMode, Geometry, InvalidInput, Limits, Reason, default_limits

SIZES = Geometry(pages=4, page_size=2, slots=2, pages_per_seq=3)
HEAD: dict[str, Any] = {
    "kvspec": "recording",
    "version": VERSION,
    "geometry": {"pages": 4, "page_size": 2, "slots": 2, "pages_per_seq": 3},
    "policy": "lowest",
}


def reserved(count: int) -> list[dict[str, Any]]:
    """So many lines, all legal: a slot is reserved and freed."""
    return [{"step": ("Reserve", "Free")[at % 2], "slot": 0} for at in range(count)]


def text_of(lines: Sequence[dict[str, Any]], **header: Any) -> str:
    """A recording as text."""
    return "".join(json.dumps(line) + "\n" for line in ({**HEAD, **header}, *lines))


def of(path: Path, *lines: dict[str, Any], **header: Any) -> validate.Outcome:
    """The outcome of a recording of these lines."""
    path.write_text(text_of(lines, **header), encoding="utf-8")
    return validate.validate(path)


def test_the_share_of_the_file_that_is_read_is_told_every_so_many_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each fourth line the share is that of the bytes up to the end of the line."""
    monkeypatch.setattr(validate, "EVERY", 4)
    monkeypatch.setattr(validate, "AHEAD", 1)
    text, path, told = text_of(reserved(18)), tmp_path / "r.jsonl", list[float]()
    path.write_text(text, encoding="utf-8")
    ends = [len("".join(text.splitlines(keepends=True)[:at])) for at in range(1, 20)]

    assert 18 == validate.validate(path, update=told.append).events

    assert [ends[at] / len(text) for at in (4, 8, 12, 16)] == told


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    """A file that is not there, or a folder, is bad input, and nothing is read."""
    for path in (tmp_path / "absent.jsonl", tmp_path):
        with pytest.raises(InvalidInput, match="a readable file"):
            validate.validate(path)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_during_a_pass_alone(
    tmp_path: Path,
    enabled: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is off while lines are judged, and after that as it was, also after an error."""
    monkeypatch.setattr(validate, "EVERY", 1)
    path, seen = tmp_path / "r.jsonl", list[bool]()
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        for bad in ("", "{}\n"):
            path.write_text(text_of(reserved(2)) + bad, encoding="utf-8")
            try:
                validate.validate(path, update=lambda _: seen.append(gc.isenabled()))
            except InvalidInput:
                seen.append(True)
            seen.append(gc.isenabled())
    finally:
        (gc.enable if was else gc.disable)()

    assert [False, False, enabled, False, False, True, enabled] == seen


def test_the_outcome_of_a_recording_is_what_its_lines_are(tmp_path: Path) -> None:
    """The number of lines, the fields seen, the part after a reset and the judge are told."""
    lines = [*reserved(3), {"step": "Reset"}, {"step": "Reserve", "slot": 1, "saw": {"free": 4}}]
    outcome = of(tmp_path / "r.jsonl", *lines)
    text = (tmp_path / "r.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)

    assert (None, None, 5, frozenset({"free"})) == (
        outcome.found,
        outcome.machine,
        outcome.events,
        outcome.observed,
    )
    assert (6, len("".join(text[:5]))) == (outcome.part.first_line, outcome.part.offset)
    kept = list(validate.lines_of(tmp_path / "r.jsonl", outcome.part, 6))
    assert [act.Reserve(1)] == [line.step for line in kept]


def test_a_refused_reset_ends_no_part(tmp_path: Path) -> None:
    """What is shrunk begins behind the last reset that was done."""
    refusing = [{"step": "Reset"}, *reserved(1), {"step": "Reset", "refused": []}]

    outcome = of(tmp_path / "r.jsonl", *refusing, refuses="may_refuse_more")

    assert (None, 3) == (outcome.found, outcome.part.first_line)


PROPOSES: dict[str, Any] = {"step": "Propose", "slot": 0, "tokens": [1], "refused": []}
APPENDS: dict[str, Any] = {"step": "Append", "slot": 0, "tokens": [1], "refused": []}
PACKS: dict[str, Any] = {"step": "Pack"}
ILLEGAL: dict[str, Any] = {"step": "Free", "slot": 1}


@pytest.mark.parametrize(
    ("lines", "machine", "line"),
    [
        ([ILLEGAL], None, 2),
        ([APPENDS, ILLEGAL], None, 3),
        ([PROPOSES, ILLEGAL], ladder.whole, 3),
        ([PACKS, ILLEGAL], ladder.whole, 3),
        ([PROPOSES, ILLEGAL, PACKS], ladder.whole, 3),
        ([PROPOSES, ILLEGAL, APPENDS], ladder.whole_appending, 3),
        ([APPENDS, PROPOSES, ILLEGAL], ladder.whole_appending, 4),
        ([PROPOSES, APPENDS, ILLEGAL], ladder.whole_appending, 4),
        ([PACKS, ILLEGAL, APPENDS], ladder.whole, 3),
        ([PROPOSES, ILLEGAL, {"step": "none"}, APPENDS], ladder.whole, 3),
    ],
)
def test_the_actions_of_a_recording_decide_who_judges_it(
    tmp_path: Path, lines: list[dict[str, Any]], machine: Any, line: int
) -> None:
    """Append, before or after the illegal line, says that there is no queue."""
    outcome = of(tmp_path / "r.jsonl", *lines)

    assert outcome.found is not None
    assert (line, line - 1) == (outcome.found.line, outcome.events)
    assert (machine and machine()) is outcome.machine


def test_any_action_is_judged_under_any_policy(tmp_path: Path) -> None:
    """The fast table judges those of a table, and the specification the others."""
    table = of(tmp_path / "r.jsonl", *reserved(2), policy="any")
    other = of(tmp_path / "r.jsonl", *reserved(2), PACKS, policy="any")

    assert (None, None) == (table.found, table.machine)
    assert (None, ladder.whole()) == (other.found, other.machine)


def test_a_result_of_another_form_is_told_with_its_line(tmp_path: Path) -> None:
    """A result that nothing is compared with is read as strictly as any other."""
    allocated = {"step": "Allocate", "batch": [[0, 0]], "result": "6"}

    with pytest.raises(InvalidInput, match=r"line 3: saw .result: '6'"):
        of(tmp_path / "r.jsonl", *reserved(1), allocated, policy="any")


def counted(*kinds: type, times: int = 1) -> Coverage:
    """A recording in which these actions are done."""
    coverage = Coverage()
    for kind in kinds * times:
        coverage.count(kind, frozenset(), ())
    return coverage


def test_what_is_required_is_what_is_named_or_what_every_allocator_does() -> None:
    """By default three items, and a fourth where there are clones, refused or not; each once."""
    header = Header(geometry=SIZES, limits=default_limits(SIZES))

    assert [REFUSED, FULL, PAGE_REUSED] == required.required((), counted(act.Free), header)
    assert [REFUSED, FULL, PAGE_REUSED, SHARED] == required.required((), counted(act.Clone), header)
    refused_alone = Coverage()
    refused_alone.count(act.Clone, frozenset({Reason.UNWRITTEN}), ())
    assert [REFUSED, FULL, PAGE_REUSED, SHARED] == required.required((), refused_alone, header)
    assert [] == required.required((NOTHING,), counted(act.Clone), header)
    named = (FULL, NOTHING, "Free: done", FULL)
    assert [FULL, "Free: done"] == required.required(named, counted(act.Clone), header)


@pytest.mark.parametrize("cleanup", list(CleanupMode))
@pytest.mark.parametrize(("steps", "rare"), [(14, False), (21, True), (28, True)])
def test_everything_is_what_fuzzing_requires_at_the_sizes_of_the_header(
    cleanup: CleanupMode,
    steps: int,
    rare: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the actions that occur, with the limits of the header; what is rare of a long one."""
    monkeypatch.setattr(required, "RARE_STEPS", 21)
    limits = evolve(default_limits(SIZES), queue=3, rounds=1)
    header = Header(geometry=SIZES, limits=limits, cleanup=cleanup, reserve="request")
    kinds = (act.Submit, act.Admit, act.Round, act.Reserve, act.Assign, act.Enqueue, act.Prefill)
    coverage = counted(*kinds, times=steps // len(kinds))

    items = required.required((EVERYTHING, FULL), coverage, header)

    offered = offered_by(
        profile_of(header, actions=frozenset(kinds)),
        [SIZES],
        poisonable=False,
        cleanups=[cleanup],
        limits=lambda _: limits,
        rare=rare,
    )
    expected = coverage.coverable(offered)
    assert [*expected, *[FULL] * (FULL not in expected)] == items
    assert rare == ("Enqueue: QUEUE_FULL" in items)


QUEUEING = ("Admit", "Clone", "Dispatch", "Enqueue", "Prefill", "Propose")
LESS_DRAWN = "round that draws for as many as the outputs have room for, and packs more"
WITHOUT = {
    ("queue", 1): {LESS_DRAWN},
    ("queue", 30): {
        *(f"{name}: QUEUE_FULL" for name in QUEUEING),
        *(short_beside(kind, Reason.QUEUE_FULL) for kind in SHORT_BESIDE[Reason.QUEUE_FULL][0]),
    },
    ("round_tokens", 1): {BESIDE, SEVERAL},
    ("round_tokens", 30): {LESS_DRAWN, "MixedRound: BATCH_WIDTH", "Dispatch: BATCH_WIDTH"},
}
"""What a limit of this size rules out, beside what the default ones do."""


@pytest.mark.parametrize("value", [1, 30])
@pytest.mark.parametrize("name", [field.name for field in attrs.fields(Limits)])
def test_everything_is_required_within_each_limit_of_the_header(
    name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the limits of the header rule out is not required, and all the rest is."""
    monkeypatch.setattr(required, "RARE_STEPS", 0)
    coverage = counted(*(ladder.whole().calls - {act.Release}))
    default = Header(geometry=SIZES, limits=default_limits(SIZES))
    changed = evolve(default, limits=evolve(default.limits, **{name: value}))

    every, items = (
        set(required.required((EVERYTHING,), coverage, header)) for header in (default, changed)
    )

    assert WITHOUT.get((name, value), set()) == every - items
    assert items <= every


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("step", ["Free", "Purge"])
def test_what_an_illegal_line_shows_is_observed(tmp_path: Path, step: str, name: str) -> None:
    """The first line is illegal and the only one with the field, whoever judges."""
    field = BY_NAME[name]
    new = ladder.whole().initial(SIZES, default_limits(SIZES))
    value = saw_to_data({name: {0: field.to_record(entries(field, field.of(new))[0])}})

    outcome = of(tmp_path / "r.jsonl", {"step": step, "slot": 1, "saw": value})

    assert outcome.found is not None
    assert (2, "the action") == (outcome.found.line, outcome.found.what)
    assert {name} == outcome.observed


@pytest.mark.parametrize(
    ("word", "known"),
    [
        (NOTHING, True),
        (EVERYTHING, True),
        (FULL, True),
        ("Free: done", True),
        (f"Free: {Reason.SLOT_RANGE.name}", True),
        ("Free: lost", False),
        ("Fork: done", False),
        ("done", False),
        ("", False),
    ],
)
def test_a_word_that_is_no_item_is_refused(word: str, known: bool) -> None:  # noqa: FBT001
    """An item is a corner, or an action with one of its outcomes."""
    if known:
        required.require_known((FULL, word))
    else:
        with pytest.raises(InvalidInput, match="--require"):
            required.require_known((FULL, word))
