"""The shortest part of an illegal recording: the same cause, nothing to spare, by either judge."""

import time
from collections.abc import Callable, Container, Sequence
from random import Random
from typing import Any

import pytest
from attrs import evolve
from deep import deep_after
from recording_tools import appending, random_steps
from second_judge import about, initial, judged, line_of, values
from spec_engine import small

from conformance.history import Attend, PoisonDead
from conformance.lockstep.comparer import Difference
from conformance.protocol import UNASKED, Poison, Policy
from conformance.recordings import shrinking
from conformance.recordings.answers import NOT_SHOWN, Illegal
from conformance.recordings.format import FIELDS, Header, Line
from conformance.recordings.judge import judge
from conformance.recordings.shrinking import (
    Kept,
    Least,
    _cause,
    _changing,
    _illegal,
    _lifetimes,
    _only,
    _promising_less,
    _Search,
    _showing_less,
    _watched,
    shortest,
)
from spec import ladder
from spec.fields import BY_NAME
from spec.machines import actions as act
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import STANDARD, Capacity, CleanupMode, Params, default_limits

SIZES = small(pages=5, page_size=2, slots=3, pages_per_seq=3)
MACHINE = ladder.whole_appending()
SHOWS = ("used", "rows", "counts", "allocated", "written", "tokens", "free")
POLICIES = (STANDARD, Capacity(copy="lazy"), Capacity(lookahead=1))


def header_of(capacity: Capacity, shows: tuple[str, ...] = SHOWS) -> Header:
    """The header of an engine that takes the lowest free pages."""
    return Header(
        geometry=SIZES,
        limits=default_limits(SIZES),
        cleanup=CleanupMode.INCREMENTAL,
        policy="lowest",
        copy=capacity.copy,
        lookahead=capacity.lookahead,
        shows=shows,
    )


def legal(header: Header, seed: int) -> list[tuple[State, Line, State]]:
    """Random legal lines, each with the states before and after it."""
    state, found = initial(header, MACHINE), []
    *_, session = random_steps(lambda: appending(SIZES, header.capacity), "lifecycle", seed)
    for number, step in enumerate((*session.history[:60],)):
        for one in (step, PoisonDead(Poison.NAN), Attend())[: 1 + 2 * (number % 9 == 0)]:
            line = line_of(MACHINE, state, one, shows=header.shows)
            after = judged(header, MACHINE, state, line).after
            found.append((state, line, after))
            state = after
    return found


def spoilt(draws: Random, line: Line, after: State) -> Line:
    """The line with one mistake, in a value, in a promise, in the answer or in the result."""
    saw = {name: dict(found) for name, found in line.saw.items()}
    shown, every = [(name, at) for name in saw for at in saw[name]], values(after)
    name, at = draws.choice(shown or [("free", 0)])
    match draws.randrange(5):
        case 0 if shown:
            del saw[name][at]
        case 1:
            return line._replace(refused=None if line.refused else frozenset(), result=None)
        case 2 if isinstance(line.result, int):
            return line._replace(result=line.result + 1)
        case _:
            value: Any = every[name, at]
            other = (*value, 3) if isinstance(value, tuple) else value + 1
            saw.setdefault(name, {})[at] = not value if isinstance(value, bool) else other
    return line._replace(saw=saw)


def cause(
    header: Header, machine: Machine | None, lines: Sequence[Line]
) -> tuple[str, str, object, object] | None:
    """The error of the last line, in its terms; None if that is legal, or another is illegal.

    If the action should be refused, for which reasons.
    """
    judging = judge(header, machine=machine)
    for number, line in enumerate(lines, start=1):
        try:
            judging.take(line)
        except Illegal as illegal:
            found = illegal.difference
            reasons = found.expected if found.what == "the action" else None
            return (found.clause, found.what, found.seen, reasons) if number == len(lines) else None
    return None


def found(
    header: Header, lines: Sequence[Line], machine: Machine | None, *, seconds: float = 60
) -> Least:
    """The shortest part of some lines, of which the first has the number 2."""
    least = shortest(header, iter(lines), first=2, machine=machine, seconds=seconds)
    assert least is not None
    return least


