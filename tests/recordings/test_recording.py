"""Recordings: two judges agree with the specification, and find every altered value on its line."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from capacity_toys import AHEAD, BOTH, LAZY, LAZY_WHOLE, WHOLE, FrugalAdapter
from deep import deep_after
from recording_tools import appending, drafting, recorded, rewrite, table, whole
from spec_engine import small
from toy_engine import BUGS, make

from conformance.protocol import Engine
from conformance.recordings.answers import Found, Illegal
from conformance.recordings.fast_table import Ledger
from conformance.recordings.format import Header, Line, write
from conformance.recordings.judge import Judge, judge
from conformance.recordings.shrinking import Least, _cause, _illegal, _watched, shortest
from conformance.recordings.validate import Outcome, lines_of, validate
from spec.machines import actions as act
from spec.vocabulary import Capacity, CleanupMode, Geometry, InvalidInput, default_limits

SIZES = (small(), small(pages=5, page_size=1, slots=3), small(pages=9, page_size=3, slots=5))


def found(path: Path) -> Found:
    """The first illegal line, which must exist."""
    outcome = validate(path)
    assert outcome.found is not None
    return outcome.found


@pytest.mark.parametrize("seed", deep_after(2, range(4)))
@pytest.mark.parametrize(
    ("engine", "level"),
    [
        (table, "lifecycle"),
        (appending, "lifecycle"),
        (drafting, "lifecycle"),
        (whole, "lifecycle"),
        (whole, "scheduling"),
        (whole, "admission"),
    ],
)
def test_what_the_specification_does_is_legal(
    tmp_path: Path, engine: Callable[[Geometry], Engine], level: str, seed: int
) -> None:
    """A recording of the specification is legal, and its actions decide which judge reads it."""
    path = recorded(tmp_path / "r.jsonl", engine(SIZES[seed % 3]), level, seed)

    outcome = validate(path)

    assert outcome.found is None
    assert (outcome.machine is not None) == (engine in (whole, drafting))
    assert outcome.events == len(path.read_text(encoding="utf-8").splitlines()) - 1


POLICIES = (
    Capacity(copy="lazy"),
    Capacity(lookahead=3),
    Capacity(copy="lazy", lookahead=1),
    Capacity(reserve="request"),
)


@pytest.mark.parametrize("capacity", deep_after(1, reversed(POLICIES)))
@pytest.mark.parametrize(("engine", "level"), [(table, "lifecycle"), (whole, "scheduling")])
def test_what_is_done_under_a_policy_is_legal_under_that_policy_alone(
    tmp_path: Path, engine: Callable[..., Engine], level: str, capacity: Capacity
) -> None:
    """The header carries the policy; under the standard one some recording is illegal."""
    illegal, standard = 0, {"copy": "eager", "lookahead": 0, "reserve": "none"}
    for seed in range(10):
        path = recorded(tmp_path / f"{seed}.jsonl", engine(SIZES[0], capacity), level, seed)
        outcome = validate(path)
        assert (capacity, None) == (outcome.header.capacity, outcome.found)
        rewrite(path, 1, lambda header: header.update(standard))
        illegal += validate(path).found is not None

    assert illegal


@pytest.mark.parametrize(("engine", "level"), [(table, "lifecycle"), (whole, "scheduling")])
def test_what_a_ring_gives_up_is_legal_under_a_ring_alone(
    tmp_path: Path, engine: Callable[..., Engine], level: str
) -> None:
    """The specification judges, since the fast table knows no ring; without one rows lack pages."""
    sizes, illegal = evolve(SIZES[0], window=2), 0
    for seed in range(10):
        path = recorded(tmp_path / f"{seed}.jsonl", engine(sizes, Capacity(ring=2)), level, seed)
        outcome = validate(path)
        assert (Capacity(ring=2), None) == (outcome.header.capacity, outcome.found)
        assert outcome.machine is not None
        rewrite(path, 1, lambda header: header.pop("ring"))
        illegal += validate(path).found is not None

    assert illegal


@pytest.mark.parametrize(
    ("capacity", "bug"),
    deep_after(
        8,
        [
            (LAZY, ""),
            (BOTH, ""),
            (LAZY, "appends in place"),
            (LAZY, "keeps the count"),
            (LAZY, "copies its own block"),
            (AHEAD, "keeps the blocks ahead"),
            (AHEAD, "does not count the blocks ahead"),
            (WHOLE, ""),
            (LAZY_WHOLE, ""),
            (WHOLE, "reserves a block too few"),
            (WHOLE, "reserves a block too many"),
            (WHOLE, "a clone reserves nothing"),
            (WHOLE, "shares a reserved block"),
            (WHOLE, "keeps the blocks ahead"),
            (WHOLE, "keeps what it took"),
            (WHOLE, "takes what there is"),
        ],
    ),
)
def test_an_engine_with_a_policy_and_pages_of_its_own_choice(
    tmp_path: Path, capacity: Capacity, bug: str
) -> None:
    """The ledger reads the pages of copies, and those taken ahead, from the rows shown."""
    sizes, found = small(pages=9, page_size=4, slots=4, pages_per_seq=3), 0
    for seed in range(15):
        engine = FrugalAdapter(
            sizes, default_limits(sizes), CleanupMode.END, capacity=capacity, bug=bug
        )
        outcome = validate(recorded(tmp_path / f"{seed}.jsonl", engine, "lifecycle", seed))
        assert outcome.machine is None
        found += outcome.found is not None
        if found:
            break

    assert bool(found) == bool(bug)


ALTERED: dict[str, Callable[[Any], Any]] = {
    "used": lambda value: not value,
    "rows": lambda value: [*value[:-1], value[-1] + 1] if value else [0],
    "counts": lambda value: value + 1,
    "allocated": lambda value: value + 1,
    "written": lambda value: value - 1,
    "tokens": lambda value: [*value, 1],
}


@pytest.mark.parametrize("judged", deep_after(1, ["by the ledger", "by the specification"]))
def test_one_altered_value_is_found_on_its_line(tmp_path: Path, judged: str) -> None:
    """After any value is altered or left out, its line is the first illegal one."""
    engine = table(SIZES[0]) if judged == "by the ledger" else whole(SIZES[0])
    path = recorded(tmp_path / "r.jsonl", engine, "lifecycle", 3)
    text = path.read_text(encoding="utf-8")
    fields = set()
    for number, field, key in entries(text):
        for change in (alter, leave_out):
            rewrite(path, number, partial(change, field=field, key=key))
            assert found(path).line == number, (field, key)
            path.write_text(text, encoding="utf-8")
        fields.add(field)
    assert fields == set(ALTERED)


def entries(text: str) -> Iterator[tuple[int, str, str]]:
    """The line, field and index of each value of a recording that can be altered."""
    for number, line in enumerate(text.splitlines()[1:], start=2):
        for field, values in json.loads(line).get("saw", {}).items():
            for key in values if field in ALTERED else ():
                yield number, field, key


def alter(data: dict[str, Any], *, field: str, key: str) -> None:
    """Replace a value by a wrong one."""
    values = data["saw"][field]
    values[key] = ALTERED[field](values[key])


def leave_out(data: dict[str, Any], *, field: str, key: str) -> None:
    """Remove a value, so that its change is not shown."""
    del data["saw"][field][key]


class Disagrees(Ledger):
    """A machine that agrees with no value."""

    def agrees(self, field: str, index: int, seen: object) -> bool:
        """It never does."""
        del field, index, seen
        return False


def test_a_disagreement_is_never_passed_over() -> None:
    """What the machine does not agree with is illegal, even if it looks like what is expected."""
    header = Header(geometry=SIZES[0], limits=default_limits(SIZES[0]))
    line = Line(act.Reserve(), None, None, {"used": {0: True}})

    Judge(Ledger(header), header).take(line)
    with pytest.raises(Illegal, match="used"):
        Judge(Disagrees(header), header).take(line)


def test_a_refusal_too_many_too_few_or_for_another_reason_is_found(tmp_path: Path) -> None:
    """ATOMIC: an action is refused exactly if the specification refuses it, and for its reasons."""
    path = recorded(tmp_path / "r.jsonl", table(SIZES[1]), "lifecycle", 1)
    text = path.read_text(encoding="utf-8")
    refused = [n for n, line in enumerate(text.splitlines(), 1) if '"refused"' in line]
    done = [n for n, line in enumerate(text.splitlines(), 1) if '"Allocate"' in line]
    changes: list[tuple[int, Callable[[dict[str, Any]], object]]] = [
        (refused[0], lambda data: data.pop("refused")),
        (refused[1], lambda data: data.update(refused=["STOPS"])),
        (next(n for n in done if n not in refused), refuse),
    ]
    for number, change in changes:
        rewrite(path, number, change)
        assert (found(path).line, found(path).clause) == (number, "ATOMIC")
        path.write_text(text, encoding="utf-8")
    rewrite(path, refused[0], lambda data: data.update(refused=[]))
    assert validate(path).found is None, "a refusal without a named reason is legal"


def refuse(data: dict[str, Any]) -> None:
    """The line of an action that was done says that it was refused."""
    data.pop("result", None)
    data["refused"] = []


SEEN = {"leak", "double free", "rename", "refuses what is legal", "does what is illegal",
        "changes when it refuses", "forgets to count"}  # fmt: skip


@pytest.mark.parametrize("bug", ["", *BUGS[:7]])
def test_an_engine_with_a_policy_of_its_own(
    tmp_path: Path, bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine may take any free page; each bug that a table can show is found, and shrunk."""
    assert set(BUGS[:7]) == SEEN
    monkeypatch.setenv("TOY_BUG", bug)
    geometry = small(pages=7, page_size=2)
    outcomes = []
    for seed in range(30):
        engine = make(geometry, default_limits(geometry), CleanupMode.END)
        path = recorded(tmp_path / f"{seed}.jsonl", engine, "lifecycle", seed)
        outcomes.append((path, validate(path)))
        if sum(outcome.found is not None for _, outcome in outcomes) == 2:
            break
    illegal = [(path, outcome) for path, outcome in outcomes if outcome.found is not None]

    assert bool(illegal) == bool(bug)
    for path, outcome in illegal:
        least = shorten(path, outcome)
        for at in range(len(least.lines) - 1):
            assert not same_cause(least.lines[:at] + least.lines[at + 1 :], least)


