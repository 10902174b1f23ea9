"""The reference engine in lockstep with the specification, fuzzed for a fixed budget."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax.numpy as jnp
import pytest
from deep import deep_after
from spec_engine import small

from conformance.engines import ours
from conformance.fuzzing import campaign
from conformance.fuzzing.state_machine import LEVELS, Campaign
from conformance.fuzzing.warmup import warmup
from conformance.history import Attend, History, PoisonDead
from conformance.lockstep.lockstep import Lockstep, Violation
from conformance.lockstep.run import replay
from conformance.protocol import CALLS, Attends, Compiles, Engine, Poison, Poisonable
from conformance.rungs.registry import KITS
from impl import entries
from spec import ladder
from spec.machines import actions as act
from spec.machines import naive, window
from spec.vocabulary import (
    CleanupMode,
    FinishReason,
    Params,
    Request,
    Tokens,
    default_limits,
)

SIZES = small()
OURS = tuple(
    step
    for kit in KITS
    if kit.rung != "window"
    for step in kit.warmup
    if not isinstance(step, act.Append)
)
"""Our engine releases nothing without an attention window, and it has a queue of its own."""


def engine(cleanup: CleanupMode = CleanupMode.INCREMENTAL) -> ours.Ours:
    """A new reference engine at the default sizes."""
    return ours.make(SIZES, default_limits(SIZES), cleanup)


def batch(slot: int, start: int, stop: int) -> tuple[tuple[int, int], ...]:
    """The positions from `start` to `stop - 1` of a slot."""
    return tuple((slot, position) for position in range(start, stop))


LIVE: History = (
    act.Reserve(2),
    act.Assign(2, (1, 2, 3, 4, 5, 6), Params(max_new=2), 1),
    act.Allocate(batch(2, 0, 6)),
    act.Write(batch(2, 0, 6)),
    act.Clone(2, 0, 1),
    act.Reserve(3),
    act.Assign(3, (7,), Params(max_new=2), 2),
    act.Allocate(batch(3, 0, 1)),
    act.Write(batch(3, 0, 1)),
    act.Free(2),
)
"""A clone that outlives its parent, a short sequence, and an empty slot between them."""


def live() -> Lockstep:
    """The engine and the specification after LIVE."""
    lockstep = Lockstep(engine())
    for step in LIVE:
        assert not isinstance(step, PoisonDead | Attend)
        assert frozenset() == lockstep.do(step)
    return lockstep


def test_our_engine_offers_everything_and_release_where_there_is_a_window() -> None:
    """It refuses exactly, takes the lowest free page, shows every field, and can be driven."""
    made: Engine = engine()

    assert ("exact", "lowest") == (made.profile.refuses, made.profile.policy)
    without = {*window.RUNG.rules, act.Append}
    assert CALLS - without == made.profile.actions
    assert {*ladder.whole().names} - {"window"} == {*made.profile.machine.names}
    assert all(isinstance(made, kind) for kind in (Poisonable, Attends, Compiles))
    assert OURS == warmup(made.profile.actions)
    sizes = small(window=5)
    sliding = ours.make(sizes, default_limits(sizes), CleanupMode.INCREMENTAL).profile
    assert sliding.actions == CALLS - {act.Append}
    assert {*ladder.whole().names} == {*sliding.machine.names}


@pytest.mark.parametrize("levels", deep_after(1, [(LEVELS[1:2],), (LEVELS,)]), ids=len)
def test_fuzzing_finds_nothing_and_each_entry_point_is_compiled_once(
    levels: tuple[str, ...],
) -> None:
    """A turn at each level agrees at every step, and no action compiles a second time."""
    assert None is replay(engine, OURS)
    target = Campaign(make=engine)
    for start, level in enumerate(levels):
        report = campaign.Run(coverage=target.coverage)
        campaign._take_turn(target, level, start, report)
        assert None is report.finding, report.finding

    assert 333 * len(levels) < target.steps
    called = (name for name in entries.NAMES if name != "release")
    assert dict.fromkeys(called, 1) == engine().compilations()


def test_each_request_gets_the_tokens_of_naive_decode_of_it_alone() -> None:
    """Requests that share slots, rounds and pages with others get what they would get alone."""
    lockstep = Lockstep(engine())
    requests = [
        Request(
            id=name,
            prompt=tuple(range(name, name + 1 + name % 5)),
            params=Params(max_new=1 + name % 7, temperature=float(name % 2), seed=name),
            n_generations=1 + name % 3,
        )
        for name in range(1, 9)
    ]
    outputs: dict[tuple[int, int], tuple[Tokens, FinishReason]] = {}
    for request in requests:
        assert frozenset() == lockstep.do(act.Submit(request))
    while not lockstep.state.idle:
        lockstep.do(act.Admit())
        lockstep.do(act.Generate())
        assert lockstep.seen.outputs is not None
        for name, choice, tokens, reason in lockstep.seen.outputs:
            outputs[name, choice] = tokens, reason
        lockstep.do(act.TakeOutputs())

    assert {
        (request.id, choice): naive.generate(request.prompt, request.params, choice)
        for request in requests
        for choice in range(request.n_generations)
    } == outputs
    assert (0,) * SIZES.pages == lockstep.seen.counts


@pytest.mark.parametrize("kind", Poison)
def test_dead_cells_never_matter(kind: Poison) -> None:
    """The contents of dead cells change nothing that can be observed, then or later."""
    lockstep = live()
    before = _dead_words(lockstep)
    lockstep.poison(kind)
    after = _dead_words(lockstep)
    lockstep.attend()
    lockstep.do(act.Reserve(2))
    lockstep.do(act.Assign(2, (1, 2), Params(max_new=3), 5))
    lockstep.do(act.Allocate(batch(2, 0, 2)))
    lockstep.do(act.Write(batch(2, 0, 2)))
    lockstep.attend()

    assert 3 == len([cell for cell in lockstep.seen.read(0) if cell][:3])
    assert (kind is Poison.STALE) == (before == after)


def _dead_words(lockstep: Lockstep) -> set[object]:
    """The contents of the cells that no sequence has written."""
    seen = lockstep.seen
    assert seen.cells is not None
    assert seen.written is not None
    size = SIZES.page_size
    living = {
        row[position // size] * size + position % size
        for row, written in zip(seen.rows, seen.written, strict=True)
        for position in range(written)
    }
    return {seen.cells[at] for at in range(len(seen.cells)) if at not in living}


def test_attention_is_recovered_cell_by_cell() -> None:
    """Each query's read set is its own history, each cell once, through shared and copied pages."""
    lockstep = live()
    rows = lockstep.seen.rows
    read = engine_of(lockstep).attend()

    assert {0, 3} == set(read)
    assert dict.fromkeys([*range(4 * rows[0][0], 4 * rows[0][0] + 4), 4 * rows[0][1],
                          4 * rows[0][1] + 1], 1) == read[0]  # fmt: skip
    assert {4 * rows[3][0]: 1} == read[3]
    lockstep.attend()


