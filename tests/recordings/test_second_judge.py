"""Both judges of recordings against a plain second one, on random lines with random changes."""

import pickle
from collections.abc import Callable, Iterator
from copy import copy
from itertools import product
from random import Random
from typing import Any

import pytest
from attrs import evolve
from deep import deep_after
from recording_tools import appending, drafting, random_steps, table, whole
from second_judge import ORDER, Told, about, initial, judged, line_of, values
from spec_engine import SpecEngine, small
from spec_tools import grown

from conformance.files.serialisation import Malformed
from conformance.history import Attend, PoisonDead, Step
from conformance.protocol import Poison
from conformance.recordings.answers import Illegal
from conformance.recordings.by_specification import BySpec
from conformance.recordings.fast_table import Ledger
from conformance.recordings.fields import PLAIN_RESULTS
from conformance.recordings.format import Header, Line
from conformance.recordings.judge import Judge
from conformance.recordings.slots import slots_of
from conformance.rungs.coverage import POISONED, Coverage
from conformance.rungs.pages import PAGE_REUSED, REFUSED
from conformance.rungs.sharing import LAZY_KEPT
from spec import ladder
from spec.machines import actions as act
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import STANDARD, Capacity, Reason, default_limits

SIZES = (
    small(pages=5, page_size=2, slots=3, pages_per_seq=3),
    small(pages=4, page_size=1, slots=3),
    small(pages=9, page_size=3, slots=5),
)
POLICIES = (
    STANDARD,
    Capacity(copy="lazy"),
    Capacity(lookahead=2),
    Capacity(copy="lazy", lookahead=1, reserve="request"),
)
QUICK = {table: True, appending: True, drafting: False, whole: False}
"""The engines, and whether the fast table judges what they do."""


def machine_of(made: SpecEngine) -> Machine:
    """The machine of the specification that judges a recording of this engine."""
    return ladder.whole_appending() if act.Append in made.profile.actions else ladder.whole()


def header_of(made: SpecEngine, **changed: Any) -> Header:
    """The header of an engine that promises all that it shows."""
    profile = made.profile
    header = Header(
        geometry=profile.geometry,
        limits=profile.limits,
        cleanup=profile.cleanup,
        policy="lowest",
        copy=profile.copy,
        lookahead=profile.lookahead,
        reserve=profile.reserve,
        shows=ORDER,
    )
    return evolve(header, **changed)


def steps_of(made: SpecEngine, seed: int) -> tuple[Step, ...]:
    """Random steps of the fuzzer with this engine, and steps of the harness."""
    sizes, capacity = made.profile.geometry, made.profile.capacity
    level = "lifecycle" if seed % 2 else "scheduling"
    if act.Round not in made.profile.actions:
        level = "lifecycle"

    def again() -> SpecEngine:
        profile = made.profile
        return SpecEngine(
            sizes, profile.limits, profile.cleanup, actions=profile.actions, capacity=capacity
        )

    *_, session = random_steps(again, level, seed)
    return (*session.history, PoisonDead(Poison.NAN), Attend())