def same_cause(one: tuple[Line, ...], least: Least) -> bool:
    """Whether the last line is the first illegal one, for the cause of the shortest part."""
    told = _illegal(judge(least.header, machine=None), least.lines)
    assert told is not None
    watch = _watched(told, least.lines[-1])
    causes = [_cause(least.header, lines, None, watch) for lines in (one, least.lines)]
    return causes[0] == causes[1]


def shorten(path: Path, outcome: Outcome) -> Least:
    """The shortest illegal part of a recording, which ends with its first illegal line."""
    assert outcome.found is not None
    past = lines_of(path, outcome.part, outcome.found.line)
    first = outcome.part.first_line
    least = shortest(outcome.header, past, first=first, machine=outcome.machine, seconds=5)
    assert least is not None
    assert least.done
    return least


def test_what_is_not_shown_is_not_held_against_it() -> None:
    """Values that are not shown are not judged, and a page shown late is known after that."""
    header = Header(geometry=SIZES[0], limits=default_limits(SIZES[0]))
    judging = judge(header, machine=None)
    first, second = ((slot, 0) for slot in (0, 1))
    for line in (
        Line(act.Reserve(0), None, None, {}),
        Line(act.Reserve(1), None, None, {}),
        Line(act.Allocate((first, second)), None, None, {"free": {0: 14}}),
        Line(act.Allocate(((0, 1),)), None, None, {"rows": {0: (7,)}, "counts": {7: 1}}),
    ):
        judging.take(line)
    assert judging.machine.agrees("counts", 3, 1), "it may be the page that no line has shown"
    assert not judging.machine.agrees("counts", 3, 2), "one row alone names that page"
    assert not judging.machine.agrees("counts", 16, 1), "there is no such page"
    assert judging.machine.agrees("rows", 0, (7,))
    assert not judging.machine.agrees("rows", 0, (8,)), "the row was shown with another page"
    assert not judging.machine.agrees("rows", 1, (7,)), "that page belongs to another row"
    assert not judging.machine.agrees("rows", 1, (16,)), "there is no such page"
    assert judging.machine.agrees("rows", 1, (8,))


