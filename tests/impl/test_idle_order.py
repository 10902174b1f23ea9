"""Which idle pages are taken, and what then leaves the index: on any index, reached or not."""

from functools import partial
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import frozen

from conformance.seeded_bugs import replaced
from impl.state import index as device
from impl.state.pages import Pages
from spec import index
from spec.index import Indexed
from spec.vocabulary import INVALID

PAGES, MOST, CASES = 24, 8, 250


@frozen
class Forest:
    """An index: the page before each page of it (None: it begins a text), and ages of idle ones."""

    parents: dict[int, int | None]
    ages: dict[int, int]
    counts: tuple[int, ...]
    clock: int

    def chain(self, page: int) -> tuple[int, ...]:
        """The key of a page, with one token for a page."""
        before = self.parents[page]
        return (*(self.chain(before) if before is not None else ()), page + 1)

    @property
    def of_specification(self) -> index.Index:
        """The same index in the specification."""
        ages = sorted(set(self.ages.values()))
        ranks = {page: 1 + ages.index(age) for page, age in self.ages.items()}
        return tuple(
            Indexed(0, self.chain(page), ranks.get(page, 0)) if page in self.parents else None
            for page in range(PAGES)
        )

    @property
    def of_engine(self) -> tuple[device.Index, Pages]:
        """The same index in the engine; what its fields say of other pages means nothing."""
        parents, children = np.full(PAGES, device.OUTSIDE), np.full(PAGES, 3)
        children[[*self.parents]] = 0
        for page, before in self.parents.items():
            parents[page] = INVALID if before is None else before
            if before is not None:
                children[before] += 1
        released = np.zeros(PAGES, np.int64)
        for page, age in self.ages.items():
            released[page] = self.clock + age
        none = jnp.zeros((PAGES,), jnp.int32)
        held = device.Index(
            contexts=none,
            parents=jnp.asarray(parents, jnp.int32),
            tokens=none[:, None],
            children=jnp.asarray(children, jnp.int32),
            buckets=none,
            after=none,
            before=none,
            totals=none[:3],
        )
        counts = jnp.asarray(self.counts, jnp.int32)
        times = jnp.asarray(released.astype(np.int32))
        return held, Pages((), counts, none[:1, None], times, jnp.int32(self.clock), none)


def drawn(seed: int) -> Forest:
    """Chains of live and idle pages in any order; often every page without extensions is live."""
    rng = Random(seed)
    parents = dict[int, int | None]()
    for page in rng.sample(range(PAGES), rng.randrange(PAGES // 2, PAGES)):
        parents[page] = rng.choice([*parents][-3:]) if parents and rng.random() < 0.85 else None
    share = rng.choice((0.1, 0.5, 0.9))
    live = {page for page in parents if rng.random() < share}
    if rng.random() < 0.6:
        live |= parents.keys() - {*parents.values()}
    idle = sorted(parents.keys() - live)
    most = rng.choice((5, 100, 10**6))
    counts = tuple(
        rng.randrange(1, 3) if page in live or (page not in parents and rng.random() < 0.7) else 0
        for page in range(PAGES)
    )
    ages = {page: -rng.randrange(most) for page in idle}
    return Forest(parents, ages, counts, rng.choice((0, 7, 2**31 - 1, 123_456)))


def taken(forest: Forest, with_idle: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The pages that engine and specification take next."""
    held, pages = forest.of_engine
    free = [page for page in range(PAGES) if not forest.counts[page] and page not in forest.parents]
    given = jnp.asarray([*free, *[PAGES] * MOST][:MOST], jnp.int32)
    seen = np.asarray(with_idle(held, pages, given, jnp.int32(MOST)))
    right = index.next_pages(forest.of_specification, forest.counts, MOST)
    return tuple(seen[seen < PAGES].tolist()), right


def left(forest: Forest, gone: tuple[int, ...], without: Any) -> tuple[Any, Any]:
    """Parents and numbers of children by page, in engine and specification, without some pages."""
    held, _ = forest.of_engine
    named = jnp.asarray([*gone, *[PAGES] * MOST][:MOST], jnp.int32)
    after = jax.tree.map(np.asarray, without(held, named, jnp.ones((MOST,), jnp.bool_)))
    there = np.flatnonzero(after.parents != device.OUTSIDE).tolist()
    seen = {page: (int(after.parents[page]), int(after.children[page])) for page in there}
    kept = index.without(forest.of_specification, gone)
    stays = [page for page, entry in enumerate(kept) if entry]
    right = {}
    for page in stays:
        before = forest.parents[page]
        children = sum(forest.parents[other] == page for other in stays)
        right[page] = (INVALID if before is None else before, children)
    return seen, right


def first_difference() -> object:
    """The first of the drawn indexes on which engine and specification differ; None if none is."""
    with_idle, without = (jax.jit(partial(one)) for one in (device.with_idle, device.without))
    for seed in range(CASES):
        forest = drawn(seed)
        seen, right = taken(forest, with_idle)
        if seen != right:
            return seed, seen, right
        both = left(forest, tuple(page for page in right if page in forest.parents), without)
        if both[0] != both[1]:
            return (seed, *both)
    return None


def test_the_engine_takes_the_pages_that_the_specification_takes() -> None:
    """Whatever is idle, extended or old, and wherever the clock is."""
    assert None is first_difference()


def one_level(extended: Any, held: Any, pages: Any) -> Any:
    """The pages that these pages extend directly."""
    del extended
    at = jnp.where(held.holds & pages, held.parents, INVALID)
    return jnp.zeros_like(pages).at[at].set(True, mode="drop")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_extended", lambda right: partial(one_level, right)),
        ("_cut_off", lambda _right: lambda parents, _pages: parents),
        ("idle_pages", lambda _right: lambda held, _counts: held.holds),
    ],
)
def test_a_wrong_order_is_noticed(name: str, wrong: Any) -> None:
    """Extensions of one level alone, or none that leave, and pages that a row names."""
    with replaced("impl.state.index", name, wrong):
        assert None is not first_difference()
