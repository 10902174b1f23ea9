"""The page of actions is what the specification says, and the specification does what it says."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from random import Random

import flight_draws
import index_draws
import pytest
from attrs import evolve, fields
from deep import deep_after
from explore_tools import silent, work_alone
from spec_draws import propose, request_of
from spec_tools import geometry, limits, span

from conformance.exploration.graph import Graph
from conformance.exploration.instances import EXPLORED, instance
from conformance.exploration.search import Search
from conformance.protocol import CALLS, RESULTS
from conformance.recordings import actions_page as page
from conformance.recordings.fields import PLAIN_RESULTS
from conformance.recordings.format import line_from_data, write
from conformance.recordings.validate import validate
from conformance.rungs.record import ActionKit
from conformance.rungs.registry import ACTIONS
from spec import vocabulary
from spec.machines import actions as act
from spec.machines.actions import Action
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import Capacity, CleanupMode, Geometry, Params, Request
from spec.vocabulary.capacity import RESERVATIONS

TEXT = (Path(__file__).parents[2] / "docs" / "actions.md").read_text(encoding="utf-8")
WHOLE = page.MACHINE
TABLES = {kind: page.conditions(WHOLE, kind) for kind in WHOLE.rules}
EVERY = frozenset(row.asked.label for table in TABLES.values() for row in table)
FEW, SEEDS = 200, 1600
Asked = tuple[State, Action]
Tables = Mapping[type, Sequence[page.Row]]


def held(machine: Machine, table: Sequence[page.Row], state: State, action: Action) -> set[int]:
    """The rows that hold, for a reader of a table who asks as the page says."""
    found = set[int]()
    for at, row in enumerate(table):
        before = {table[one].asked.label for one in found if table[one].number < row.number}
        if before <= row.beside | {row.asked.label} and row.asked.holds(machine, state, action):
            found.add(at)
    return found


def histories(seeds: int) -> Iterator[Asked]:
    """States and actions of random histories of the whole machine."""
    for seed in range(seeds):
        rng = Random(seed)
        slots = rng.choice((1, 2, 3, 4))
        sizes = geometry(
            pages=rng.choice((2, 4, 6, 9)),
            page_size=rng.choice((1, 2, 3, 4)),
            slots=slots,
            pages_per_seq=rng.choice((3, 4, 6)),
            window=rng.choice((None, 1, 2, 3, 5)),
        )
        small = {name: slots + rng.choice((0, 0, 3)) for name in ("queue", "outputs")}
        widths = {"round_tokens": rng.choice((slots, 1)), "rounds": rng.choice((2, 1, 5))}
        cleanup = rng.choice(list(CleanupMode))
        capacity = Capacity(reserve=rng.choice(RESERVATIONS), lookahead=rng.choice((0, 0, 3)))
        if sizes.window == 1 and rng.random() < 0.5:
            capacity = Capacity(ring=1)
        state = WHOLE.initial(sizes, limits(sizes, **small, **widths), cleanup, capacity)
        for number in range(60):
            action = (ABOUT[seed % len(ABOUT)] if number % 4 else drawn)(state, rng, number)
            yield state, action
            if not WHOLE.refusals(state, action):
                state = WHOLE.effect(state, action)


def by_hand() -> Iterator[Asked]:
    """A share and a hit of cells whose tokens are queued; random histories hardly ever ask."""
    sizes, cells = geometry(pages=4, page_size=1, slots=2, pages_per_seq=4), span(0, 0, 3)
    state = WHOLE.initial(sizes, limits(sizes))
    for action in (
        *(act.Reserve(0), act.Assign(0, (1, 1, 1), Params(max_new=1), 1)),
        *(act.Allocate(cells), act.Write(cells)),
        *(act.Reserve(1), act.Assign(1, (1,), Params(max_new=3), 2)),
        *(act.Enqueue(1, 1), act.Enqueue(1, 1)),
    ):
        state = WHOLE.step(state, action)
    yield state, act.Share(0, 1, 2)
    yield WHOLE.step(state, act.Publish(0, 2)), act.Hit(1, 2)
    yield from of_a_ring()
    yield from without_room()


def without_room() -> Iterator[Asked]:
    """A step whose token has no room in the queue, and a request whose pages are reserved."""
    sizes = geometry(pages=4, page_size=1, slots=2, pages_per_seq=4)
    state = WHOLE.initial(sizes, limits(sizes, queue=2))
    for action in (
        *(act.Reserve(0), act.Assign(0, (1,), Params(max_new=2), 1)),
        *(act.Reserve(1), act.Assign(1, (1,), Params(max_new=3), 2)),
        *(act.Enqueue(1, 1), act.Enqueue(1, 1)),
    ):
        state = WHOLE.step(state, action)
    yield state, act.Dispatch(((0, 1),))
    state = WHOLE.initial(sizes, limits(sizes))
    for number in (1, 2):
        request = Request(id=number, prompt=(1, 1), params=Params(max_new=2))
        state = WHOLE.step(state, act.Submit(request))
    state = WHOLE.step(state, act.Admit())
    yield state, act.Admit()


def of_a_ring() -> Iterator[Asked]:
    """What is too long for a row of one page of one cell: cells, and those of a round or a text."""
    sizes = geometry(pages=4, page_size=1, slots=2, pages_per_seq=4, window=1)
    state = WHOLE.initial(sizes, limits(sizes), capacity=Capacity(ring=1))
    request = Request(id=1, prompt=(1, 1), params=Params(max_new=1))
    yield from ((state, act.Prefill((request,))), (state, act.Submit(request)))
    for action in (
        *(act.Reserve(0), act.Assign(0, (1, 1, 1), Params(max_new=1), 1)),
        *(act.MixedRound(((0, 1),)), act.Publish(0, 1)),
        *(act.MixedRound(((0, 1),)), act.Reserve(1), act.Assign(1, (1, 1), Params(max_new=2), 2)),
    ):
        state = WHOLE.step(state, action)
        yield state, act.Allocate(((0, 1), (0, 2)))
        yield state, act.MixedRound(((1, 2),))
    state = WHOLE.initial(sizes, limits(sizes), capacity=Capacity(ring=1))
    queued: tuple[Action, ...] = (
        *(act.Reserve(0), act.Assign(0, (1,), Params(max_new=3), 1)),
        *(act.Allocate(((0, 0),)), act.Write(((0, 0),)), act.Enqueue(0, 1), act.Enqueue(0, 1)),
    )
    for step in queued:
        state = WHOLE.step(state, step)
    yield state, act.Round()


def drawn(state: State, rng: Random, number: int) -> Action:
    """An action that is likely to matter, or one that random histories seldom take."""
    if rng.random() < 0.7:
        return propose(state, rng, number)
    slot, other = (rng.randrange(-1, state.geometry.slots + 1) for _ in range(2))
    batch = tuple((rng.randrange(state.geometry.slots + 1), rng.randrange(6)) for _ in range(3))
    words = Params(max_new=rng.randrange(1, 9), stops=((1,),) * rng.randrange(4))
    lengths = [(0, 0, 0)] + [
        (at, found.written, found.allocated) for at, found in enumerate(state.sequences) if found
    ]
    waiting = [request.id for request in state.waiting] or [0]
    names = [one.request for one in state.details if one is not None] or [0]
    used, written, allocated = rng.choice(lengths)
    chunks = tuple((at, rng.choice((1, 1, 2))) for at, _, _ in rng.sample(lengths, 1))
    wild: tuple[Callable[[], Action], ...] = (
        lambda: act.Submit(evolve(request_of(state, rng, number), id=rng.randrange(4))),
        lambda: act.Submit(evolve(request_of(state, rng, number), params=words)),
        act.Admit,
        act.Admit,
        lambda: act.Assign(used, (1,), Params(max_new=1), rng.choice(waiting)),
        lambda: act.Append(slot, (1,) * rng.randrange(12)),
        lambda: act.Sample(slot, 3),
        lambda: act.Clone(slot, rng.choice((None, other)), rng.randrange(3)),
        lambda: act.Write(rng.choice((1, 1, 8)) * batch[: rng.randrange(4)]),
        lambda: act.Allocate(rng.choice((1, 1, 8)) * batch[: rng.randrange(4)]),
        lambda: act.Write(((used, written),)),
        lambda: act.Allocate(((used, allocated),)),
        lambda: act.Commit(used, written + 1),
        lambda: act.Clone(used, choice=rng.randrange(1, 4)),
        lambda: act.Enqueue(used, 1),
        lambda: act.Hit(used, state.geometry.page_size),
        lambda: act.Share(other, used, state.geometry.page_size),
        lambda: act.MixedRound(chunks * rng.choice((1, 1, 1, 0, 2))),
        lambda: act.MixedRound((*chunks, (slot, rng.randrange(3)))),
        lambda: act.Dispatch(chunks * rng.choice((1, 1, 0, 2))),
        lambda: act.Dispatch((*chunks, (slot, rng.randrange(3)))),
        lambda: act.Preempt(rng.choice(names)),
        lambda: act.Replay(used, (1,) * rng.choice((1, 1, 2, 4))),
        lambda: act.Replay(slot, (1,)),
        lambda: act.Assign(slot, (1,) * rng.randrange(1, 9), words, rng.randrange(4)),
        lambda: act.Prefill((evolve(request_of(state, rng, number), params=words),)),
        lambda: act.Propose(slot, (1,) * rng.randrange(1, 12)),
        lambda: act.Truncate(slot, rng.randrange(12)),
    )
    return rng.choice(wild)()


ABOUT = (drawn, drawn, flight_draws.propose, drawn, index_draws.drawn)
"""What most actions of a history are about, by its seed."""


def sizes_of(rung: str) -> Geometry:
    """A small geometry for a search."""
    window = 2 if rung == "window" else None
    return geometry(pages=2, page_size=2, slots=2, pages_per_seq=2, window=window)


def explored(monkeypatch: pytest.MonkeyPatch, rung: str) -> Iterator[Asked]:
    """The first states of a search of a rung, and every move of each."""
    work_alone(monkeypatch)
    chosen = instance(rung, sizes_of(rung))
    search = Search(chosen, Graph())
    search.run(update=silent, most_states=200)
    for state in search.states[:200]:
        for move in chosen.moves:
            action = move.action(state)
            if action is not None:
                yield state, action


def test_the_page_is_made_from_the_specification() -> None:
    """The page is what `make actions` writes."""
    assert page.page() == TEXT


def wrong(
    tables: Tables,
    asked: Iterable[Asked],
    reached: Counter[tuple[type, int]],
    *,
    machine: Machine = WHOLE,
) -> str:
    """The first action whose reasons a reader of the tables does not find; empty if there is none.

    reached: counts the rows that hold.
    """
    for state, action in asked:
        table = tables[type(action)]
        rows = held(machine, table, state, action)
        reached.update((type(action), at) for at in rows)
        reasons = {refusal.reason for refusal in machine.refusals(state, action)}
        if reasons != {table[at].reason for at in rows}:
            return f"{action}: {reasons}"
    return ""


def test_the_tables_are_what_the_specification_does() -> None:
    """In some histories a reader of the tables finds every reason and no other."""
    assert wrong(TABLES, chain(histories(FEW), by_hand()), Counter()) == ""


@pytest.mark.deep
def test_every_row_of_the_tables_is_what_the_specification_does() -> None:
    """In many histories a reader finds every reason and no other, and in each row at least once."""
    reached = Counter[tuple[type, int]]()

    assert wrong(TABLES, chain(histories(SEEDS), by_hand()), reached) == ""
    assert [] == [
        (kind.__name__, row.number, row.reason.name, row.asked.check.when)
        for kind, table in TABLES.items()
        for at, row in enumerate(table)
        if kind not in page.INTERNAL and not reached[kind, at]
    ]


@pytest.mark.parametrize("rung", deep_after(3, reversed(EXPLORED)))
def test_the_tables_are_what_a_search_does(rung: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a smaller machine a reader finds every reason in the rows of the rungs that it has."""
    machine = instance(rung, sizes_of(rung)).machine
    tables = {
        kind: [row for row in TABLES[kind] if row.asked.rung in machine.names]
        for kind in machine.rules
    }

    assert wrong(tables, explored(monkeypatch, rung), Counter(), machine=machine) == ""