def test_memory_does_not_grow_with_the_recording() -> None:
    """The fast table has the same size after ten times the events, since it forgets freed pages."""
    sizes = {}
    for rounds in (20, 200):
        ledger = Ledger(Header(geometry=SIZES[0], limits=default_limits(SIZES[0])))
        for number in range(rounds):
            for step in (act.Reserve(number % 4), act.Allocate(((number % 4, 0),))):
                assert not ledger.reasons(step)
                ledger.do(Line(step, None, None, {}))
            ledger.agrees("rows", number % 4, (number % 16,))
            assert not ledger.reasons(act.Free(number % 4))
            ledger.do(Line(act.Free(number % 4), None, None, {}))
        sizes[rounds] = ledger.size
    assert sizes[20] == sizes[200]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (
            '{"step": "Free", "slot": 0, "saw": {"pages": {}}}',
            "'saw.pages: no such field', allowed: used, rows",
        ),
        ('{"step": "Free", "slot": 0, "saw": []}', "'saw: []', allowed: an object"),
        (
            '{"step": "Free", "slot": 0, "saw": {"used": {"0": 1}}}',
            "'saw.used[0]: 1', allowed: true or false",
        ),
        (
            '{"step": "Free", "slot": 0, "saw": {"used": {"00": true}}}',
            "saw.used[00]: no slot or page",
        ),
        (
            '{"step": "Free", "slot": 0, "saw": {"used": {"x": true}}}',
            "'saw.used[x]: no slot or page'",
        ),
        (
            '{"step": "Free", "slot": 0, "saw": {"rows": {"0": [true]}}}',
            "'saw.rows[0]: True', allowed: an integer",
        ),
        (
            '{"step": "Free", "slot": 0, "refused": "SLOT_RANGE"}',
            "refused: 'SLOT_RANGE'\", allowed: a list",
        ),
        (
            '{"step": "Free", "slot": 0, "refused": ["LATE"]}',
            "refused: 'LATE'\", allowed: SLOT_RANGE, ",
        ),
        (
            '{"step": "Free", "slot": 0, "because": 1}',
            "Free has no field 'because'\", allowed: slot. ",
        ),
        (
            '{"step": "Append", "seq": 0, "tokens": [1]}',
            "Append has no field 'seq'\", allowed: slot, tokens. ",
        ),
        ('{"step": "Free"}', "'Free lacks the field slot', allowed: slot. "),
        ('{"step": "Assign", "params": 1}', "'params: 1', allowed: an object"),
        ('{"step": "Assign", "params": {"stops": [[true]]}}', "'params.stops: True', allowed: "),
        ('{"step": "Fork"}', "step 'Fork'\", allowed: Admit, Allocate, Append, Assign, Clone, "),
        ('{"kvspec": "recording", "version": 3}', "'a second header', allowed: one, on line 1"),
        ('{"step": "Free", "slot": 0, "saw": null}', "'saw: None', allowed: an object"),
        ('{"step": "Free", "slot": 0, "refused": null}', "'refused: None', allowed: a list"),
        ('{"step": "Free", "slot": 0, "result": null}', "'result: None', allowed: a result"),
        (
            '{"step": "Reserve", "refused": [], "result": 0}',
            "'result: a refused action has none', allowed: no such field",
        ),
        (
            '{"step": "Free", "slot": 0, "refused": ["SLOT_RANGE", "SLOT_RANGE"]}',
            "allowed: each reason once",
        ),
        ('{"step": "Free", "slot": 0} {}', "something follows"),
        ('{"step": "Free", "slot": 0, "result": NaN}', "NaN is not a number"),
        ("\xff", "no JSON: expecting value at character 1"),
    ],
)
def test_a_malformed_line_is_told(tmp_path: Path, line: str, part: str) -> None:
    """The error has the number of the line and its first mistake."""
    path = recorded(tmp_path / "bad.jsonl", table(SIZES[0]), "lifecycle", 0)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0], lines[1], line, *lines[2:]]) + "\n", encoding="utf-8")

    with pytest.raises(ValueError, match=r"bad\.jsonl line 3: saw ") as caught:
        validate(path)

    assert part in str(caught.value)


