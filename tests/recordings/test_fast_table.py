"""The fast table of recordings, held to the specification by the harness for accelerators."""

import pickle
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

import pytest
from accelerators import Beside, every_transition
from attrs import evolve, frozen
from deep import deep_after
from recording_tools import appending, lines, random_steps, recorded, table
from spec_engine import SpecEngine, small

from conformance.exploration.instances import Instance, instance
from conformance.history import Attend, PoisonDead
from conformance.protocol import Action
from conformance.recordings.answers import Done
from conformance.recordings.fast_table import APPENDING, Ledger
from conformance.recordings.format import Header, Line
from conformance.recordings.judge import judge
from conformance.recordings.validate import header_and_lines
from conformance.rungs.coverage import Coverage, offered_by
from conformance.rungs.registry import CORNERS
from conformance.rungs.shared_moves import allocating, fixed, writing
from conformance.vectors.suites import table_moves
from spec import ladder
from spec.fields import RECORDED
from spec.machines import actions as act
from spec.state import State
from spec.vocabulary import STANDARD, Capacity, Geometry, Limits, Reason, default_limits

MACHINE = ladder.whole_appending()
SIZES = (small(), small(pages=5, page_size=1, slots=3), small(pages=9, page_size=3, slots=5))
FEW = (
    small(pages=2, page_size=2, slots=2, pages_per_seq=2),
    small(pages=3, page_size=1, slots=2, pages_per_seq=2),
)


@frozen
class Table:
    """The fast table as an accelerator. done: the outcome of the last action."""

    ledger: Ledger
    header: Header
    done: Done

    def actions(self, move: Action, _state: State) -> tuple[Action, ...]:
        """The move itself, which is an action."""
        return (move,)

    def reasons(self, move: Action) -> frozenset[Reason]:
        """See `Ledger`."""
        return self.ledger.reasons(move)

    def after(self, move: Action) -> "Table":
        """A copy of the table after the action, whose listed changes must be all that changed."""
        copy: Ledger = pickle.loads(pickle.dumps(self.ledger))  # faster than deepcopy
        assert not copy.reasons(move)
        after = evolve(self, ledger=copy, done=copy.do(Line(move, None, None, {})))
        old, new = self.shown(), after.shown()
        changed = {(name, at) for name in new for at in new[name] if new[name][at] != old[name][at]}
        assert changed == set(after.done.changes), move
        return after

    def results(self) -> tuple[object, ...]:
        """The legal results of the last action."""
        return tuple(self.done.results)

    def shown(self) -> Mapping[str, Mapping[int, object]]:
        """Every field of the table."""
        sizes = self.header.geometry
        indices = {"slot": range(sizes.slots), "page": range(sizes.pages), "whole": range(1)}
        return {
            field.name: {at: self.ledger.expected(field.name, at) for at in indices[field.index]}
            for field in RECORDED
        }


def beside(geometry: Geometry, limits: Limits, capacity: Capacity = STANDARD) -> Beside[Action]:
    """The initial state of the specification and of the table."""
    header = Header(
        geometry=geometry,
        limits=limits,
        policy="lowest",
        copy=capacity.copy,
        lookahead=capacity.lookahead,
        reserve=capacity.reserve,
    )
    state = MACHINE.initial(geometry, limits, capacity=capacity)
    return Beside(MACHINE, state, Table(Ledger(header), header, Done([], ())))


def alphabet(chosen: Instance) -> Callable[[Beside[Action]], list[Action]]:
    """The actions of a table in a state: of the rung lifecycle, of the vectors, and more batches.

    In a batch of two slots either may be wrong.
    """
    geometry, offsets = chosen.geometry, (-1, 0, 1)
    pairs = [((0, low), (1, high)) for low, high in product(offsets, offsets)]
    moves = [
        fixed(act.TakeOutputs(), "take_outputs"),
        fixed(act.FreeFinished(), "free_finished"),
        *(fixed(act.Append(slot, (1,)), f"append({slot})") for slot in range(geometry.slots + 1)),
        *chosen.moves,
        *table_moves(geometry),
        *(writing("write", *pair) for pair in pairs),
        *(allocating("allocate", *pair) for pair in pairs),
    ]

    def actions(here: Beside[Action]) -> list[Action]:
        found = (move.action(here.state) for move in moves)
        kept = [action for action in found if action is not None and type(action) in APPENDING]
        return list(dict.fromkeys(kept))

    return actions


