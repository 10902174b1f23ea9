"""The specification under random actions: every clause and every edge of the ladder at each step.

Lengths are drawn on and around page boundaries, and pools are filled exactly or one page past full.
A run that does not reach every corner named in LANDMARKS fails, and so does one that misses a
planted bug.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from random import Random
from types import ModuleType
from typing import ClassVar

import pytest
from attrs import evolve
from deep import deep_after
from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from spec_draws import free_slots, one_of, propose
from spec_tools import MACHINE, climb, counts, everything_freed, geometry, limits, sequence

from spec import ladder, pool
from spec.machines import lifecycle, pages, scheduling, sharing
from spec.machines.actions import (
    Action,
    Allocate,
    Assign,
    Clone,
    Commit,
    Enqueue,
    Free,
    Prefill,
    Propose,
    Release,
    Reserve,
    Reset,
    Round,
    Truncate,
    Write,
)
from spec.state import State
from spec.table import Sequence, by_slot
from spec.vocabulary import (
    INVALID,
    Capacity,
    CleanupMode,
    Geometry,
    InvalidInput,
    Reason,
    Refused,
)
from spec.vocabulary.capacity import COPIES, RESERVATIONS

SEEDS = st.integers(0, 2**32 - 1)


def canonical(state: State) -> Hashable:
    """The state with its live pages numbered by first appearance, slots ascending."""
    order: dict[int, int] = {}
    for found in state.sequences:
        for page in found.pages if found else ():
            order.setdefault(page, len(order))
    tenants = tuple(
        found and evolve(found, row=tuple(order.get(page, INVALID) for page in found.row))
        for found in state.sequences
    )
    held = counts(state)
    cells = state.cells
    rest = (state.first_page, state.details, state.outputs, state.queue, held.count(0))
    return tenants, tuple((held[page], cells[page]) for page in order), rest


def pages_taken(state: State, action: Action) -> int:
    """How many free pages an action takes."""
    match action:
        case Assign() | Allocate() | Clone() | Prefill():
            return MACHINE.pages_wanted(state, action)
        case Round():
            return sum(
                MACHINE.pages_wanted(state, part) for part, _ in MACHINE.parts(state, action)
            )
        case _:
            return 0


def taking(state: State, action: Action) -> State:
    """The state in which an action takes its pages: a ring has given up what it has to."""
    parts = (part for part, _ in MACHINE.parts(state, action))
    batch = next((part for part in parts if isinstance(part, Allocate)), None)
    return state if batch is None else MACHINE.prepared(state, batch)


def shortest_ring(sizes: Geometry) -> int:
    """The fewest pages of a ring: a window, and the page of the next cell."""
    if sizes.window is None:
        return sizes.pages_per_seq
    return min(sizes.pages_per_seq, 1 + sizes.pages_for(sizes.window - 1))


LANDMARKS = (
    "finish at a page boundary",
    "finish inside a page",
    "clone at a page boundary",
    "clone inside a page",
    "clone with a pending token",
    "free at a page boundary",
    "holes in the slot ids",
    "pool exactly full",
    "one page short",
    "page size 1",
    "padded batch",
    "unsorted batch",
    "release of a page",
    "clone after a release",
    "round after a release",
    "page given up",
    "page given up in a round",
    "shared page given up",
    "truncate after a release",
    "lazy copy in an allocation",
    "lazy copy in a round",
    "last owner keeps the page",
    "truncate with pages taken ahead",
    "clone with pages taken ahead",
    "reservation",
    "reservation for allocated cells",
    "clone with reserved pages",
    "truncate with reserved pages",
    "allocation past the reservation",
)


def landmarks(before: State, action: Action, after: State) -> Iterator[str]:
    """The landmarks that a step which was done has reached."""
    for output in after.outputs[len(before.outputs) :]:
        yield "finish " + place(before, len(output.prompt) + len(output.tokens) - 1)
    if counts(after).count(0) == 0 < counts(before).count(0):
        yield "pool exactly full"
    match action:
        case Clone(parent):
            yield "clone " + place(before, sequence(before, parent).written)
            pending = any(queued.slot == parent for queued in before.queue)
            yield "clone with a pending token" if pending else "clone without"
        case Free(int(slot)):
            yield "free " + place(before, sequence(before, slot).written)
        case Allocate(batch):
            entries = [entry for entry in batch if entry is not None]
            yield "padded batch" if 0 < len(entries) < len(batch) else "full batch"
            yield "sorted batch" if entries == sorted(entries) else "unsorted batch"
        case Round():
            last = max(queued.slot for queued in scheduling.packed(before))
            yield "page size 1" if before.geometry.page_size == 1 else "larger pages"
            hole = min(free_slots(before), default=last) < last
            yield "holes in the slot ids" if hole else "no holes"


def after_a_release(before: State, action: Action, after: State) -> Iterator[str]:
    """What a step that was done has reached of released pages."""
    ring = [
        slot
        for slot, (old, new) in enumerate(zip(before.first_page, after.first_page, strict=True))
        if old < new and isinstance(action, Allocate | Round)
    ]
    for slot in ring:
        yield "page given up in a round" if isinstance(action, Round) else "page given up"
        if pool.is_shared(before.counts, sequence(before, slot).row[before.first_page[slot]]):
            yield "shared page given up"
    match action:
        case Release():
            yield "release" if before == after else "release of a page"
        case Clone(slot) if before.first_page[slot]:
            yield "clone after a release"
        case Truncate(slot) if before.first_page[slot]:
            yield "truncate after a release"
        case Round() if any(before.first_page[one.slot] for one in scheduling.packed(before)):
            yield "round after a release"


def by_policy(before: State, action: Action) -> Iterator[str]:
    """The landmarks of the capacity policies that a step which was done has reached."""
    match action:
        case Allocate(batch):
            yield from copied(before, list(by_slot(batch)), "in an allocation")
        case Round():
            slots = sorted({queued.slot for queued in scheduling.packed(before)})
            yield from copied(before, slots, "in a round")
        case Truncate() if before.capacity.lookahead:
            yield "truncate with pages taken ahead"
        case Clone() if before.capacity.lookahead:
            yield "clone with pages taken ahead"
    if before.capacity.reserve == "request":
        yield from by_reservation(before, action)


def by_reservation(before: State, action: Action) -> Iterator[str]:
    """The landmarks of reservations that a step which was done has reached."""
    match action:
        case Assign(slot):
            taken = MACHINE.pages_wanted(before, action)
            again = " for allocated cells" if sequence(before, slot).row else ""
            yield f"reservation{again}" if taken else "no reservation"
        case Clone(slot):
            found = sequence(before, slot)
            yield "clone with reserved pages" if unused(before, found) else "no reservation"
        case Truncate(slot):
            found = sequence(before, slot)
            yield "truncate with reserved pages" if unused(before, found) else "no reservation"
        case Allocate(batch):
            for slot, at in by_slot(batch).items():
                past = 0 < sequence(before, slot).reserved <= at[-1]
                yield "allocation past the reservation" if past else "no reservation"


def unused(state: State, found: Sequence) -> bool:
    """Whether a row has pages beyond those of its allocated cells."""
    return len(found.row) > state.geometry.pages_for(found.allocated)


def copied(state: State, slots: list[int], where: str) -> Iterator[str]:
    """The lazy copies of slots that append in one batch."""
    copies = pages.copying(state, slots)
    yield f"lazy copy {where}" if copies else "no copy"
    left = {last_page(state, slot) for slot in copies}
    if any(last_page(state, slot) in left for slot in slots if slot not in copies):
        yield "last owner keeps the page"


def last_page(state: State, slot: int) -> int | None:
    """The page in which a slot appends; None if it begins one."""
    found = sequence(state, slot)
    index, offset = divmod(found.allocated, state.geometry.page_size)
    return found.row[index] if offset else None


def place(state: State, written: int) -> str:
    """The place in a page where a sequence of this many cells ends."""
    if written == 0:
        return "with no cell"
    return "inside a page" if written % state.geometry.page_size else "at a page boundary"


class SchedulingMachine(RuleBasedStateMachine):
    """Random actions, each checked against every claim of the specification."""

    reached: ClassVar[Counter[str]] = Counter()

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        """A small machine; the queue and the outputs are as small as they may be, or larger."""
        rng = Random(seed)
        slots = one_of(rng, 1, 2, 3, 4)
        sizes = geometry(
            pages=one_of(rng, 2, 4, 6, 9),
            page_size=one_of(rng, 1, 2, 3, 4),
            slots=slots,
            pages_per_seq=one_of(rng, 3, 4, 6),
            window=rng.choice((None, 1, 2, 3, 5)),
        )
        changed = {name: slots + one_of(rng, 0, 3) for name in ("queue", "outputs")}
        widths = {"round_tokens": one_of(rng, slots, 1), "rounds": one_of(rng, 2, 1, 5)}
        cleanup = rng.choice(list(CleanupMode))
        lookahead = one_of(rng, 0, 1, sizes.page_size, sizes.max_len)
        copy, reserve = rng.choice(COPIES), rng.choice(RESERVATIONS)
        ring = shortest_ring(sizes) + one_of(rng, 0, 1)
        if one_of(rng, 0, 1):
            capacity = Capacity(copy=copy, lookahead=lookahead, reserve=reserve)
        else:
            capacity = Capacity(copy=copy, ring=ring)
        self.steps, self.rng, self.salt = 0, rng, seed
        given = limits(sizes, **changed, **widths)
        self.state = MACHINE.initial(sizes, given, cleanup, capacity)
        self.elsewhere = self.state

    def take(self, action: Action) -> None:
        """Take an action, or see it refused."""
        note(repr(action))
        before, name = self.state, type(action).__name__
        found, fingerprint = MACHINE.refusals(before, action), hash(before)
        assert found == MACHINE.refusals(self.elsewhere, action)
        if found:
            self.reached[f"{name} refused"] += 1
            with pytest.raises(Refused) as caught:
                MACHINE.step(before, action)
            assert found == frozenset(caught.value.refusals)
            free = counts(before).count(0)
            if any((one.reason, one.seen) == (Reason.OUT_OF_PAGES, free + 1) for one in found):
                self.reached["one page short"] += 1
        else:
            self.reached[f"{name} done"] += 1
            self.state = climb(before, action)
            self.reached.update(landmarks(before, action, self.state))
            self.reached.update(after_a_release(before, action, self.state))
            self.reached.update(by_policy(before, action))
            self.check(before, action)
        assert fingerprint == hash(before)

    def check(self, before: State, action: Action) -> None:
        """Check what every step must satisfy beyond the ladder and the clauses."""
        assert self.state == MACHINE.step(before, action)
        wanted = pages_taken(self.elsewhere, action)
        free = pool.free_pages(taking(self.elsewhere, action).counts)
        choice = tuple(self.rng.sample(free, wanted))
        if isinstance(action, Assign | Allocate | Clone) and wanted:
            with pytest.raises(InvalidInput, match="pages: saw"):
                MACHINE.step(self.elsewhere, action, (*choice[1:], before.geometry.pages))
        self.elsewhere = MACHINE.step(self.elsewhere, action, choice)

    @invariant()
    def pages_do_not_matter(self) -> None:
        """A machine that takes other free pages is the same machine with its pages renamed."""
        assert canonical(self.state) == canonical(self.elsewhere)

    @invariant()
    def reset_forgets(self) -> None:
        """From every state a reset gives a new machine, and freeing all returns every page."""
        state = self.state
        new = MACHINE.initial(state.geometry, state.limits, state.cleanup, state.capacity)
        assert new == MACHINE.step(state, Reset())
        freed = everything_freed(state)
        tables = ladder.machine("window")
        assert tables.project(new) == tables.project(freed)
        assert () == freed.queue

    @rule(seed=SEEDS)
    def act(self, seed: int) -> None:
        """Take one action, weighted towards those that the state allows."""
        self.steps += 1
        rng = Random(f"{self.salt} {self.steps} {seed}")
        self.take(propose(self.state, rng, 10 * self.steps))


ACTIONS = (
    Propose
    | Commit
    | Truncate
    | Release
    | Allocate
    | Assign
    | Clone
    | Enqueue
    | Free
    | Prefill
    | Reserve
    | Round
    | Write
)


STEADY = settings(
    stateful_step_count=30,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def outcomes(how: str) -> list[str]:
    """Each action, as done or as refused."""
    return [f"{one.__name__} {how}" for one in ACTIONS.__args__]


def not_reached(names: Iterable[str], *, turns: int) -> list[str]:
    """Run random actions, and return those of these outcomes and landmarks that do not come up.

    What is drawn depends on the modules that other tests have imported.
    """
    SchedulingMachine.reached.clear()
    left = [*names]
    for turn in range(turns):
        machine = seed(turn)(SchedulingMachine)
        run_state_machine_as_test(machine, settings=settings(STEADY, max_examples=50))
        left = [name for name in left if not SchedulingMachine.reached[name]]
        if not left:
            break
    return left


def test_every_step_keeps_the_ladder_and_the_clauses() -> None:
    """Random actions keep every claim, and each of them is done."""
    assert [] == not_reached(outcomes("done"), turns=12)


@pytest.mark.deep
def test_random_actions_reach_every_landmark() -> None:
    """In more turns every landmark comes up, and every action is done and refused."""
    every = (*LANDMARKS, *outcomes("done"), *outcomes("refused"))
    assert [] == not_reached(every, turns=24)


@pytest.mark.parametrize(
    ("module", "name", "planted"),
    deep_after(
        1,
        [
            (scheduling, "_without_slot", lambda state, _: state),
            (sharing, "copy_page", lambda found, *_: found),
            (lifecycle, "taken_keys", lambda _: frozenset()),
            (pages, "taken_pages", lambda _state, wanted, given: given or tuple(range(wanted))),
        ],
    ),
    ids=("purge", "copy", "names", "choice"),
)
def test_random_actions_find_a_planted_bug(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, planted: Callable[..., object]
) -> None:
    """A forgotten purge, copy, check of a name in use or check of the page choice is soon found."""
    monkeypatch.setattr(module, name, planted)
    quick = settings(
        STEADY, max_examples=60, phases=[Phase.generate], report_multiple_bugs=False, database=None
    )

    def turns() -> None:
        for turn in range(8):  # what is drawn depends on the modules that are imported
            run_state_machine_as_test(seed(turn)(SchedulingMachine), settings=quick)

    with pytest.raises((AssertionError, ValueError, Refused, pytest.fail.Exception)):
        turns()