def test_a_limit_that_a_header_leaves_out_has_its_default(tmp_path: Path) -> None:
    """A batch is limited by the one field that the header gives."""
    wide: list[dict[str, Any]] = [
        {"step": "Reserve", "slot": 0},
        {"step": "Allocate", "batch": [[0, 0], [0, 1]]},
    ]
    for limits, legal in (
        ({}, True),
        ({"prefill_tokens": 2}, True),
        ({"prefill_tokens": 1}, False),
    ):
        outcome = validate(of_lines(tmp_path / "r.jsonl", *wide, limits=limits))
        default = default_limits(outcome.header.geometry)
        assert evolve(default, **limits) == outcome.header.limits
        assert legal == (outcome.found is None)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"limits": {"queue": 1}}, "Limits.queue is 1"),
        ({"limits": {"pages": 1}}, "Limits has no field 'pages'"),
        ({"limits": None}, "'limits: None', allowed: an object"),
        ({"version": 1}, "a recording of version 1; version 3 is read here"),
        ({"version": True}, "a recording of version True"),
        ({"kvspec": "notes"}, "not the header of a recording"),
        ({"spec_version": "9"}, "spec_version: '9'\", allowed: "),
        ({"policy": "best"}, "policy: 'best'\", allowed: lowest, any"),
        ({"copy": "late"}, "copy: 'late'\", allowed: eager, lazy"),
        ({"lookahead": -1}, "Header.lookahead is -1"),
        ({"reserve": "all"}, "reserve: 'all'\", allowed: none, request"),
        ({"refuses": "never"}, "refuses: 'never'"),
        ({"shows": ["pages"]}, "shows: ['pages']\", allowed: used, rows, "),
        ({"shows": "used"}, "shows: 'used'\", allowed: a list"),
        ({"colour": 1}, "'colour: no such field', allowed: "),
        ({"geometry": {"pages": 1}}, "Geometry lacks the field page_size"),
        ({"geometry": {"pages": 2**40, "page_size": 1, "slots": 1, "pages_per_seq": 1}},
         "Geometry.pages"),
    ],
)  # fmt: skip
def test_a_malformed_header_is_told(tmp_path: Path, change: dict[str, Any], part: str) -> None:
    """The header is read as strictly as the lines."""
    path = recorded(tmp_path / "bad.jsonl", table(SIZES[0]), "lifecycle", 0)
    rewrite(path, 1, lambda data: data.update(change))

    with pytest.raises(ValueError, match=r"bad\.jsonl line 1: saw ") as caught:
        validate(path)

    assert part in str(caught.value)