@pytest.mark.deep
@pytest.mark.parametrize("geometry", FEW, ids=str)
def test_every_transition_of_a_small_table(geometry: Geometry) -> None:
    """In every state and for every move, reasons, results and fields equal the specification's."""
    chosen = instance("lifecycle", geometry)
    states, transitions = every_transition(beside(geometry, chosen.limits), alphabet(chosen))

    assert states > 300
    assert transitions > 10 * states


POLICIES = (
    Capacity(copy="lazy"),
    Capacity(lookahead=1),
    Capacity(copy="lazy", lookahead=3),
    Capacity(reserve="request"),
    Capacity(copy="lazy", lookahead=1, reserve="request"),
)


@pytest.mark.deep
@pytest.mark.parametrize(
    "capacity",
    deep_after(1, [POLICIES[4], *POLICIES[1:4]]),
    ids=str,
)
def test_every_transition_of_a_small_table_under_a_policy(capacity: Capacity) -> None:
    """The same with pages taken ahead or reserved, and with lazy copies besides."""
    chosen = instance("lifecycle", FEW[0])
    start = beside(chosen.geometry, chosen.limits, capacity)
    states, transitions = every_transition(start, alphabet(chosen))

    assert states > 300
    assert transitions > 10 * states


RESERVE: Callable[[Ledger, int], int] = Ledger._reserve
DO: Callable[[Ledger, Line], Done] = Ledger.do


def forgetful(ledger: Ledger, line: Line) -> Done:
    """The same, but taking outputs forgets which choices there are."""
    done = DO(ledger, line)
    if isinstance(line.step, act.TakeOutputs):
        ledger._keys.clear()
    return done


def only_of_reserve(ledger: Ledger, line: Line) -> Done:
    """The same, but no action except Reserve has results."""
    done = DO(ledger, line)
    return done if isinstance(line.step, act.Reserve) else Done(done.changes, ())


def unlisted(done: Done) -> Done:
    """An outcome without its first change."""
    return Done(done.changes[1:], done.results)


WIDTH: Callable[[Ledger, int], int] = Ledger._width