def other_value(draws: Random, value: object) -> object:
    """Another value of the same kind, near it."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + draws.choice((-1, 1, 2))
    assert isinstance(value, tuple | list)
    found = list(value)
    if found and draws.randrange(3):
        at = draws.randrange(len(found))
        changed = other_value(draws, found[at]) if isinstance(found[at], int) else found[at]
        found = draws.choice(([*found[:at], *found[at + 1 :]], [*found[:at], changed, *found[at:]]))
    else:
        found.append(draws.randrange(5))
    return type(value)(found)


def other_result(draws: Random, result: object) -> object:
    """Another result of the same form."""
    match result:
        case [int(rounds), None | str() as reason]:
            return [rounds + draws.choice((-1, 1)), reason]
        case int() | [int(), *_]:
            return other_value(draws, result)
        case []:
            return result
        case [*entries]:
            return draws.choice(([*entries, entries[0]], entries[1:]))
    raise AssertionError(result)


def changed(draws: Random, line: Line, after: State) -> Line:  # noqa: C901 - a table
    """The line with one thing changed: a value, a promise, the answer, the result or the action."""
    saw = {name: dict(found) for name, found in line.saw.items()}
    every, shown = values(after), [(name, at) for name in saw for at in saw[name]]
    name, at = draws.choice(list(every))
    reasons = draws.sample(list(Reason), draws.choice((0, 1, 1, 2)))
    kind = draws.randrange(10)
    if kind <= 1 and shown:
        name, at = draws.choice(shown)
    match kind:
        case 0 if shown:
            del saw[name][at]
        case 1 | 2:
            saw.setdefault(name, {})[at] = other_value(draws, every.get((name, at), every[name, 0]))
        case 3:
            saw.setdefault(name, {})[at] = every[name, at]
        case 4:
            beyond = max(index for one, index in every if one == name) + 1 + draws.randrange(3)
            saw.setdefault(name, {})[beyond] = other_value(draws, every[name, at])
        case 5:
            kept = () if line.refused is None else (*line.refused, *reasons)
            return line._replace(refused=frozenset(kept or reasons), result=None)
        case 6:
            return line._replace(refused=frozenset() if line.refused is None else None, result=None)
        case 7 if line.result is not None:
            return line._replace(result=other_result(draws, line.result))
        case 8 if isinstance(getattr(line.step, "slot", None), int):
            step: Any = line.step
            return line._replace(step=evolve(step, slot=(step.slot + 1) % 3))
        case 9 if type(line.step) not in PLAIN_RESULTS:
            return line._replace(result=draws.choice((0, [1], [1, 2])))
    return line._replace(saw=saw)


def taken(machine: Any, header: Header, line: Line) -> tuple[Told | None, Judge]:
    """What a machine tells of a line in its state, which stays as it is; and the judge."""
    judging = Judge(machine, header)
    try:
        judging.take(line)
    except Illegal as illegal:
        return illegal.difference[:4], judging
    return None, judging


def again(machine: Ledger | BySpec) -> Ledger | BySpec:
    """A copy of a machine, so that a line can be tried."""
    if isinstance(machine, Ledger):
        copied: Ledger = pickle.loads(pickle.dumps(machine))  # deepcopy takes longer
        return copied
    other = copy(machine)
    other.fields = {name: dict(found) for name, found in machine.fields.items()}
    return other


CASES = [*product((table, appending), POLICIES), (drafting, STANDARD), *product((whole,), POLICIES)]


def engine_of(make: Callable[..., SpecEngine], sizes: int, capacity: Capacity) -> SpecEngine:
    """An engine at one of the sizes."""
    return make(SIZES[sizes % 3]) if make is drafting else make(SIZES[sizes % 3], capacity)


@pytest.mark.parametrize("seed", deep_after(1, range(3)))
@pytest.mark.parametrize("refuses", deep_after(1, ["exact", "may_refuse_more"]))
@pytest.mark.parametrize(("make", "capacity"), deep_after(6, CASES))
def test_a_changed_line_is_judged_as_a_second_judge_does(
    make: Callable[..., SpecEngine], capacity: Capacity, refuses: str, seed: int
) -> None:
    """Every line, with some changes and with none, is told in the same terms by all judges."""
    made, draws = engine_of(make, seed, capacity), Random(seed)
    header = header_of(made, refuses=refuses, shows=draws.sample(ORDER, 9 + 2 * seed))
    machine = machine_of(made)
    state = initial(header, machine)
    judges: list[Ledger | BySpec] = [BySpec(header, machine)]
    judges += [Ledger(header)] * QUICK[make]
    for step in steps_of(made, seed):
        right = line_of(machine, state, step, shows=header.shows)
        second = judged(header, machine, state, right)
        assert None is second.told
        lines = [changed(draws, right, second.after) for _ in range(2)]
        lines += [changed(draws, one, second.after) for one in lines]
        for line in (*lines, right):
            verdict = judged(header, machine, state, line)
            for judge in judges:
                found, judging = taken(judge if line is right else again(judge), header, line)
                assert verdict.told == found, line
                if found is None:
                    assert {*verdict.outcomes} == judging.coverage.outcomes.keys()
                    harness = isinstance(line.step, PoisonDead | Attend)
                    refused = line.refused is not None and not harness
                    assert refused == judging.coverage.corners[REFUSED]
                    told = line.result is not None and type(step) not in PLAIN_RESULTS
                    assert ({type(step)} if told else set()) == judging.uncompared
                    poisons = isinstance(line.step, PoisonDead)
                    assert poisons == judging.coverage.corners[POISONED]
        state = second.after
        for judge, page in product(judges, range(header.geometry.pages)):
            rows = enumerate(state.sequences)
            naming: list[int | None] = [at for at, one in rows if one and page in one.row]
            assert judge.holder(page) in (naming or [None])


@pytest.mark.parametrize("make", [appending, whole])
@pytest.mark.parametrize("seed", range(3))
def test_a_line_is_about_the_slots_that_it_names(
    make: Callable[..., SpecEngine], seed: int
) -> None:
    """The slots of a line are those of its action, and with them is each that it changes."""
    made = make(SIZES[seed])
    machine, header = machine_of(made), header_of(made)
    state = initial(header, machine)
    for step in steps_of(made, seed):
        line = line_of(machine, state, step, shows=ORDER)
        after = judged(header, machine, state, line).after

        slots = slots_of(line)

        assert tuple(about(line)) == slots
        unlike = zip(state.sequences, after.sequences, strict=True)
        moved = {slot for slot, (old, new) in enumerate(unlike) if old != new}
        assert not slots or moved <= {*slots}
        state = after


@pytest.mark.parametrize("quick", [True, False])
def test_a_row_of_no_slot_is_illegal_whatever_its_length(quick: bool) -> None:  # noqa: FBT001
    """An index that does not exist is told as such, for rows of any number of pages."""
    header = header_of(table(SIZES[0]))
    for length, at in product(range(30), (3, 4)):
        machine = Ledger(header) if quick else BySpec(header, ladder.whole_appending())
        line = Line(act.Reset(), None, None, {"rows": {at: (0,) * length}})

        found, _ = taken(machine, header, line)

        assert ("RESET", f"rows[{at}]", (0,) * length, "no such index of rows") == found


def renamed(
    lines: list[tuple[State, Line, State]], draws: Random, size: int
) -> Iterator[tuple[Line, set[int], set[int]]]:
    """The lines of an engine that takes any free page, and its pages in use before and after."""
    names: dict[int, int] = {}
    for before, line, after in lines:
        old = {page for page, count in enumerate(before.counts) if count}
        new = {page for page, count in enumerate(after.counts) if count}
        held = {*names.values()}
        left = [page for page in range(len(after.counts)) if page not in held]
        was, now = dict(names), dict(names)
        now.update(zip(sorted(new - old), draws.sample(left, len(new - old)), strict=True))
        saw = {name: dict(found) for name, found in line.saw.items()}
        if "rows" in saw:
            saw["rows"] = {at: tuple(now[page] for page in row) for at, row in saw["rows"].items()}
        if "counts" in saw:
            saw["counts"] = {now[page]: count for page, count in saw["counts"].items()}
        result = line.result
        if isinstance(line.step, act.Allocate) and isinstance(result, list):
            result = [now[cell // size] * size + cell % size for cell in result]
        names = {page: name for page, name in now.items() if page in new}
        yield line._replace(saw=saw, result=result), {*was.values()}, {*names.values()}


def history_of(made: SpecEngine, header: Header, seed: int) -> list[tuple[State, Line, State]]:
    """Random lines of the specification, each with the states before and after it."""
    machine = machine_of(made)
    state, found = initial(header, machine), []
    for step in steps_of(made, seed):
        if not isinstance(step, PoisonDead | Attend):
            line = line_of(machine, state, step, shows=ORDER)
            after = judged(header, machine, state, line).after
            found.append((state, line, after))
            state = after
    return found


def rows_like(row: tuple[int, ...], pages: int) -> Iterator[tuple[tuple[int, ...], str]]:
    """Rows that take no such pages, each with what they should be."""
    for other in (*row, 0), row[:-1]:
        yield other, f"{len(row)} pages"
    for page in (-1, pages, pages + 1):
        yield (*row[:-1], page), f"pages below {pages}"


MACHINES: dict[str, Callable[[Header], Ledger | BySpec]] = {
    "the fast table": Ledger,
    "the specification": lambda header: BySpec(header, ladder.whole_appending()),
}
"""What judges the actions of a table."""


@pytest.mark.parametrize("by", MACHINES)
@pytest.mark.parametrize("capacity", POLICIES)
@pytest.mark.parametrize("seed", deep_after(2, range(6)))
def test_any_free_page_may_be_taken(capacity: Capacity, seed: int, by: str) -> None:
    """An engine with pages of its own choice is legal, and its corners are the second count's."""
    made = appending(SIZES[seed % 3], capacity)
    header, draws = header_of(made, policy="any"), Random(seed)
    machine, counted = MACHINES[by](header), Coverage()
    judging = Judge(machine, header)
    history = history_of(made, header, seed)

    for (before, _, after), (line, old, new) in zip(
        history, renamed(history, draws, header.geometry.page_size), strict=True
    ):
        for name, at in [(one, at) for one in line.saw for at in line.saw[one]]:
            if name in {"rows", "counts"}:
                wrong = {**line.saw[name], at: other_value(draws, line.saw[name][at])}
                one = line._replace(saw={**line.saw, name: wrong})
                if name == "counts" or not isinstance(line.step, act.Allocate | act.Clone):
                    assert None is not taken(again(machine), header, one)[0], one
        for at, row in line.saw.get("rows", {}).items():
            sequence = before.sequences[at]
            if isinstance(line.step, act.Allocate) and sequence and len(sequence.row) < len(row):
                for seen, expected in rows_like(row, header.geometry.pages):
                    one = line._replace(saw={**line.saw, "rows": {**line.saw["rows"], at: seen}})
                    told = ("ROW", f"rows[{at}]", [*seen], expected)
                    assert told == taken(again(machine), header, one)[0]
        judging.take(line)
        assert not isinstance(line.step, PoisonDead | Attend)
        reasons = line.refused or frozenset()
        counted.record(before, line.step, reasons, after, pages=(old, new))
        assert counted.corners == judging.coverage.corners, line
        assert not judging.uncompared


