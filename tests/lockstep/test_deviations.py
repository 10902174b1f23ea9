"""Engines that are the specification but for one thing, and what is told of them.

The histories are random and have every action. An engine that is right is never blamed.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from itertools import chain
from typing import Any, Final

import pytest
from attrs import evolve
from capacity_toys import AHEAD, BOTH, LAZY, LAZY_WHOLE, WHOLE
from deep import deep_after
from drawn_histories import (
    ROOMY,
    TIGHT,
    WINDOWED,
    Renaming,
    Wrapped,
    after_each,
    copied,
    drawn,
    engine_of,
    trial,
)
from spec_engine import ACTIONS, SpecEngine, small

from conformance.history import Attend, PoisonDead
from conformance.lockstep import serving
from conformance.lockstep.lockstep import Lockstep, Violation
from conformance.lockstep.run import finish, take
from conformance.protocol import RESULTS, Action, Engine, Poison, Result, Rounds
from conformance.rungs.registry import clause_of
from spec import clauses
from spec import view as views
from spec.fields import VIEWED
from spec.machines import actions as act
from spec.table import BatchPlan
from spec.view import View
from spec.vocabulary import (
    INVALID,
    STANDARD,
    Capacity,
    CleanupMode,
    FinishReason,
    Reason,
    Refusal,
    default_limits,
    refused,
)

SIZES: Final = {"roomy": ROOMY, "windowed": WINDOWED, "tight": TIGHT}
WIDE: Final = small(pages=8, page_size=4, slots=5, pages_per_seq=3)
"""A pool of few pages for many sequences."""
SEEDS: Final = (*range(9), 14)


def judged(error: Violation) -> tuple[object, ...]:
    """All that a violation tells."""
    return error.clause, error.message, error.action, error.before, error.after


def test_the_histories_have_every_action() -> None:
    """Each action is done and, where it can be, refused in some history."""
    done, refused_too = set[type](), set[type]()
    for sizes in SIZES.values():
        for seed in SEEDS:
            for lockstep, step in after_each(engine_of(sizes), drawn(sizes, seed)):
                (refused_too if lockstep.reasons(step) else done).add(type(step))

    assert set(ACTIONS) == done
    assert {act.Admit, act.Allocate, act.Clone, act.Prefill, act.Write} <= refused_too


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("kind", [SpecEngine, Renaming])
@pytest.mark.parametrize("seed", deep_after(1, SEEDS))
def test_an_engine_that_is_right_is_never_blamed(
    seed: int, kind: type[SpecEngine], name: str
) -> None:
    """It may name pages as it likes; it is poisoned, attends, shows statistics and serves."""
    sizes = SIZES[name]
    lockstep = Lockstep(engine_of(sizes, kind))

    for step in drawn(sizes, seed):
        expected = lockstep.reasons(step)
        before = lockstep.state
        assert expected == take(lockstep, step)
        assert expected or lockstep.machine.effect(before, step) == lockstep.state
        take(lockstep, Attend())
        take(lockstep, PoisonDead(Poison.NAN))
        other, served = copied(lockstep), serving.serve(lockstep.machine, lockstep.state)
        finish(other)
        assert other.state == (served.state if served else lockstep.state)
        assert other.seen == other.engine.observe()


@pytest.mark.parametrize("capacity", [LAZY, BOTH, LAZY_WHOLE])
@pytest.mark.parametrize("cleanup", deep_after(1, CleanupMode))
@pytest.mark.parametrize("name", ["roomy", "tight", "wide"])
def test_an_engine_with_a_policy_may_name_pages_as_it_likes(
    name: str, cleanup: CleanupMode, capacity: Capacity
) -> None:
    """One action may copy a page, free it, and take it again under another name."""
    sizes = SIZES.get(name, WIDE)
    for seed in range(4):
        history = drawn(sizes, seed, cleanup=cleanup, capacity=capacity)
        lockstep = Lockstep(engine_of(sizes, Renaming, cleanup=cleanup, capacity=capacity))
        for step in history:
            expected = lockstep.reasons(step)
            assert expected == take(lockstep, step)
            take(lockstep, Attend())
        finish(lockstep)


OTHERS: Final[Mapping[str, Any]] = {
    "used": lambda one: [not one],
    "finished": lambda one: [not one],
    "counts": lambda one: [one + 1, one - 1],
    "allocated": lambda one: [one + 1, one - 1],
    "written": lambda one: [one + 1, one - 1],
    "committed": lambda one: [one + 1, one - 1],
    "first_page": lambda one: [one + 1, one - 1],
    "indexed": lambda one: [(*one, 7), one[:-1], (*one[:-1], 9), (0, *one)],
    "idle_ranks": lambda one: [one + 1, one - 1],
    "contexts": lambda one: [one + 1, one - 1],
    "stale": lambda one: [not one],
    "tokens": lambda one: [(*one, 7), one[:-1], (*one[:-1], 9)],
    "proposed": lambda one: [(*one, 7), one[:-1], (*one[:-1], 9)],
    "cells": lambda one: [(*one, 7), one[:-1]],
    "rows": lambda one: [
        (*one[:at], page, *one[at + 1 :]) for at in range(len(one)) for page in (0, 3, INVALID)
    ],
    "queue": lambda one: [(*one, (1, 0, 0)), one[1:], one[:-1], one[::-1]],
    "flights": lambda one: [
        *((*one, (False, (), ())), one[1:], one[:-1]),
        *((*one[:at], (not step[0], *step[1:]), *one[at + 1 :]) for at, step in enumerate(one)),
        *((*one[:at], (*step[:2], (*step[2], 0)), *one[at + 1 :]) for at, step in enumerate(one)),
    ],
    "held": lambda one: [one + 1, one - 1],
    "outputs": lambda one: [(*one, (99, 0, (1,), FinishReason.LIMIT)), one[1:], one[::-1]],
}
"""Other values of one entry of each field."""


def deviations(right: View) -> Iterator[tuple[str, Any]]:
    """Each field of a view with one wrong entry."""
    for field in VIEWED:
        value = getattr(right, field.name)
        if value is None:
            continue
        if field.index == "whole":
            wrong = OTHERS[field.name](value)
        else:
            wrong = [
                (*value[:at], other, *value[at + 1 :])
                for at, one in enumerate(value)
                for other in OTHERS[field.name](one)
            ]
        yield from ((field.name, one) for one in wrong if one != value)


def silent(inner: Engine, action: Action) -> None:
    """Take an action, and report no result: the view is then judged first."""
    inner.apply(action)


def told(step: object, before: View, seen: View, wanted: View) -> tuple[str, str] | None:
    """What should be told of a view: the first clause, else the first field that differs.

    A dead cell may hold anything.
    """
    for found in chain(clauses.violations(seen), clauses.step_violations(before, seen)):
        return found
    for field in VIEWED:
        shown, right = getattr(seen, field.name), getattr(wanted, field.name)
        if field.paged or shown == right or shown is None:
            continue
        clause = clause_of(step, field.clause)
        if field.index == "whole":
            return clause, f"{field.name} is {shown}, should be {right}"
        at = next(at for at, one in enumerate(shown) if one != right[at])
        return clause, f"{field.name}[{at}] is {shown[at]}, should be {right[at]}"
    if seen.rows == wanted.rows:  # the counts are those of the rows: RC
        return told_of_held(step, seen, wanted) or told_of_index(step, seen, wanted)
    named = [
        [[page for page in row if page != INVALID] for row in one.rows] for one in (seen, wanted)
    ]
    wrong = f"rows are {named[0]}, should be {named[1]}: lowest free page first"
    return clause_of(step, "DET"), wrong


def told_of_held(step: object, seen: View, wanted: View) -> tuple[str, str] | None:
    """The first page that another number of steps in flight name."""
    for page, (steps, right) in enumerate(zip(seen.held or (), wanted.held or (), strict=False)):
        if steps != right:
            return clause_of(step, "HELD"), f"held[{page}] is {steps}, should be {right}"
    return None


def told_of_index(step: object, seen: View, wanted: View) -> tuple[str, str] | None:
    """What should be told of an index: the first key, or rank, that differs."""
    ranks, right = seen.idle_ranks, wanted.idle_ranks
    held = seen.indexed or ()
    for page, entry in enumerate(wanted.indexed or () if held else ()):
        if entry and held[page] != entry:
            shown = f"page {held.index(entry)}" if entry in held else "no page"
            wrong = f"the key {entry} has {shown}, should have page {page}"
            return clause_of(step, "PC"), wrong
        if entry and ranks and right and ranks[page] != right[page]:
            wrong = f"idle_ranks[{page}] is {ranks[page]}, should be {right[page]}"
            return clause_of(step, "EVICT"), wrong
    for page, entry in enumerate(held):
        if entry and entry not in (wanted.indexed or ()):
            wrong = f"page {page} has the key {entry}, should not be in the index"
            return clause_of(step, "PC"), wrong
    for page, rank in enumerate(ranks or ()):
        if rank and held and not held[page]:
            return clause_of(step, "EVICT"), f"idle_ranks[{page}] is {rank}, should be 0"
    return None


SHOWN: Final = {
    "everything": (),
    "no contents": ("cells", "tokens", "committed", "proposed", "queue", "written"),
    "rows alone": tuple(field.name for field in VIEWED if field.name not in ("used", "rows")),
    "counts alone": tuple(
        field.name for field in VIEWED if field.name not in ("used", "rows", "counts")
    ),
}
"""What an engine hides: with less shown, fewer clauses judge it, and the fields are compared."""


@pytest.mark.parametrize("hidden", deep_after(1, SHOWN))
@pytest.mark.parametrize("name", deep_after(1, ["windowed", "roomy"]))
def test_one_wrong_entry_of_a_view_is_told(name: str, hidden: str) -> None:
    """The clause, the message, the step and the views are those of the deviation."""
    sizes, tried = SIZES[name], 0
    hide: dict[str, Any] = dict.fromkeys(SHOWN[hidden])
    hide.pop("indexed", None)
    if sizes.window is not None:
        hide.pop("first_page", None)
    for lockstep, step in after_each(engine_of(sizes), drawn(sizes, 3, 40)):
        if not lockstep.reasons(step):
            machine = lockstep.machine
            wanted = views.of(machine, machine.effect(lockstep.state, step))
            before = evolve(lockstep.seen, **hide)
            right = evolve(wanted, **hide)
            other = trial(lockstep, apply=silent, view=lambda _, right=right: right)
            other.seen = before
            assert frozenset() == other.do(step)
            for field, value in deviations(right):
                seen = evolve(wanted, **{**hide, field: value})
                other = trial(lockstep, apply=silent, view=lambda _, seen=seen: seen)
                other.seen = before

                expected = told(step, before, seen, evolve(wanted, **hide))
                if expected is None:
                    assert "cells" == field
                    assert frozenset() == other.do(step)
                    continue
                with pytest.raises(Violation) as found:
                    other.do(step)
                assert (*expected, step, before, seen) == judged(found.value)
                assert f"{': '.join(expected)}\n  on {step}" == str(found.value)
                tried += 1

    assert tried > 300


def renamings(lockstep: Lockstep, wanted: View, seen: View) -> str:
    """What should be told of rows that name the pages of the specification otherwise; or "".

    A page keeps its name as long as an entry of a row keeps the page, or the index keeps its key,
    and no two have one name.
    """
    old, held = views.of(lockstep.machine, lockstep.state), lockstep.seen.indexed or ()
    was = zip(
        chain(*old.rows),
        chain(*lockstep.seen.rows),
        chain(*wanted.rows),
        strict=True,
    )
    names = {page: name for page, name, still in was if page == still != INVALID}
    keys = enumerate(zip(old.indexed or (), wanted.indexed or (), strict=True))
    names |= {page: held.index(key) for page, (key, still) in keys if key and key == still}
    for slot, (right, row) in enumerate(zip(wanted.rows, seen.rows, strict=True)):
        for page, name in zip(right, row, strict=True):
            if (page == INVALID) != (name == INVALID):
                return f"row {slot} is {row}, should name a page exactly where {right} does"
            if page == INVALID:
                continue
            if page in names and name != names[page]:
                return f"row {slot} names page {name} where it named {names[page]}"
            if page not in names and name in names.values():
                return f"row {slot} names page {name}, which is another page's"
            names[page] = name
    return ""


@pytest.mark.parametrize("seed", deep_after(1, (1, 2, 3)))
def test_a_page_under_a_wrong_name_is_told(seed: int) -> None:
    """Any other free page is right for one that was just taken, and no other name is."""
    hide: dict[str, Any] = dict.fromkeys(SHOWN["rows alone"])
    hide.pop("indexed")
    words = {"exactly where": 0, "another page's": 0, "where it named": 0, "": 0}
    for lockstep, step in after_each(engine_of(ROOMY, Renaming), drawn(ROOMY, seed)):
        if lockstep.reasons(step):
            continue
        before = evolve(lockstep.seen, **hide)
        wanted = views.of(lockstep.machine, lockstep.machine.effect(lockstep.state, step))
        inner = copied(lockstep).engine
        inner.apply(step)
        right = evolve(inner.observe(), **hide)
        for rows in (right.rows, *(value for field, value in deviations(right) if field == "rows")):
            seen = evolve(right, rows=rows)
            other = trial(lockstep, apply=silent, view=lambda _, seen=seen: seen)
            wrong, other.seen = renamings(lockstep, wanted, seen), before
            words[next(word for word in words if word in wrong)] += 1
            if not wrong:
                assert frozenset() == other.do(step)
                continue
            with pytest.raises(Violation) as found:
                other.do(step)
            assert (clause_of(step, "DET"), wrong, step, before, seen) == judged(found.value)

    assert all(words.values())


def others_of(result: Any) -> list[Any]:
    """Results that are not this one."""
    match result:
        case int():
            return [result + 1, result - 1]
        case BatchPlan():
            moved = tuple(at + 1 for at in result.destinations)
            return [
                evolve(result, destinations=moved),
                evolve(result, order=(*result.order[::-1], 0)),
            ]
        case Rounds():
            return [evolve(result, done=result.done + 1), evolve(result, refused=Reason.STOPS)]
    return [(*result, (9, 9, 9)), *([result[1:]] if result else [])]


def answering(result: Result) -> Callable[[Engine, Action], Result]:
    """An engine that takes each action and returns this result."""

    def apply(inner: Engine, action: Action) -> Result:
        inner.apply(action)
        return result

    return apply


@pytest.mark.parametrize("kind", [SpecEngine, Renaming])
def test_a_wrong_result_is_told(kind: type[SpecEngine]) -> None:
    """The clause is that of the action, both results are shown, and the view is the one after."""
    wrong_of = {act.Pack: "Q", act.TakeOutputs: "OUT", act.Generate: "PROG"}
    told_of, sizes = set[type](), ROOMY
    for seed in SEEDS:
        for lockstep, step in after_each(engine_of(sizes, kind), drawn(sizes, seed)):
            after = copied(lockstep).engine
            if lockstep.reasons(step) or (result := after.apply(step)) is None:
                continue
            for wrong in (one for one in others_of(result) if one != result):
                other = trial(lockstep, apply=answering(wrong))
                with pytest.raises(Violation) as found:
                    other.do(step)
                message = f"the result is {wrong}, should be {result}"
                clause = wrong_of.get(type(step), "DET")
                seen = other.engine.observe()
                assert (clause, message, step, lockstep.seen, seen) == judged(found.value)
                told_of.add(type(step))

        assert {type(step) for step in drawn(sizes, seed)} & set(RESULTS) >= lockstep.compared

    assert set(RESULTS) == told_of


def test_the_actions_of_which_a_result_was_compared_are_kept() -> None:
    """They are those that were done and returned one."""
    for silent_too in (False, True):
        engine = engine_of(ROOMY)
        lockstep, returned = (
            Lockstep(Wrapped(engine, apply=silent) if silent_too else engine),
            set(),
        )
        for step in drawn(ROOMY, 5):
            if not lockstep.reasons(step) and type(step) in RESULTS and not silent_too:
                returned.add(type(step))
            lockstep.do(step)
            assert returned == lockstep.compared


def names_of(reasons: frozenset[Reason]) -> str:
    """The names of some reasons in the order of the alphabet."""
    return ", ".join(sorted(one.name for one in reasons))


def refusing(*reasons: Reason, acts: bool = False) -> Any:
    """An engine that refuses for these reasons; acts: it takes the action all the same."""

    def apply(inner: Engine, action: Action) -> Result:
        if acts:
            inner.apply(action)
        raise refused([Refusal(one) for one in reasons])

    return apply


def lenient(lockstep: Any) -> Any:
    """The same with an engine that may refuse more."""
    lockstep.engine.profile = evolve(lockstep.engine.profile, refuses="may_refuse_more")
    return lockstep


def test_a_wrong_answer_to_a_call_is_told() -> None:
    """What is legal is done, and what is illegal is refused for a reason that holds."""
    several = 0
    for lockstep, step in chain(*(after_each(engine_of(ROOMY), drawn(ROOMY, at)) for at in SEEDS)):
        expected, before = lockstep.reasons(step), lockstep.seen
        allowed = names_of(expected)
        if expected:
            several += len(expected) > 1
            one_of = f"one of {allowed}" if len(expected) > 1 else allowed
            wrong = min(set(Reason) - expected)
            both = frozenset({wrong, max(expected)})
            cases: list[Any] = [
                (silent_of_nothing, f"the action is done, should be refused: {allowed}"),
                (refusing(wrong), f"the reason is {wrong.name}, should be {one_of}"),
                (refusing(*both), f"the reason is {names_of(both)}, should be {one_of}"),
            ]
        else:
            cases = [(refusing(Reason.STOPS), "the action is refused: STOPS, should be done")]
        for apply, message in cases:
            for other in (trial(lockstep, apply=apply), lenient(trial(lockstep, apply=apply))):
                state = other.state
                if other.engine.profile.refuses == "may_refuse_more" and not expected:
                    assert frozenset({Reason.STOPS}) == other.do(step)
                    assert (state, before) == (other.state, other.seen)
                    continue
                with pytest.raises(Violation) as found:
                    other.do(step)
                assert ("ATOMIC", message, step, before, before) == judged(found.value)
                assert state == other.state

    assert several


def silent_of_nothing(_inner: object, _given: object) -> None:
    """Take anything, and do nothing."""


def test_a_refusal_that_changes_something_is_told() -> None:
    """The clause is that of the changed view, and the reasons of the engine are named."""
    tried = 0
    for lockstep, step in after_each(engine_of(ROOMY), drawn(ROOMY, 4)):
        reasons = lockstep.reasons(step)
        reason = min(reasons) if reasons else Reason.STOPS
        right = lockstep.engine.observe()
        for field, value in deviations(right):
            seen = evolve(right, **{field: value})
            other = lenient(trial(lockstep, apply=refusing(reason), view=lambda _, seen=seen: seen))
            expected = told(step, lockstep.seen, seen, right)
            if expected is None:
                assert frozenset({reason}) == other.do(step)
                assert seen == other.seen
                continue
            with pytest.raises(Violation) as found:
                other.do(step)
            clause, message = expected
            message += f"; the engine refused the action: {reason.name}"
            assert (clause, message, step, lockstep.seen, seen) == judged(found.value)
            tried += 1

    assert tried > 300


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("kind", [SpecEngine, Renaming])
def test_a_wrong_read_set_is_told(kind: type[SpecEngine], name: str) -> None:
    """Every query reads each cell of its own visible history once."""
    sizes, told_of, excused = SIZES[name], 0, 0
    for lockstep, _ in after_each(engine_of(sizes, kind), drawn(sizes, 1)):
        right = {slot: dict(cells) for slot, cells in lockstep.engine.attend().items()}
        others = {slot: {99: 1} for slot in range(sizes.slots) if slot not in right}
        trial(lockstep, attend=lambda _, read={**right, **others}: read).attend()
        trial(lockstep).attend()
        for slot, cells in right.items():
            last, rest = max(cells), {at: one for at, one in right.items() if at != slot}
            without = {at: times for at, times in cells.items() if at != last}
            wrong = [{**cells, 99: 1}, {**cells, last: 2}, without, {}]
            for read in (*({**rest, slot: one} for one in wrong), rest):
                other = trial(lockstep, attend=lambda _, read=read: read)
                if not readable(lockstep.seen, slot):
                    other.attend()
                    excused += 1
                    continue
                with pytest.raises(Violation) as found:
                    other.attend()
                message = f"slot {slot} read {read.get(slot, {})}, should read {cells}"
                assert ("READ", message, "attend", other.seen, other.seen) == judged(found.value)
                told_of += 1

    assert told_of > 50
    assert (excused > 0) == (sizes.window is not None)


def readable(seen: View, slot: int) -> bool:
    """Whether the row still names the pages that the last written position sees."""
    assert seen.written is not None
    sizes, end = seen.geometry, seen.written[slot]
    first = max(0, end - (sizes.window or end))
    return (
        INVALID not in seen.rows[slot][first // sizes.page_size : (end - 1) // sizes.page_size + 1]
    )


@pytest.mark.parametrize("kind", deep_after(1, [Renaming, SpecEngine]))
def test_a_poisoning_overwrites_dead_cells_alone(kind: type[SpecEngine]) -> None:
    """It is counted if a dead cell has changed or is POISON, and a live one is told."""
    sizes, dead_seen, live_seen = WINDOWED, 0, 0
    for lockstep, _ in after_each(engine_of(sizes, kind), drawn(sizes, 1)):
        seen = lockstep.seen
        live = {cell for read in named_cells(seen) for cell in read}
        full = evolve(seen, cells=tuple(one or (9,) for one in seen.cells))
        for cell in range(len(full.cells)):
            changed = (*full.cells[:cell], (9, cell), *full.cells[cell + 1 :])
            now, past = evolve(full, cells=changed), full
            for was, shown, overwrote in (
                (past, now, True),
                (now, past, True),
                (past, past, False),
                (seen, seen, len(live) < len(seen.cells)),
                (past, evolve(past, cells=(*past.cells[:cell], (), *past.cells[cell + 1 :])), True),
            ):
                if cell in live and shown is not was:
                    continue
                other = trial(lockstep, view=lambda _, shown=shown: shown, poison=silent_of_nothing)
                other.seen, other.overwrote = was, not overwrote
                other.poison(Poison.NAN)
                assert (overwrote, shown) == (other.overwrote, other.seen)
                dead_seen += 1
            # A view that is wrong is told, and says what was overwritten all the same.
            unused = [slot for slot, used in enumerate(seen.used) if not used][-1:]
            row = (cell // sizes.page_size, *[INVALID] * (sizes.pages_per_seq - 1))
            rows = tuple(row if [at] == unused else one for at, one in enumerate(seen.rows))
            for wrong in [now] * (cell in live) + [evolve(now, rows=rows)] * bool(unused):
                other = trial(lockstep, view=lambda _, wrong=wrong: wrong, poison=silent_of_nothing)
                other.seen = past
                with pytest.raises(Violation) as found:
                    other.poison(Poison.LIVE)
                assert ("poison live", past, wrong) == judged(found.value)[2:]
                assert (cell not in live) == other.overwrote
                live_seen += 1

    assert dead_seen
    assert live_seen


def named_cells(seen: View) -> list[list[int]]:
    """The written cells of each slot that its row still covers."""
    assert seen.written is not None
    size = seen.geometry.page_size
    found = []
    for slot, row in enumerate(seen.rows):
        at = [
            row[one // size] * size + one % size
            for one in range(seen.written[slot])
            if row[one // size] != INVALID
        ]
        found += [at] if at else []
    return found


def test_what_cannot_be_poisoned_is_left_alone() -> None:
    """An engine without poison overwrites nothing; one that hides its cells is believed."""
    lockstep = Lockstep(Wrapped(engine_of(ROOMY)))
    assert lockstep.overwrote is False
    lockstep.overwrote = True
    lockstep.poison(Poison.NAN)
    assert lockstep.overwrote is False
    poisoned = []
    hiding = Wrapped(
        engine_of(ROOMY),
        view=lambda view: evolve(view, cells=None),
        poison=lambda _, kind: poisoned.append(kind),
    )
    lockstep = Lockstep(hiding)
    lockstep.poison(Poison.STALE)
    assert ([Poison.STALE], True) == (poisoned, lockstep.overwrote)


@pytest.mark.parametrize(
    ("field", "more", "wrong"),
    [
        ("slots", 1, "used[4] is False, should be None"),
        ("slots", -1, "used[3] is None, should be False"),
        ("pages", 1, f"counts are {(0,) * 13}, should be {(0,) * 12}"),
        ("pages", -1, f"counts are {(0,) * 11}, should be {(0,) * 12}"),
    ],
)
def test_a_view_of_other_sizes_is_told(field: str, more: int, wrong: str) -> None:
    """An entry too many, or one too few, differs from none."""
    sizes = evolve(ROOMY, **{field: getattr(ROOMY, field) + more})
    engine = Wrapped(engine_of(ROOMY), view=lambda _: engine_of(sizes).observe())

    with pytest.raises(Violation) as found:
        Lockstep(engine)

    seen = engine.observe()
    assert ("DET", wrong, None, seen, seen) == judged(found.value)


@pytest.mark.parametrize("capacity", [STANDARD, LAZY, AHEAD, WHOLE, LAZY_WHOLE])
def test_an_engine_has_the_policy_of_its_profile(capacity: Capacity) -> None:
    """What its view says of the policy, and of reserved cells, is replaced."""
    engine = SpecEngine(ROOMY, default_limits(ROOMY), CleanupMode.NONE, capacity=capacity)
    for other in (STANDARD, WHOLE):
        for cells in ((), (0,) * 4, (9,) * 4):
            claims: dict[str, Any] = {"capacity": other, "reserved": cells}
            lockstep: Any = Lockstep(Wrapped(copy(engine), view=partial(evolve, **claims)))
            for step in drawn(ROOMY, 7):
                lockstep.do(step)
                assert capacity == lockstep.seen.capacity
                assert views.reserved(lockstep.state) == lockstep.seen.reserved
                assert lockstep.seen == lockstep.engine.inner.observe()