def every_slot(ledger: Ledger) -> dict[int, int]:
    """Every slot that appends inside a page copies it, whoever else has it."""
    size = ledger._geometry.page_size
    lengths = {slot: ledger.held[slot].allocated for slot in ledger._grouped}
    return {slot: length // size for slot, length in lengths.items() if length % size}


POLICY_PLANTS: dict[str, tuple[str, Callable[..., object]]] = {
    "no lazy copy": ("_copying", lambda _ledger: {}),
    "a copy by the last owner": ("_copying", every_slot),
    "nothing is shared": ("_shared", lambda _ledger, _parent: 0),
    "nothing is taken ahead": ("_width", lambda ledger, cells: ledger._geometry.pages_for(cells)),
    "a page too many": ("_width", lambda ledger, cells: WIDTH(ledger, cells) + 1),
}


@pytest.mark.parametrize("plant", deep_after(1, reversed(POLICY_PLANTS)))
def test_a_wrong_policy_of_the_table_is_found(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in what a policy adds does not pass the harness."""
    chosen = instance("lifecycle", FEW[0])
    name, wrong = POLICY_PLANTS[plant]
    monkeypatch.setattr(Ledger, name, wrong)

    with pytest.raises(AssertionError):
        every_transition(beside(FEW[0], chosen.limits, POLICIES[2]), alphabet(chosen))


RESERVED: Callable[[Ledger, act.Assign], range] = Ledger._reserved
RESERVATION_PLANTS: dict[str, tuple[str, Callable[..., object]]] = {
    "nothing is reserved": ("_reserved", lambda _ledger, _action: range(0)),
    "a prompt is never refused for pages": ("_reservable", lambda _ledger, _action: frozenset()),
    "a page too few": ("_reserved", lambda ledger, action: RESERVED(ledger, action)[:-1]),
    "no row is longer than what is allocated": ("_width", lambda _ledger, _cells: 0),
}


@pytest.mark.parametrize("plant", RESERVATION_PLANTS)
def test_a_wrong_reservation_of_the_table_is_found(
    plant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake in what is reserved does not pass the harness."""
    chosen = instance("lifecycle", FEW[0])
    name, wrong = RESERVATION_PLANTS[plant]
    monkeypatch.setattr(Ledger, name, wrong)

    with pytest.raises(AssertionError):
        every_transition(beside(FEW[0], chosen.limits, POLICIES[3]), alphabet(chosen))


PLANTS: dict[str, tuple[str, Callable[..., object]]] = {
    "a refusal is missing": ("_clonable", lambda _ledger, _action: frozenset()),
    "an append is never refused": ("_appendable", lambda _ledger, _held, _tokens: frozenset()),
    "another reason": ("_unused", lambda _ledger, _slot: frozenset([Reason.TOO_LONG])),
    "a result is wrong": ("_reserve", lambda ledger, slot: RESERVE(ledger, slot) + 1),
    "a count stays": ("_release", lambda ledger, slot: ledger.held.pop(slot)),
    "a key is forgotten": ("do", forgetful),
    "results of Reserve alone": ("do", only_of_reserve),
    "a change is not listed": ("do", lambda ledger, line: unlisted(DO(ledger, line))),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_wrong_table_is_found(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in a reason, a result, a field or a change does not pass the harness."""
    chosen = instance("lifecycle", FEW[0])
    name, wrong = PLANTS[plant]
    monkeypatch.setattr(Ledger, name, wrong)

    with pytest.raises(AssertionError):
        every_transition(beside(FEW[0], chosen.limits), alphabet(chosen))


@pytest.mark.parametrize("engine", [table, appending])
@pytest.mark.parametrize("seed", deep_after(6, range(18)))
def test_random_histories_of_larger_tables(
    engine: Callable[[Geometry, Capacity], SpecEngine], seed: int
) -> None:
    """After every step of the fuzzer, reasons, results and fields are equal on both sides."""
    geometry, capacity = SIZES[seed % len(SIZES)], (STANDARD, *POLICIES)[seed // 3]
    here, taken = beside(geometry, default_limits(geometry), capacity), 0
    for session in random_steps(lambda: engine(geometry, capacity), "lifecycle", seed):
        for step in session.history[taken:]:
            if not isinstance(step, PoisonDead | Attend):
                here = here.take(step) or here
        taken = len(session.history)
    assert taken > 30


@pytest.mark.parametrize("seeds", deep_after(1, [4, 15]))
def test_the_table_counts_the_coverage_of_the_specification(seeds: int, tmp_path: Path) -> None:
    """After every line the fast table has reached the same corners and outcomes."""
    corners, wanted = set[str](), set[str]()
    for seed, capacity, engine in product(range(seeds), (STANDARD, *POLICIES), (table, appending)):
        made = engine(SIZES[seed % len(SIZES)], capacity)
        path = recorded(tmp_path / "r.jsonl", made, "lifecycle", seed)
        with path.open("rb") as file:
            header, _ = header_and_lines(file, path)
        both = [judge(header, machine=machine) for machine in (None, MACHINE)]
        for line in lines(path):
            for judging in both:
                judging.take(line)
            assert both[0].coverage.corners == both[1].coverage.corners, line
        assert both[0].coverage.outcomes == both[1].coverage.outcomes
        corners |= both[0].coverage.corners.keys()
        wanted |= {*Coverage().coverable(offered_by(made.profile, SIZES, poisonable=False))}

    assert corners == wanted & CORNERS.keys()