@pytest.mark.parametrize("by", MACHINES)
@pytest.mark.parametrize("capacity", POLICIES)
@pytest.mark.parametrize("seed", deep_after(2, range(6)))
def test_what_is_shown_late_or_never_is_legal(capacity: Capacity, seed: int, by: str) -> None:
    """Of a legal recording any values may be left out, and shown again later."""
    made = appending(SIZES[seed % 3], capacity)
    header, draws = header_of(made, policy="any", shows=()), Random(seed)
    machine = MACHINES[by](header)
    judging, row, counts = Judge(machine, header), dict[int, Any](), dict[int, int]()
    history = history_of(made, header, seed)

    for (*_, after), (line, _, used) in zip(
        history, renamed(history, draws, header.geometry.page_size), strict=True
    ):
        row.update(line.saw.get("rows", {}))
        counts.update(line.saw.get("counts", {}))
        late = {
            "rows": {at: seen for at, seen in row.items() if not draws.randrange(6)},
            "counts": {at: seen for at, seen in counts.items() if not draws.randrange(6)},
            "free": {0: len(after.counts) - len(used)},
        }
        judging.take(line._replace(saw=late, result=draws.choice((None, line.result))))
        for at, seen in late["rows"].items():
            known = [list(used - {*seen})[:1], [header.geometry.pages]]
            for page, other in product(range(len(seen)), known):
                wrong = (*seen[:page], *other, *seen[page + 1 :])
                assert not again(machine).agrees("rows", at, wrong), (line, wrong, seen)
            assert not again(machine).agrees("rows", at, (*seen, 0))
            assert seen == machine.expected("rows", at)
            for page in seen:
                assert counts[page] == machine.expected("counts", page)
                assert page in row[machine.holder(page)]  # type: ignore[index]