def test_a_pool_of_absurd_size_costs_nothing() -> None:
    """The fast table holds what is in use alone, so that a header cannot exhaust the memory."""
    geometry = Geometry(pages=2**31 - 1, page_size=1, slots=2**30 - 1, pages_per_seq=2**31 - 1)
    ledger = Ledger(Header(geometry=geometry, limits=default_limits(geometry), policy="lowest"))

    ledger.do(Line(act.Reserve(2**30 - 2), None, None, {}))

    assert ledger.size < 10


HEAD: dict[str, Any] = {"kvspec": "recording", "version": 3, "policy": "lowest", "shows": []}
GROWS: list[dict[str, Any]] = [
    {"step": "Reserve", "slot": 0},
    {"step": "Assign", "slot": 0, "prompt": [7], "params": {"max_new": 4}, "request": 1},
    {"step": "Allocate", "batch": [[0, 0]]},
    {"step": "Write", "batch": [[0, 0]]},
]


def of_lines(path: Path, *lines: dict[str, Any], **header: Any) -> Path:
    """A recording of these lines."""
    sizes = {"pages": 4, "page_size": 2, "slots": 2, "pages_per_seq": 3}
    texts = [json.dumps(line) + "\n" for line in ({**HEAD, "geometry": sizes, **header}, *lines)]
    path.write_text("".join(texts), encoding="utf-8")
    return path


def test_a_server_that_appends_one_token_at_a_time(tmp_path: Path) -> None:
    """A token that was appended can be written; one that was not is unknown."""
    more: list[dict[str, Any]] = [
        line
        for at in (1, 2, 3)
        for line in (
            {"step": "Append", "slot": 0, "tokens": [at]},
            {"step": "Allocate", "batch": [[0, at]]},
            {"step": "Write", "batch": [[0, at]], "saw": {"tokens": {"0": [7, 1, 2, 3][: at + 1]}}},
        )
    ]
    path = of_lines(tmp_path / "r.jsonl", *GROWS, *more)

    assert validate(path).found is None
    wrong = found(of_lines(path, *GROWS, *more[:3], *more[4:]))
    assert (wrong.line, wrong.expected) == (10, "refused: BATCH_UNKNOWN")


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ([{"step": "Append", "slot": 0, "tokens": [1]}, {"step": "Free", "slot": 0},
          {"step": "Pack"}], 8),
        ([{"step": "Enqueue", "slot": 0, "token": 1},
          {"step": "Append", "slot": 0, "tokens": [1]}], 7),
        ([{"step": "Propose", "slot": 0, "tokens": [1]}, {"step": "Free", "slot": 0},
          {"step": "Append", "slot": 0, "tokens": [1], "refused": []}, {"step": "Round"}], 9),
    ],
)  # fmt: skip
def test_append_beside_the_queue_is_told_at_its_line(
    tmp_path: Path, lines: list[dict[str, Any]], number: int
) -> None:
    """A recording with Append and an action of the queue is refused where the second one stands."""
    path = of_lines(tmp_path / "mixed.jsonl", *GROWS, *lines)

    with pytest.raises(InvalidInput, match=rf"mixed\.jsonl line {number}: saw '\w+ after "):
        validate(path)