Change = Callable[[Sequence[page.Row]], Sequence[page.Row]]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (act.Free, lambda table: table[:-1]),
        (act.Write, lambda table: [evolve(row, number=1) for row in table[3:]]),
        (act.Allocate, lambda table: [evolve(row, number=-row.number) for row in table]),
        (act.Assign, lambda table: [evolve(row, beside=frozenset()) for row in table]),
        (act.Clone, lambda table: [evolve(row, beside=EVERY) for row in table]),
    ],
    ids=("a row left out", "no order", "reversed", "never beside", "always beside"),
)
def test_a_wrong_table_is_noticed(kind: type, change: Change) -> None:
    """A table without a row, in another order, or with other reasons beside one is wrong."""
    tables = {**TABLES, kind: change(TABLES[kind])}
    mistake: object = ""
    try:
        mistake = wrong(tables, histories(SEEDS), Counter())
    except (KeyError, IndexError, TypeError):  # a question that was asked too early
        mistake = "asked too early"

    assert mistake


def test_the_examples_are_a_legal_recording(tmp_path: Path) -> None:
    """The examples, one after another, are a recording that is legal, with every result in it."""
    header, lines = page.recorded()
    write(tmp_path / "examples.jsonl", header, lines)

    found = validate(tmp_path / "examples.jsonl")

    assert found.found is None
    assert {type(line.step) for line in lines} == CALLS - {type(one) for one in page.APART}
    assert {*RESULTS} == {type(line.step) for line in lines if line.result is not None}


def test_the_page_has_every_action_in_both_forms() -> None:
    """Every action has a section, its line can be read, and its Python makes the same action."""
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", TEXT, re.M | re.S))
    names = {**vars(act), **vars(vocabulary)}

    assert {kind.__name__ for kind in act.Action.__args__} == sections.keys()
    for kind in CALLS:
        (line,) = re.findall(r"```json\n(.*)\n```", sections[kind.__name__])
        (python,) = re.findall(rf"^`({kind.__name__}\(.*\))`$", sections[kind.__name__], re.M)
        assert eval(python, names) == line_from_data(json.loads(line)).step


def test_the_results_are_those_that_are_compared() -> None:
    """An action has a result on the page exactly if the kit compares one."""
    compared = {kind for kind, kit in ACTIONS.items() if kit.results is not ActionKit().results}

    assert compared == {*RESULTS} == {*PLAIN_RESULTS}


def test_every_field_has_a_meaning() -> None:
    """The docstring of every action says what each of its fields is."""
    for kind in act.Action.__args__:
        text, meant = page.meanings(kind)

        assert text
        assert {field.name for field in fields(kind)} == meant.keys(), kind