@pytest.mark.parametrize(("hidden", "again"), [(False, [0, 1, 0, 1]), (True, [0, 0, 1, 1])])
def test_a_page_is_taken_again_if_it_was_released_or_none_is_left(
    hidden: bool,  # noqa: FBT001
    again: list[int],
) -> None:
    """A page that rows show is known; of hidden ones, one more than there are was taken before."""
    sizes = small(pages=2, page_size=1, slots=2, pages_per_seq=2)
    header = Header(geometry=sizes, limits=default_limits(sizes))
    judging, seen = Judge(Ledger(header), header), list[int]()

    for page in (1, 1, 0, 0):
        before = judging.coverage.corners[PAGE_REUSED]
        judging.take(Line(act.Reserve(0), None, None, {}))
        shown = {} if hidden else {"rows": {0: (page,)}}
        judging.take(Line(act.Allocate(((0, 0),)), None, None, shown))
        judging.take(Line(act.Free(0), None, None, {}))
        seen.append(judging.coverage.corners[PAGE_REUSED] - before)

    assert again == seen


@pytest.mark.parametrize("shown", [{}, {"rows": {0: (3,)}}])
@pytest.mark.parametrize("result", ["6", [[6]], {}, 6])
def test_a_result_of_another_form_is_malformed(shown: dict[str, Any], result: object) -> None:
    """It is no wrong value, whether there is something to compare it with or not."""
    header = Header(geometry=SIZES[0], limits=default_limits(SIZES[0]))
    judging = Judge(Ledger(header), header)
    judging.take(Line(act.Reserve(0), None, None, {}))

    with pytest.raises(Malformed, match="result: "):
        judging.take(Line(act.Allocate(((0, 0),)), None, result, shown))


