"""The engine on every transition of small geometries, and the check on planted mistakes."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve
from deep import deep_after

from conformance.cli.main import main
from conformance.engines.ours import make
from conformance.exploration.instances import instance
from conformance.exploration.packed_search import Plan
from conformance.exploration.packed_states import Allocator
from conformance.lockstep.watchdog import Watchdog
from conformance.refinement import contents, vmapped
from conformance.refinement.run import (
    Refinement,
    allocator_checker,
    cells_checker,
    refine_allocator,
    refine_cells,
)
from conformance.refinement.transition import agrees, identical, same_observed, words
from conformance.refinement.vmapped import Checker, Kind, Tally, Transitions
from conformance.seeded_bugs import planted, replaced
from impl.setup import Setup
from impl.state import State as DeviceState
from impl.state.packing import fields
from spec.ladder import whole
from spec.machines import actions as act
from spec.state import State
from spec.vocabulary import CleanupMode, Geometry, Params, Reason, Request, default_limits

SMALL = Geometry(pages=3, slots=2, page_size=2, pages_per_seq=2)
TINY = Geometry(pages=2, slots=2, page_size=2, pages_per_seq=1)
SMALLER = Geometry(pages=2, slots=2, page_size=1, pages_per_seq=2)
WIDE = Geometry(pages=1, slots=2, page_size=4, pages_per_seq=1)
INSTANCE = instance("scheduling", SMALL)
SETUP = contents.setup_of(INSTANCE)


def live() -> State:
    """One sequence that decodes beside a finished one whose output waits."""
    state = INSTANCE.initial()
    for number, new in ((1, 1), (2, 3)):
        params = Params(max_new=new, stops=((7,),))
        request = Request(id=number, prompt=(number,), params=params)
        state = INSTANCE.machine.step(state, act.Prefill((request,)))
    return state


@pytest.fixture(scope="module")
def encoded() -> DeviceState:
    """The live state as the engine holds it."""
    return contents.encode(SETUP, live())


@pytest.fixture(scope="module")
def judged() -> Any:
    """The comparison, compiled once."""
    return jax.jit(lambda seen, right: same_observed(SETUP, seen, right))


def changed(state: Any, name: str, at: Any, by: int = 1) -> Any:
    """The state with one number changed."""
    component, field = name.split(".")
    held = getattr(state, component)
    value: Any
    if field == "cache":
        value = tuple(pool.copy() for pool in held.cache)
        value[1][at] += by
    else:
        value = np.array(getattr(held, field))
        by = -1 if field in {"rows", "parents"} else by  # INVALID is the largest there is
        value[at] = ~value[at] if value.dtype == np.bool_ else value[at] + by
    return state._replace(**{component: held._replace(**{field: value})})


LIVE = [
    ("pages.counts", 0),
    ("pages.rows", (0, 0)),
    ("pages.rows", (1, 0)),
    ("slots.used", 0),
    ("slots.used", 1),
    ("slots.tokens", (0, 0)),
    ("slots.known", 0),
    ("slots.known", 1),
    ("slots.prompt_lens", 1),
    ("slots.finished", 1),
    ("slots.allocated", 0),
    ("slots.written", 0),
    ("slots.committed", 0),
    ("slots.proposed", 0),
    ("slots.prompt_lens", 0),
    ("slots.max_new", 0),
    ("slots.requests", 0),
    ("slots.choices", 0),
    ("slots.seeds", 0),
    ("slots.temperatures", 0),
    ("slots.stops", (0, 0, 0)),
    ("slots.stop_lens", (0, 0)),
    ("slots.finished", 0),
    ("queue.tokens", 0),
    ("queue.slots", 0),
    ("queue.positions", 0),
    ("queue.filled", ()),
    ("outputs.tokens", (0, 0)),
    ("outputs.lens", 0),
    ("outputs.reasons", 0),
    ("outputs.requests", 0),
    ("outputs.choices", 0),
    ("outputs.filled", ()),
    ("pages.cache", (0, 0, 0, 0)),
    ("pages.cache", (0, 0, 1, 0)),
]
DEAD = [
    ("slots.tokens", (0, 3)),
    ("slots.tokens", (1, 0)),
    ("slots.max_new", 1),
    ("queue.tokens", 1),
    ("outputs.tokens", (0, 1)),
    ("outputs.tokens", (1, 0)),
    ("outputs.requests", 1),
    ("pages.cache", (0, 1, 0, 0)),
    ("pages.cache", (2, 0, 0, 0)),
]


@pytest.mark.parametrize(("name", "at"), LIVE)
def test_what_can_be_observed_is_compared(
    name: str, at: Any, encoded: DeviceState, judged: Any
) -> None:
    """One wrong number anywhere in the observable state is found."""
    assert judged(encoded, encoded)
    assert not judged(changed(encoded, name, at), encoded)


OF_INDEX = [
    ("indexed.contexts", 0),
    ("indexed.parents", 0),
    ("indexed.parents", 1),
    ("indexed.parents", 3),
    ("indexed.tokens", (1, 0)),
    ("indexed.children", 0),
    ("pages.released", 0),
    ("pages.cache", (1, 0, 0, 0)),
    ("slots.contexts", 0),
    ("slots.stale", 0),
]
"""What is read of an index with two idle pages, 0 and 1; page 3 is not in it."""
INTERNAL = {"pages.clock", "indexed.buckets", "indexed.after", "indexed.before", "indexed.totals"}
"""Where a page is looked for, the time and totals: only what comes of them shows."""


@pytest.mark.parametrize(("name", "at"), OF_INDEX)
def test_the_index_is_compared(name: str, at: Any) -> None:
    """The keys and the order of idle pages, their cells, contexts and stale slots."""
    sizes = Geometry(pages=4, slots=1, page_size=2, pages_per_seq=4)
    limits, cleanup = default_limits(sizes), CleanupMode.INCREMENTAL
    setup = Setup(geometry=sizes, limits=limits, model=SETUP.model)
    machine = make(sizes, limits, cleanup).profile.machine
    state = machine.initial(sizes, limits, cleanup)
    for at_turn, text in enumerate(((5, 6), (5, 7))):
        cells = ((0, 0), (0, 1))
        given = Params(max_new=1), at_turn
        for action in (
            *(act.Reserve(context=3), act.Assign(0, text, *given), act.Allocate(cells)),
            *(act.Write(cells), act.Publish(0, 2), act.Free(0)),
        ):
            state = machine.step(state, action)
    right = contents.encode(setup, state)

    assert same_observed(setup, right, right)
    assert not same_observed(setup, changed(right, name, at), right)


OF_STEPS = [
    ("pages.held", 0),
    ("flights.filled", ()),
    ("flights.retired", 1),
    ("flights.holds", (0, 1)),
    ("flights.first", (1, 0)),
    ("flights.lens", (1, 0)),
    ("flights.draws", (0, 0)),
    ("flights.rows", (1, 0, 0)),
    ("flights.rows", (0, 1, 0)),
]
"""What is read of two steps in flight, of which the first has a part of a slot that was freed."""


@pytest.mark.parametrize(("name", "at"), OF_STEPS)
def test_steps_in_flight_are_compared(name: str, at: Any) -> None:
    """Their positions, pages and slots, and how many of them name a page."""
    sizes = Geometry(pages=4, slots=2, page_size=2, pages_per_seq=2)
    machine, limits = whole(), evolve(default_limits(sizes), round_tokens=4)
    setup = Setup(geometry=sizes, limits=limits, model=SETUP.model)
    state = machine.initial(sizes, limits)
    for slot in (0, 1):
        given = act.Assign(slot, (1, 2), Params(max_new=2), slot)
        state = machine.step(machine.step(state, act.Reserve(slot)), given)
    first = act.Dispatch(((0, 2), (1, 2)))
    for action in (first, act.Retire(), act.Dispatch(((0, 1),)), act.Free(1)):
        state = machine.step(state, action)
    right = contents.encode(setup, state)

    assert same_observed(setup, right, right)
    assert not same_observed(setup, changed(right, name, at), right)


def test_a_written_draft_is_compared() -> None:
    """A cell that is written and not committed counts, and a dead one does not."""
    chosen = instance("rollback", Geometry(pages=4, slots=1, page_size=2, pages_per_seq=4))
    setup, state = contents.setup_of(chosen), chosen.initial()
    request = Request(id=1, prompt=(5, 6), params=Params(max_new=5))
    third, fourth = ((0, 2),), ((0, 3),)
    for action in (
        *(act.Prefill((request,)), act.Pack(), act.Allocate(third), act.Write(third)),
        *(act.Propose(0, (4,)), act.Pack(), act.Allocate(fourth), act.Write(fourth)),
    ):
        state = chosen.machine.step(state, action)
    right = contents.encode(setup, state)

    assert same_observed(setup, changed(right, "pages.cache", (2, 0, 0, 0)), right)
    assert not same_observed(setup, changed(right, "pages.cache", (1, 1, 0, 0)), right)


@pytest.mark.parametrize(("name", "at"), DEAD)
def test_what_nobody_can_observe_is_not(
    name: str, at: Any, encoded: DeviceState, judged: Any
) -> None:
    """Dead cells, unused slots and entries past the ends are compared by `identical` alone."""
    other = changed(encoded, name, at)

    assert judged(other, encoded)
    assert not identical(jax.tree.map(jnp.asarray, other), jax.tree.map(jnp.asarray, encoded))


def test_every_rung_of_the_engine_has_an_encoder() -> None:
    """Components of a rung without one would be injected as they are in a new engine."""
    sizes = Geometry(pages=2, page_size=2, slots=1, pages_per_seq=2, window=2)
    chosen = instance("scheduling", sizes)
    engine = make(chosen.geometry, chosen.limits, chosen.cleanup)
    owners = {rung.name for rung in engine.profile.machine.rungs if rung.owns}

    on_the_host, in_the_rows = "admission", "window"
    assert owners - {on_the_host, in_the_rows} == set(contents.ENCODERS)


def test_every_field_of_the_state_is_looked_at() -> None:
    """A new field must be compared, or listed as one that cannot be observed."""
    # Not kept by this setup, and floats: test_engine has them.
    kept = {"slots.logprobs", "outputs.logprobs"}

    looked_at = {name for name, _ in (*LIVE, *OF_INDEX, *OF_STEPS)}
    assert looked_at | kept | INTERNAL == {"pages.cache", *fields(SETUP)}


def mask_of(reasons: int) -> jax.Array:
    """A set of reasons, a bit for each, as the device has it."""
    return jnp.asarray(words(np.array([reasons], np.uint64))[0])


@pytest.mark.parametrize(
    ("code", "mask", "same", "fine"),
    [
        (0, 0, 0, 0),
        (0, 0, 1, 1),
        (Reason.SLOT_USED, 0, 1, 0),
        (0, 1 << Reason.SLOT_USED, 1, 0),
        (Reason.SLOT_USED, 1 << Reason.SLOT_USED, 1, 1),
        (Reason.SLOT_USED, 1 << Reason.SLOT_USED, 0, 0),
        (Reason.SLOT_UNUSED, 1 << Reason.SLOT_USED, 1, 0),
        (Reason.SLOT_USED, 1 << Reason.SLOT_USED | 1 << Reason.OUT_OF_PAGES, 1, 1),
        (Reason.CHOICE_TAKEN, 1 << Reason.CHOICE_TAKEN, 1, 1),
        (Reason.NO_FLIGHT, 1 << Reason.NO_FLIGHT, 1, 1),
        (Reason.NO_FLIGHT, 1 << (Reason.NO_FLIGHT - 32), 1, 0),
        (Reason.NO_FLIGHT - 32, 1 << Reason.NO_FLIGHT, 1, 0),
    ],
)
def test_a_refusal_has_a_legal_reason_and_changes_nothing(
    code: int, mask: int, same: int, fine: int, encoded: DeviceState
) -> None:
    """A step is done as expected, or refused for one of the reasons and unchanged bit for bit."""
    after = encoded if same else changed(encoded, "pages.counts", 0)
    status = jnp.array([code, 0, 0], jnp.int32)

    assert bool(fine) == agrees(SETUP, encoded, after, status, encoded, mask_of(mask))


def test_a_refusal_changes_nothing_at_all(encoded: DeviceState) -> None:
    """One number that is written by a refused step is found, also where nobody can observe it."""
    status, mask = jnp.array([Reason.SLOT_USED, 0, 0], jnp.int32), mask_of(1 << Reason.SLOT_USED)
    fine = jax.jit(lambda before, after: agrees(SETUP, before, after, status, before, mask))
    wrong = {f"{name} {at}": changed(encoded, name, at) for name, at in [*LIVE, *DEAD]}

    assert fine(encoded, encoded)
    assert [] == [name for name, after in wrong.items() if fine(encoded, after)]


def refined(geometry: Geometry, *, illegal: bool = False, sample: int = 200) -> Refinement:
    """The allocator instance, refined."""
    run = Refinement()
    plan = Plan(instance=Allocator(geometry), illegal=illegal)
    refine_allocator(plan, run, allocator_checker(plan, run, sample=sample, seed=0))
    return run


def test_the_engine_refines_the_allocator() -> None:
    """Every transition, legal or not, is taken as the specification takes it."""
    run = refined(SMALL, illegal=True)

    assert (185, 1068) == (run.graph.states, run.graph.transitions)
    assert run.graph.transitions + run.graph.illegal == run.tally.checked
    assert (0, 200, None) == (run.tally.mismatches, run.tally.checked_unbatched, run.broken)


@pytest.mark.parametrize(
    ("plant", "history"),
    deep_after(
        1,
        [
            ("RC2", ("reserve(0)", "extend(0, 2)", "clone(0, 1)")),
            ("PT2", ("reserve(1)", "extend(1, 1)")),
        ],
    ),
)
def test_a_planted_bug_gives_a_shortest_history(plant: str, history: tuple[str, ...]) -> None:
    """The first mismatch is reported with the fewest moves from the initial state."""
    with planted(plant):
        run = refined(TINY, sample=0)

    assert run.tally.mismatches
    assert history == run.history


@pytest.mark.parametrize(
    ("name", "geometry", "states", "transitions", "illegal", "sample"),
    [
        pytest.param("lifecycle", TINY, 376, 4016, 18504, 100, marks=pytest.mark.deep),
        pytest.param("scheduling", WIDE, 946, 13335, 35857, 0, marks=pytest.mark.deep),
    ],
)
def test_the_engine_refines_contents_and_decoding(
    name: str, geometry: Geometry, states: int, transitions: int, illegal: int, sample: int
) -> None:
    """Whole states with cells, queue and outputs are refined, with a sample without batches."""
    run, chosen = Refinement(), instance(name, geometry)

    refine_cells(chosen, run, cells_checker(chosen, run, sample=sample, seed=0), illegal=True)

    assert (states, transitions, illegal) == (
        run.graph.states,
        run.graph.transitions,
        run.graph.illegal,
    )
    assert transitions + illegal == run.tally.checked
    assert (0, sample, None) == (run.tally.mismatches, run.tally.checked_unbatched, run.broken)


@pytest.mark.deep
def test_a_bug_is_found_among_states_up_to_renaming_too() -> None:
    """The engine is right, and a planted bug has the same shortest history."""
    chosen = instance("lifecycle", SMALLER, open_pages=True, left_out=("assign_again",))

    def run() -> Refinement:
        found = Refinement()
        refine_cells(chosen, found, cells_checker(chosen, found, sample=0, seed=0), illegal=True)
        return found

    right = run()
    assert (0, None) == (right.tally.mismatches, right.broken)
    assert right.graph.transitions + right.graph.illegal == right.tally.checked
    with planted("RC2"):
        wrong = run()
    assert ("reserve(0)", "assign(0, 1)", "allocate(0, 1)") == wrong.history[:3]
    assert wrong.history[-1].startswith("clone(0")


def numbers(values: list[int]) -> Transitions:
    """Transitions that are numbers: state, move 7, and nothing refused."""
    array = np.array(values)
    return Transitions(
        array, array * 0 + 7, array, (array,), array, np.zeros((len(values), 2), np.uint32)
    )


def counting(*, batched: Any, shipped: Any) -> dict[str, Kind]:
    """One kind whose checks are these, of the number alone."""
    return {
        "one": Kind(
            "one",
            lambda before, _arguments, _after, _mask: batched(before),
            lambda before, _arguments, _after, _mask: shipped(int(before)),
        )
    }


def check(kinds: dict[str, Kind], parts: list[list[int]], sample: int = 0) -> Tally:
    """The tally of a checker of these numbers, in batches of 4."""
    checker = Checker(kinds, size=4, sample=sample, seed=0, tally=Tally())
    for part in parts:
        checker.add("one", numbers(part))
    checker.finish()
    return checker.tally


def test_every_transition_is_checked_once_and_the_first_mismatch_is_kept() -> None:
    """Every transition is checked once, in padded batches, and padding is not counted."""
    kinds = counting(batched=lambda x: (x != 5) & (x != 9), shipped=lambda _: True)

    tally = check(kinds, [[9, 1, 2], [], [3, 4, 5, 6, 7, 8], [10]])

    assert (10, 2, (5, 7)) == (tally.checked, tally.mismatches, tally.first)


def test_the_sample_is_taken_through_the_entry_points_as_shipped() -> None:
    """A bug of the shipped entry point alone is found in the sample."""
    seen: list[int] = []

    def shipped(number: int) -> bool:
        seen.append(number)
        return number % 2 == 0

    kinds = counting(batched=lambda x: x > -1, shipped=shipped)

    tally = check(kinds, [list(range(start, start + 50)) for start in range(0, 1000, 50)], 40)

    assert (1000, 40, 40) == (tally.checked, tally.checked_unbatched, len(set(seen)))
    assert sum(x % 2 for x in seen) == tally.mismatches > 0
    assert max(seen) > 500
    assert min(seen) < 500


def test_a_sample_larger_than_all_takes_all() -> None:
    """A sample of more than all transitions has every transition."""
    kinds = counting(batched=lambda x: x > -1, shipped=lambda _: True)

    assert 6 == check(kinds, [[1, 2, 3], [4, 5, 6]], 100).checked_unbatched


def test_padding_repeats_and_parts_are_taken() -> None:
    """A padded batch begins with the given transitions."""
    whole = vmapped.padded(numbers([3, 4]), 5)

    assert [3, 4, 3, 3, 3] == whole.state.tolist()
    assert [4] == vmapped.part(whole, slice(1, 2)).before.tolist()


@pytest.mark.deep
def test_the_commands_agree(tmp_path: Path) -> None:
    """`explore` and `refine` with the same options report the same graph."""
    sizes = ["--geometry", "pages=2,slots=2,page_size=1,pages_per_seq=1", "--alphabet", "legal"]
    found = {}
    for name in ("explore", "refine"):
        target = tmp_path / f"{name}.json"
        assert 0 == main([name, *sizes, "--json", str(target), "--quiet"])
        found[name] = json.loads(target.read_text())

    keys = ("states", "transitions", "depth", "actions", "geometry")
    explored, refined_too = ({key: result[key] for key in keys} for result in found.values())
    assert explored == refined_too
    assert found["refine"]["checked"] == found["refine"]["transitions"]
    assert ("holds", "complete") == (found["refine"]["verdict"], found["refine"]["scope"])
    assert any("illegal actions" in part for part in found["refine"]["not_checked"])


@pytest.mark.deep
def test_illegal_actions_are_sent_to_the_engine_by_default(tmp_path: Path) -> None:
    """A missing guard that refuses illegal actions alone makes refine fail."""
    target = tmp_path / "r.json"
    sizes = ["--rung", "lifecycle", "--geometry", "pages=1,slots=1,page_size=2,pages_per_seq=1"]
    words = ["refine", *sizes, "--unbatched", "0", "--quiet", "--json", str(target)]

    def never(right: Any) -> Any:
        return lambda *given: tuple((jnp.zeros((), bool), *rest) for _, *rest in right(*given))

    assert 0 == main(words)
    found = json.loads(target.read_text())
    assert found["transitions"] + found["illegal"] == found["checked"]
    assert found["illegal"] > 0
    with replaced("impl.plan", "require_used", never):
        assert 1 == main(words)
        assert 0 == main([*words, "--alphabet", "legal"])


def test_the_setup_of_a_layer_is_one_engine() -> None:
    """Contents and decoding at one geometry are the same engine, compiled once."""
    assert contents.setup_of(instance("lifecycle", TINY)) == contents.setup_of(
        instance("scheduling", TINY)
    )
    assert isinstance(SETUP, Setup)


def test_a_batch_that_does_not_return_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog watches a batch during its call, and while its result is fetched."""
    told: list[str] = []
    watchdog = Watchdog(lambda _history, _message: None)
    monkeypatch.setattr(watchdog, "begin", lambda _history, _seconds: told.append("begin"))
    monkeypatch.setattr(watchdog, "end", lambda: told.append("end"))
    kinds = counting(batched=lambda number: number >= 0, shipped=lambda _number: True)
    checker = Checker(kinds, size=2, sample=0, seed=0, tally=Tally(), watchdog=watchdog)

    checker.add("one", numbers([1, 2]))
    checker.finish()

    assert ["begin", "end"] * 2 == told


def test_an_interrupt_before_the_end_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transitions that are explored and not yet checked are no failure before the end."""

    def interrupted(_checker: Checker) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Checker, "finish", interrupted)
    result = tmp_path / "r.json"
    sizes = "pages=2,slots=2,page_size=2,pages_per_seq=2"

    assert 3 == main(["refine", "--geometry", sizes, "--json", str(result), "--quiet"])
    found = json.loads(result.read_text())
    assert ("undecided", True, []) == tuple(
        found[key] for key in ("verdict", "interrupted", "failures")
    )
    assert found["transitions"] > found["checked"]