def test_drafts_are_not_queued_where_append_follows(tmp_path: Path) -> None:
    """Append on a later line says that drafts are not queued, so they are written unpacked."""
    drafts: list[dict[str, Any]] = [
        {"step": "Propose", "slot": 0, "tokens": [5]},
        {"step": "Allocate", "batch": [[0, 1]]},
        {"step": "Write", "batch": [[0, 1]]},
        {"step": "Commit", "slot": 0, "length": 2},
    ]
    with_append = [*GROWS, *drafts, {"step": "Append", "slot": 0, "tokens": [1]}]

    assert validate(of_lines(tmp_path / "r.jsonl", *with_append)).found is None
    wrong = found(of_lines(tmp_path / "queued.jsonl", *GROWS, *drafts))
    assert (wrong.line, wrong.expected) == (8, "refused: BATCH_QUEUED")


def on(slot: int, *positions: int) -> list[list[int]]:
    """The batch of some positions of a slot."""
    return [[slot, at] for at in positions]


NOISE: list[dict[str, Any]] = [
    {"step": "Allocate", "batch": []},
    {"step": "Reserve", "slot": 1},
    {"step": "Reserve", "slot": 0, "refused": ["SLOT_USED"]},
    {"step": "Allocate", "batch": on(1, 0)},
    {"step": "Free", "slot": 1},
]
CLONE: dict[str, Any] = {"step": "Clone", "parent": 0, "child": 1, "choice": 1}
STORIES: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "a use after the release": (
        [*GROWS, *NOISE, {"step": "Free", "slot": 0}, {"step": "Allocate", "batch": on(0, 0)}],
        ["Reserve", "Free", "Allocate"],
    ),
    "a count that stays where a clone left it": (
        [*GROWS[:2], {"step": "Append", "slot": 0, "tokens": [8]},
         {"step": "Allocate", "batch": on(0, 0, 1)}, {"step": "Write", "batch": on(0, 0, 1)},
         *NOISE, CLONE, {"step": "Free", "slot": 1},
         {"step": "Reserve", "slot": 1, "saw": {"counts": {"0": 2}}}],
        ["Reserve", "Assign", "Append", "Allocate", "Write", "Clone", "Free", "Reserve"],
    ),
    "a clone into a slot in use": (
        [*GROWS, *NOISE, {"step": "Reserve", "slot": 1}, CLONE],
        ["Reserve", "Reserve", "Clone"],
    ),
    "a refusal for another reason": (
        [*GROWS, *NOISE, {**CLONE, "refused": ["UNWRITTEN"], "child": 0}],
        ["Reserve", "Clone"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_what_is_shortened_tells_the_same_story(tmp_path: Path, story: str) -> None:
    """The shortest part has the same error, in the same terms, and nothing that it can lack."""
    told, kept = STORIES[story]
    path = of_lines(tmp_path / "r.jsonl", *told)
    outcome = validate(path)
    assert outcome.found is not None
    assert outcome.found.line == len(told) + 1, "the last line is the first illegal one"

    least = shorten(path, outcome)

    assert kept == [type(line.step).__name__ for line in least.lines]
    write(tmp_path / "least.jsonl", least.header, least.lines)
    again = found(tmp_path / "least.jsonl")
    assert evolve(again, line=0) == evolve(outcome.found, line=0)


def test_a_count_of_a_page_that_no_row_shows_is_not_missed(tmp_path: Path) -> None:
    """A page that is unknown has no number by which its count could be shown."""
    path = tmp_path / "r.jsonl"
    header = {
        "kvspec": "recording",
        "version": 3,
        "geometry": {"pages": 8, "page_size": 4, "slots": 2, "pages_per_seq": 4},
        "policy": "any",
        "shows": ["counts"],
    }
    steps: list[dict[str, object]] = [
        {"step": "Reserve", "slot": 0},
        {"step": "Allocate", "batch": [[0, 0]], "saw": {"counts": {"5": 1}}},
        {"step": "Free", "slot": 0, "saw": {"counts": {"5": 0}}},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (header, *steps)), encoding="utf-8")

    assert validate(path).found is None