@pytest.mark.parametrize(("page", "again"), [(2, 1), (3, 0)])
def test_a_page_that_is_shown_late_may_be_one_that_was_released(page: int, again: int) -> None:
    """It counts as taken again on the line that shows it, if an earlier line released it."""
    header = Header(geometry=SIZES[0], limits=default_limits(SIZES[0]))
    judging = Judge(Ledger(header), header)
    batch = act.Allocate(((0, 0),))
    for step, rows in ((act.Reserve(0), {}), (batch, {0: (2,)}), (act.Free(0), {})):
        judging.take(Line(step, None, None, {"rows": rows}))
    for step in (act.Reserve(0), batch):
        judging.take(Line(step, None, None, {}))
    assert 0 == judging.coverage.corners[PAGE_REUSED]

    judging.take(Line(act.TakeOutputs(), None, None, {"rows": {0: (page,)}}))

    assert again == judging.coverage.corners[PAGE_REUSED]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("slots", "kept"), [((0, 2), 0), ((0,), 0), ((0, 1), 1), ((0, 1, 2), 1)])
def test_the_last_owner_keeps_a_page_that_the_others_leave(
    size: int, slots: tuple[int, ...], kept: int
) -> None:
    """A slot that appends in a page of its own keeps nothing, whoever else copies."""
    sizes = small(pages=9, page_size=size, slots=3)
    header = Header(geometry=sizes, limits=default_limits(sizes), policy="lowest", copy="lazy")
    judges = [Judge(one, header) for one in (Ledger(header), BySpec(header, ladder.whole()))]
    steps = (*grown(0, 1), act.Clone(0, 1, 1), *grown(2, 1))

    for judging in judges:
        for step in (*steps, act.Allocate(tuple((slot, 1) for slot in slots))):
            judging.take(Line(step, None, None, {}))

        assert kept == judging.coverage.corners[LAZY_KEPT]


def test_the_size_of_a_ledger_is_all_that_it_keeps() -> None:
    """Sequences, pages, keys, and what can be taken again are counted, each once."""
    header = Header(geometry=SIZES[0], limits=default_limits(SIZES[0]), policy="lowest")
    ledger, sizes = Ledger(header), list[int]()
    judging = Judge(ledger, header)
    for slot in range(3):
        for step in (act.Reserve(), act.Allocate(((slot, 0),))):
            judging.take(Line(step, None, None, {}))
            sizes.append(ledger.size)
    for slot in range(3):
        judging.take(Line(act.Free(slot), None, None, {}))
        sizes.append(ledger.size)

    assert [1, 2, 3, 4, 5, 6, 7, 8, 7] == sizes