def recordings(count: int) -> list[tuple[Header, list[Line]]]:
    """Random recordings of which the last line alone is illegal."""
    made = []
    for seed in range(count):
        draws = Random(seed)
        shows = SHOWS if seed % 3 else tuple(draws.sample(SHOWS, 4))
        header = header_of(POLICIES[seed % 3], shows)
        history = legal(header, seed)
        for at in sorted(draws.sample(range(len(history) // 2, len(history)), 6)):
            before, line, after = history[at]
            last = spoilt(draws, line, after)
            if judged(header, MACHINE, before, last).told is not None:
                made.append((header, [*(one for _, one, _ in history[:at]), last]))
                break
    return made


@pytest.mark.parametrize("quick", deep_after(1, [True, False]))
def test_the_shortest_part_has_the_same_error_and_no_line_to_spare(quick: bool) -> None:  # noqa: FBT001
    """Each line is one of the recording, in its order; without any one of them it is another."""
    machine = None if quick else MACHINE
    for header, lines in recordings(24 if quick else 8):
        least = found(header, lines, machine)

        assert least.done
        assert cause(header, machine, lines) == cause(least.header, machine, least.lines)
        assert sorted({*least.numbers}) == [*least.numbers]
        assert len(lines) + 1 == least.numbers[-1]
        for number, line in zip(least.numbers, least.lines, strict=True):
            whole = lines[number - 2]
            assert type(whole.step) is type(line.step)
            assert all(whole.saw[name].items() >= seen.items() for name, seen in line.saw.items())
        assert not any(isinstance(line.step, PoisonDead | Attend) for line in least.lines[:-1])
        for at in range(len(least.lines) - 1):
            fewer = [*least.lines[:at], *least.lines[at + 1 :]]
            again = shortest_of(least.header, fewer, machine)
            assert again != shortest_of(least.header, least.lines, machine), at


def shortest_of(header: Header, lines: Sequence[Line], machine: Machine | None) -> object:
    """What the last line says, and what the entries that it is about have been before it.

    A slot of the line may have been in use, a page of its row may have been shared, and the entry
    that is wrong may have had the value that is seen.
    """
    error = cause(header, machine, lines)
    if error is None:
        return None
    _, what, seen, _ = error
    last, judging = lines[-1], judge(header, machine=machine)
    watch: dict[tuple[str, int], object] = {}
    for slot in about(last):
        if slot >= 0:
            watch["used", slot] = True
    name, _, index = what.partition("[")
    if isinstance(seen, tuple | list) and name == "rows":
        watch.update({("counts", page): 2 for page in seen if 0 <= page < 2**31 - 1})
    if name in BY_NAME and not isinstance(seen, list):
        watch[name, int(index.rstrip("]") or 0)] = seen
    states = []
    for line in lines[:-1]:
        judging.take(line)
        states.append({entry: judging.machine.expected(*entry) for entry in watch})
    states = states or [{entry: judging.machine.expected(*entry) for entry in watch}]
    was = {entry: any(one[entry] == value for one in states) for entry, value in watch.items()}
    if len(lines) == 1:
        was = dict.fromkeys(watch, False)
    now = {
        entry: tuple(None if page < 0 else page for page in value)
        if isinstance(value, tuple) and entry[0] == "rows"
        else value
        for entry, value in states[-1].items()
    }
    return error, was, now


def test_both_judges_find_the_same_shortest_part() -> None:
    """The ledger under the lowest policy, and the specification, are led to the same lines."""
    for header, lines in recordings(12):
        promised = evolve(header, policy="lowest")
        quick, slow = (found(promised, lines, machine) for machine in (None, MACHINE))

        assert (slow.header, slow.lines) == (quick.header, quick.lines)
        assert cause(quick.header, None, quick.lines) == cause(slow.header, MACHINE, slow.lines)


def noise(slot: int) -> list[Line]:
    """Lines that no error in another slot needs: harness, refusals, and an empty batch."""
    return [
        Line(PoisonDead(Poison.NAN), None, None, {}),
        Line(act.Allocate((None,)), None, None, {}),
        Line(act.Write(()), None, None, {}),
        Line(act.Free(7), frozenset(), None, {}),
        Line(Attend(), None, None, {}),
        Line(act.Reserve(slot), None, None, {"used": {slot: True}}),
        Line(act.Allocate(((slot, 0),)), None, None, {}),
    ]


def bare(*steps: Any) -> list[Line]:
    """Lines that show nothing."""
    return [Line(step, None, None, {}) for step in steps]


ASSIGN = act.Assign(0, (5, 6), Params(max_new=1), 1)
BOTH = ((0, 0), (1, 0), (0, 1))
STORIES: dict[str, tuple[list[Line], list[Any]]] = {
    "a batch loses the slots that are of no concern": (
        [
            *bare(act.Reserve(1), act.Reserve(0), act.Allocate(BOTH)),
            Line(act.Free(0), None, None, {"rows": {0: (4,)}}),
        ],
        [act.Reserve(0), act.Allocate(((0, 0), (0, 1))), act.Free(0)],
    ),
    "a line that is only about other slots goes": (
        [
            *noise(1),
            *bare(act.Reserve(0), act.Allocate(((0, 0),)), act.Free(1)),
            Line(act.Allocate(((0, 1),)), None, None, {"allocated": {0: 3}}),
        ],
        [act.Reserve(0), act.Allocate(((0, 0),)), act.Allocate(((0, 1),))],
    ),
    "an earlier sequence of the slot goes": (
        [
            *bare(act.Reserve(0), act.Allocate(((0, 0),)), act.Free(0)),
            *bare(act.Reserve(0), ASSIGN, act.Allocate(((0, 0), (0, 1)))),
            Line(act.Write(((0, 0), (0, 1))), None, None, {"written": {0: 5}}),
        ],
        [act.Reserve(0), ASSIGN, act.Allocate(((0, 0), (0, 1))), act.Write(((0, 0), (0, 1)))],
    ),
    "pages that no row shows have no names": (
        [
            *bare(act.Reserve(1), act.Allocate(((1, 0),)), act.Reserve(0), act.Allocate(((0, 0),))),
            Line(act.TakeOutputs(), None, None, {"rows": {0: (4, 3)}}),
        ],
        [act.Reserve(0), act.Allocate(((0, 0),)), act.TakeOutputs()],
    ),
    "the line that shows a page stays, since that page is expected": (
        [
            *bare(act.Reserve(0), act.Allocate(((0, 0),))),
            Line(act.TakeOutputs(), None, None, {"rows": {0: (0,)}}),
            Line(act.FreeFinished(), None, None, {"rows": {0: (4, 3)}}),
        ],
        [act.Reserve(0), act.Allocate(((0, 0),)), act.TakeOutputs(), act.FreeFinished()],
    ),
    "a leak needs its own sequence alone": (
        [
            *noise(2)[:5],
            *bare(act.Reserve(0)),
            Line(act.Allocate(((0, 0),)), None, None, {"rows": {0: (3,)}, "counts": {3: 1}}),
            Line(act.Free(0), None, None, {"counts": {3: 1}, "free": {0: 4}}),
        ],
        [act.Reserve(0), act.Allocate(((0, 0),)), act.Free(0)],
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_what_is_of_no_concern_goes(story: str) -> None:
    """The steps that are left are those of the story."""
    lines, kept = STORIES[story]
    header = evolve(header_of(STANDARD, ()), policy="any")

    least = found(header, lines, None)

    assert kept == [line.step for line in least.lines]


def search_of(fails: Callable[[set[int]], bool], tried: list[list[int]]) -> _Search:
    """A search in which it depends on their numbers whether lines fail."""

    class Search(_Search):
        def fails(self, kept: Sequence[Kept]) -> bool:
            tried.append([one.number for one in kept])
            return fails({*tried[-1]})

    header = header_of(STANDARD)
    return Search(header, None, {}, None, time.monotonic() + 60)


def numbered(count: int) -> list[Kept]:
    """So many lines that begin no sequence."""
    return [Kept(number, Line(act.Pack(), None, None, {})) for number in range(count)]


@pytest.mark.parametrize("count", range(1, 18))
def test_runs_of_lines_are_halved_until_no_line_can_go(count: int) -> None:
    """Where every line is needed, runs of half of them are tried, of a quarter, and so on."""
    tried = list[list[int]]()

    least = search_of(lambda left: len(left) == count, tried).shrink(numbered(count))

    expected, size = list[list[int]](), max(1, count // 2)
    while True:
        for start in range(0, count - 1, size):
            end = min(start + size, count - 1)
            expected.append([one for one in range(count) if not start <= one < end])
        if size == 1:
            break
        size //= 2
    assert (True, tuple(range(count))) == (least.done, least.numbers)
    assert expected == tried


@pytest.mark.parametrize("seed", range(12))
def test_what_is_left_is_a_set_that_fails_and_no_smaller_one(seed: int) -> None:
    """A line is taken out again and again until each that is left is needed, the last one too."""
    draws, tried = Random(seed), list[list[int]]()
    count = draws.randrange(3, 30)
    needs = [
        frozenset({count - 1, *draws.sample(range(count), draws.randrange(count // 2 + 1))})
        for _ in range(3)
    ]

    least = search_of(lambda left: any(need <= left for need in needs), tried).shrink(
        numbered(count)
    )

    assert least.done
    assert any(need == {*least.numbers} for need in needs)
    assert all(one[-1] == count - 1 for one in tried)
    assert len(tried) == len({tuple(one) for one in tried}) or len(tried) < 9 * count


@pytest.mark.parametrize("seed", range(8))
def test_a_sequence_goes_as_a_whole(seed: int) -> None:
    """Lines that fail only with all or none of a sequence lose all of it, but no later one."""
    draws, tried = Random(seed), list[list[int]]()
    before, between = (bare(*[act.Pack()] * draws.randrange(1, 4)) for _ in range(2))
    begins = draws.choice((act.Reserve(1), act.Clone(0, 1, 1)))
    own = bare(begins, act.Allocate(((1, 0),)), act.Append(1, (1,)), act.Free(1))
    both = Line(act.Allocate(((1, 1), (0, 1))), None, [3], {"free": {0: 1}})
    later = bare(act.Reserve(1), act.Allocate(((1, 0),)))
    refused = Line(act.Free(1), frozenset(), None, {})
    lines = [*before, *own[:2], refused, both, *own[2:], *between, *later, *bare(act.Pack())]
    kept = [Kept(number, line) for number, line in enumerate(lines)]
    first = len(before)
    gone = {first, first + 1, first + 2, first + 4, first + 5}
    stays = {*range(len(lines))} - gone

    least = search_of(lambda left: left == stays, tried).shrink(kept)

    assert sorted(stays) == [*least.numbers]
    cut = least.lines[sorted(stays).index(first + 3)]
    assert Line(act.Allocate(((0, 1),)), None, None, {}) == cut
    assert later == [*least.lines[-3:-1]]


@pytest.mark.parametrize("refused", [None, frozenset[Any]()])
def test_a_refused_beginning_is_none(refused: Any) -> None:
    """No sequence goes with a reservation or a clone that was refused."""
    for step in (act.Reserve(1), act.Clone(0, 1, 1)):
        lines = [Line(step, refused, None, {}), *bare(act.Append(1, (1,)), act.Pack())]
        tried = list[list[int]]()
        kept = [Kept(number, line) for number, line in enumerate(lines)]

        least = search_of(lambda left: left == {2}, tried).shrink(kept)

        assert ((0, 1, 2) if refused is not None else (2,)) == least.numbers


def test_shrinking_ends_at_its_deadline() -> None:
    """Without time the lines are as they were, and the answer says that there may be fewer."""
    for _, lines in recordings(3):
        header = header_of(STANDARD)
        kept = [Kept(number, line) for number, line in enumerate(lines)]
        search = _Search(header, None, {}, None, time.monotonic() - 1)

        least = search.shrink(kept)

        assert (False, tuple(lines)) == (least.done, least.lines)


def test_time_that_ends_in_the_last_pass_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording of which no whole sequence was left out for want of time may be shorter."""
    steps: list[act.Action] = [act.Reserve(0), act.Reserve(1), act.Pack()]
    kept = [Kept(at, Line(step, None, None, {})) for at, step in enumerate(steps)]
    search = search_of(lambda left: len(left) == len(steps), [])
    times = iter([search.deadline - 1] * 2)
    monkeypatch.setattr(time, "monotonic", lambda: next(times, search.deadline + 1))

    assert not search.shrink(kept).done


@pytest.mark.parametrize(("most", "some"), [(3, True), (4, False), (5, False)])
def test_too_many_lines_are_not_shrunk(
    most: int,
    some: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A recording of so many lines is shrunk, and one of one line more is not; few are read."""
    monkeypatch.setattr(shrinking, "MOST", most)
    reserved = bare(*[act.Reserve()] * 4)
    lines = iter(reserved if not some else reserved * 3)

    least = shortest(header_of(STANDARD), lines, first=2, machine=None, seconds=60)

    assert some == (least is None)
    assert ([*reserved, *reserved] if some else []) == list(lines)


def test_lines_go_that_only_a_policy_needs() -> None:
    """Both judges know unknown pages, so that the lines go which take the pages before."""
    lines = [
        *bare(act.Reserve(0), act.Allocate(((0, 0),)), act.Reserve(1)),
        Line(act.Allocate(((1, 0),)), None, None, {"rows": {1: (1,)}}),
        Line(act.Free(1), None, None, {"counts": {1: 1}}),
    ]

    quick, slow = (found(header_of(STANDARD, ()), lines, one) for one in (None, MACHINE))

    assert ("any", (4, 5, 6)) == (quick.header.policy, quick.numbers)
    assert ("any", (4, 5, 6)) == (slow.header.policy, slow.numbers)


def living(lines: Sequence[Line], only: Container[int]) -> list[Kept]:
    """The lines about sequences that are there at the last one, cut to their slots."""
    begun = dict[int, int]()
    for at, line in enumerate(lines):
        if isinstance(line.step, act.Reserve | act.Clone) and line.refused is None:
            begun[about(line)[-1]] = at
    for at, line in enumerate(lines[:-1]):
        if isinstance(line.step, act.Free) and line.refused is None:
            (slot,) = about(line)
            if begun.get(slot, at) < at:
                del begun[slot]
    kept = list[Kept]()
    for at, line in enumerate(lines[:-1]):
        if any(slot in only and begun.get(slot, at + 1) <= at for slot in about(line)):
            kept.append(Kept(at, batch_of(line, {slot for slot in begun if slot in only})))
    return [*kept, Kept(len(lines) - 1, lines[-1])]


def batch_of(line: Line, slots: Container[int]) -> Line:
    """The line with the entries of these slots, and what it shows if none goes."""
    if not isinstance(line.step, act.Allocate | act.Write):
        return line
    left = tuple(one for one in line.step.batch if not one or one[0] in slots)
    if len(left) == len(line.step.batch):
        return line
    return Line(type(line.step)(left), line.refused, None, {})


@pytest.mark.parametrize("seed", range(12))
def test_lifetimes_are_the_lines_of_sequences_that_are_left(seed: int) -> None:
    """They go from the last beginning of a slot that is not freed, and are cut to these slots."""
    draws, header = Random(seed), header_of(POLICIES[seed % 3])
    lines = [line for _, line, _ in legal(header, seed)]
    for _ in range(20):
        end = draws.randrange(1, len(lines) + 1)
        some, only = lines[:end], {*draws.sample(range(3), draws.randrange(4))}
        kept = [Kept(at, line) for at, line in enumerate(some)]

        assert living(some, range(9)) == _lifetimes(kept)
        assert living(some, only) == _lifetimes(kept, only)
        assert [batch_of(line, only) for line in some] == [_only(line, only) for line in some]
        assert [
            one
            for one in kept[:-1]
            if one.line.refused is None
            and not isinstance(one.line.step, PoisonDead | Attend)
            and {*getattr(one.line.step, "batch", "-")} - {None}
        ] + kept[-1:] == _changing(kept)


@pytest.mark.parametrize("quick", deep_after(1, [True, False]))
def test_a_cause_is_the_error_and_the_past_of_what_it_is_about(quick: bool) -> None:  # noqa: FBT001
    """Of some of the lines the cause is the same exactly where a second reader finds it so."""
    machine = None if quick else MACHINE
    alike = list[bool]()
    for header, lines in recordings(18 if quick else 6):
        draws, told = Random(len(lines)), _illegal(judge(header, machine=machine), lines)
        assert told is not None
        watch, whole = _watched(told, lines[-1]), shortest_of(header, lines, machine)
        for _ in range(12):
            left = [line for line in lines[:-1] if draws.randrange(20)]
            seen = _cause(header, [*left, lines[-1]], machine, watch)

            second = shortest_of(header, [*left, lines[-1]], machine)
            assert (second is None) >= (seen is None)
            assert (second == whole) == (seen == _cause(header, lines, machine, watch))
            alike.append(second == whole)

    assert {True, False} == {*alike}


SEEN: list[tuple[str, object, dict[tuple[str, int], object]]] = [
    ("rows[1]", (3, 2**31 - 1, 0, -1), {("counts", 3): 2, ("counts", 0): 2}),
    ("rows[1]", (), {}),
    ("rows[1]", NOT_SHOWN, {}),
    ("counts[4]", 3, {}),
    ("free", 3, {}),
    ("tokens[0]", (3, 0), {}),
    ("the result", [3, 0], {}),
    ("the action", "done", {}),
    ("the reason", "STOPS", {}),
]


@pytest.mark.parametrize(("what", "seen", "pages"), SEEN)
def test_an_error_is_about_its_entry_its_slots_and_its_pages(
    what: str, seen: object, pages: dict[tuple[str, int], object]
) -> None:
    """A slot may have been in use, a page of a row shared, and the entry as it is seen."""
    own = {"rows[1]": ("rows", 1), "counts[4]": ("counts", 4), "free": ("free", 0)}
    own["tokens[0]"] = ("tokens", 0)
    for step in (act.Reserve(), act.Free(2), act.Clone(0, 1, 1), act.Reset()):
        last = Line(step, None, None, {})
        used = {("used", slot): True for slot in about(last) if slot >= 0}
        entry = {own[what]: seen} if what in own else {}

        assert used | pages | entry == _watched(Difference("RC", what, seen, 0), last)


@pytest.mark.parametrize("seed", range(6))
def test_less_is_shown_of_what_is_not_wrong(seed: int) -> None:
    """The field that is wrong, rows, and what is promised stay; of the last line one entry."""
    draws, (header, lines) = Random(seed), recordings(6)[seed]
    last = lines[-1]._replace(
        saw={"counts": {0: 7, 1: 1}, "rows": {0: (), 1: (1,)}, "free": {0: 1}}
    )
    kept = [Kept(at, line) for at, line in enumerate([*lines[:-1], last])]
    wrong: list[tuple[str, object]] = [("counts[0]", 7), ("rows[1]", (1,)), ("free", 1)]
    wrong += [("used[0]", NOT_SHOWN), ("counts[1]", NOT_SHOWN), ("the action", "done")]
    for what, seen in wrong:
        shows = tuple(draws.sample(SHOWS, 1))
        name, _, index = what.partition("[")
        stay = {name, "rows", *shows}
        expected = [
            {one: found for one, found in line.saw.items() if one in stay} for _, line in kept
        ]
        if name in expected[-1] and seen != NOT_SHOWN:
            at = int(index.rstrip("]") or 0)
            expected[-1][name] = {at: last.saw[name][at]}

        less = _showing_less(kept, Difference("RC", what, seen, 0), evolve(header, shows=shows))

        assert expected == [line.saw for _, line in less]
        assert [line[:3] for _, line in kept] == [line[:3] for _, line in less]
        assert [*range(len(kept))] == [number for number, _ in less]
        policies: tuple[Policy, ...] = ("any", header.policy)
        promised = evolve(header, shows=FIELDS)
        for unasked, read in ((frozenset(), set()), (UNASKED, {"rows", "indexed"})):
            asked = evolve(promised, unasked=unasked)
            kept_back = {name} | read if seen == NOT_SHOWN else read
            shown = tuple(one for one in FIELDS if one in kept_back)
            headers = _promising_less(asked, Difference("RC", what, seen, 0))
            assert [evolve(asked, policy=one, shows=shown) for one in policies] == headers
