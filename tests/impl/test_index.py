"""The index on the device: in lockstep with the specification, whatever the hash, and by hand."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve
from deep import deep_after
from engine_tools import KEPT, params, run
from index_draws import drawn
from spec_tools import span

from conformance.engines.ours import make
from conformance.lockstep.called import called
from conformance.lockstep.lockstep import Lockstep
from conformance.seeded_bugs import forget_compiled, replaced
from impl.engine import Engine
from impl.state import index
from spec.machines.actions import (
    Action,
    Allocate,
    Assign,
    Clone,
    Drop,
    Evict,
    Free,
    Hit,
    Merge,
    Publish,
    Release,
    Reserve,
    Write,
)
from spec.vocabulary import INVALID, CleanupMode, Geometry, Refused, Tokens, default_limits

SIZES = Geometry(pages=6, slots=3, page_size=2, pages_per_seq=4)
INDEXING = (Hit, Publish, Merge, Evict, Drop)
STEPS = 400


def written(slot: int, text: Tokens, context: int = 0) -> tuple[Action, ...]:
    """A text in a slot, published."""
    assigned = Assign(slot, text, params(1), request=slot)
    cells = span(slot, 0, len(text))
    begun = (Reserve(slot, context), assigned, Allocate(cells), Write(cells))
    return (*begun, Publish(slot, len(text)))


@contextmanager
def one_bucket() -> Iterator[None]:
    """Every key has the same hash."""
    with replaced("impl.state.index", "bucket_of", lambda _: lambda *_: jnp.int32(0)):
        forget_compiled()
        yield
    forget_compiled()


@pytest.mark.parametrize("hashing", deep_after(1, [one_bucket, nullcontext]))
def test_random_actions_agree_whatever_the_hash(hashing: Any) -> None:
    """Every field, refusal, statistic and event, also where all keys are in one bucket."""
    done = dict.fromkeys(INDEXING, 0)
    with hashing():
        for seed in range(2):
            rng = Random(seed)
            lockstep = Lockstep(
                called(partial(make, SIZES, default_limits(SIZES), CleanupMode.END))
            )
            for number in range(STEPS):
                action = drawn(lockstep.state, rng, number)
                if isinstance(action, Release):
                    continue
                refused = lockstep.do(action)
                lockstep.compare_statistics(action)
                lockstep.compare_events(action)
                if type(action) in done and not refused:
                    done[type(action)] += 1

    assert min(done.values()) > 0, done


def in_use(engine: Engine) -> list[int]:
    """The pages of the index."""
    return np.flatnonzero(engine.extract().indexed.holds).tolist()


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_the_order_of_releases_outlives_the_end_of_the_clock(turns: int) -> None:
    """Idle pages are taken in the order of their release, when the clock wraps around between."""
    engine = Engine(KEPT)
    for slot in range(4):
        run(engine, *written(slot, (slot, slot)))
    state = engine.extract()
    late = jnp.int32(2**31 - 1 - turns)
    engine.inject(state._replace(pages=state.pages._replace(clock=late)))
    for slot in (2, 0, 3, 1):
        run(engine, Free(slot))

    taken = []
    for slot in range(2):
        before = in_use(engine)
        cells = span(slot, 0, 6)
        run(engine, Reserve(slot), Allocate(cells))
        taken.append([page for page in before if page not in in_use(engine)])

    assert [[], [0, 2]] == taken


def test_a_page_goes_last_of_those_that_extend_it() -> None:
    """The first page of a text, which was released first, waits for the others."""
    engine = Engine(KEPT)
    run(engine, *written(0, (1, 2, 3, 4, 5, 6)), Free(0))

    left = []
    for slot in range(4):
        run(engine, Reserve(slot), Allocate(span(slot, 0, 4)))
        left.append(in_use(engine))

    assert [[0, 1, 2], [0, 1, 2], [0, 1], []] == left


def test_without_an_end_the_last_before_live_pages_goes() -> None:
    """A live page extends the only idle one: it leaves the index behind it, and stays live."""
    engine = Engine(KEPT)
    first = written(0, (1, 2))
    second = written(1, (1, 2, 3, 4))
    run(engine, *first, *second, Free(0))
    assert [0, 2] == in_use(engine)

    run(engine, Reserve(2), Allocate(span(2, 0, 8)), Reserve(3), Allocate(span(3, 0, 4)))

    assert [] == in_use(engine)
    assert [1, 2] == engine.extract().pages.rows[1, :2].tolist()
    assert 0 == engine.extract().pages.rows[3, 1]


def test_a_refused_batch_takes_no_page_of_the_index() -> None:
    """One page short, all idle pages stay where they are."""
    engine = Engine(evolve(KEPT, geometry=evolve(KEPT.geometry, pages=3)))
    run(engine, *written(0, (1, 2, 3, 4)), Free(0), Reserve(0))
    before = engine.extract()

    with pytest.raises(Refused, match="OUT_OF_PAGES"):
        run(engine, Allocate(span(0, 0, 8)))

    after = engine.extract()
    assert [0, 1] == in_use(engine)
    for one, other in zip(before.indexed, after.indexed, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_clone_of_a_stale_slot_is_stale_and_a_new_one_is_not() -> None:
    """What was written before a drop is never published again."""
    engine = Engine(KEPT)
    run(engine, *written(0, (1, 2)), Drop(), Clone(0, 1, 1))
    assert [True, True, False, False] == engine.extract().slots.stale.tolist()

    run(engine, Free(0), Free(1), *written(0, (1, 2)))
    assert [0] == in_use(engine)


def test_buckets_are_spread() -> None:
    """Pages of as many texts fill most buckets, so that a search is short."""
    setup = evolve(KEPT, geometry=evolve(KEPT.geometry, pages=256))
    empty = index.make(setup)
    texts = [(context, token) for context in range(4) for token in range(64)]

    buckets = {
        int(index.bucket_of(empty, jnp.int32(context), jnp.int32(9), jnp.array([token, 1])))
        for context, token in texts
    }

    assert len(buckets) > 128


def test_a_text_is_found_as_far_as_it_is_there() -> None:
    """As many pages as are asked for, and none past the first that is missing."""
    engine, text = Engine(KEPT), (1, 2, 3, 4, 5, 6)
    run(engine, *written(0, text))
    held = jax.tree.map(jnp.asarray, engine.extract().indexed)
    tokens = jnp.array([*text, 0, 0], jnp.int32)

    found = [index.find(held, jnp.int32(0), tokens, jnp.int32(count)) for count in range(5)]

    right = [[0, 1, 2, INVALID][:count] for count in range(5)]
    assert [[*one, *[INVALID] * (4 - len(one))] for one in right] == [
        pages.tolist() for pages in found
    ]