def engine_of(lockstep: Lockstep) -> ours.Ours:
    """The reference engine of a lockstep."""
    assert isinstance(lockstep.engine, ours.Ours)
    return lockstep.engine


def _one_more(attention: Any, q: Any, pool: Any, lens: Any, *rest: Any, **options: Any) -> Any:
    return attention(q, pool, jnp.where(lens > 0, lens + 1, lens), *rest, **options)


def _one_less(attention: Any, q: Any, pool: Any, lens: Any, *rest: Any, **options: Any) -> Any:
    return attention(q, pool, jnp.maximum(lens - 1, 1), *rest, **options)


def _wrong_row(
    attention: Any, q: Any, pool: Any, lens: Any, rows: Any, *rest: Any, **options: Any
) -> Any:
    return attention(q, pool, lens, rows[::-1], *rest, **options)


@pytest.mark.parametrize("wrong", [_one_more, _one_less, _wrong_row])
def test_wrong_attention_is_told_by_what_it_reads(
    wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask that is off by one, or another slot's row, shows in the read set."""
    lockstep = live()
    lockstep.attend()
    right, read_sets = vars(ours)["ragged_paged_attention"], cast("Any", ours._read_sets)
    monkeypatch.setattr(ours, "ragged_paged_attention", partial(wrong, right))
    read_sets.clear_cache()
    try:
        with pytest.raises(Violation, match=r"READ: slot \d read .* should read"):
            lockstep.attend()
    finally:
        read_sets.clear_cache()


def test_a_cell_that_changes_under_a_sequence_is_told() -> None:
    """One wrong word in one live cell violates CONTENT at the next observation."""
    lockstep = live()
    inner = engine_of(lockstep).engine
    page = lockstep.seen.rows[0][1]
    held = inner.extract()
    held.pages.cache[1][page, 1, 1, 0] += 1
    inner.inject(held)

    with pytest.raises(Violation, match="CONTENT: slot 0 position 5 holds"):
        lockstep.do(act.Reserve(1))
