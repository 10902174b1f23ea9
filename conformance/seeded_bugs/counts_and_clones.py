"""Plants in reference counts and clones: sharing, copies and releases.

Rows RC, CW and SA of the catalogue of real bugs.
"""

from collections.abc import Callable
from typing import Final

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from conformance.seeded_bugs import Plant, patch
from conformance.seeded_bugs.states import with_pages, with_slots
from impl import commit
from impl.cache import paged
from impl.models import integer
from impl.setup import Setup
from impl.state import State
from spec.vocabulary import INVALID, Geometry

CopyPage = Callable[[Array, ArrayLike, ArrayLike], Array]
DrawOf = Callable[[Array, Array, Array, Array], Array]
Fork = Callable[[State, Array, Array, Array, Array, Setup], State]
Release = Callable[[State, Array, Geometry], State]


def _fork_without_counting(fork: Fork) -> Fork:
    def wrong(
        state: State, parents: Array, children: Array, choices: Array, fresh: Array, setup: Setup
    ) -> State:
        after = fork(state, parents, children, choices, fresh, setup)
        taken = jnp.where(children < setup.geometry.slots, fresh, setup.geometry.pages)
        return with_pages(after, counts=state.pages.counts.at[taken].add(1, mode="drop"))

    return wrong


def _fork_sharing_partial(fork: Fork) -> Fork:
    def wrong(
        state: State, parents: Array, children: Array, choices: Array, fresh: Array, setup: Setup
    ) -> State:
        pages = setup.geometry.pages
        none = jnp.full_like(fresh, pages)
        after = fork(state, parents, children, choices, none, setup)
        entry = state.slots.written[parents] // setup.geometry.page_size
        page = state.pages.rows.at[parents, entry].get(mode="fill", fill_value=INVALID)
        held = jnp.where((fresh < pages) & (children < setup.geometry.slots), page, INVALID)
        rows = after.pages.rows.at[children, entry].set(page, mode="drop")
        return with_pages(after, rows=rows, counts=after.pages.counts.at[held].add(1, mode="drop"))

    return wrong


def _fork_with_known_of_parent(fork: Fork) -> Fork:
    def wrong(
        state: State, parents: Array, children: Array, choices: Array, fresh: Array, setup: Setup
    ) -> State:
        after = fork(state, parents, children, choices, fresh, setup)
        known = jnp.minimum(state.slots.known[parents] + 1, setup.geometry.max_len)
        return with_slots(after, known=after.slots.known.at[children].set(known, mode="drop"))

    return wrong


def _fork_copying_one_layer(fork: Fork) -> Fork:
    def wrong(
        state: State, parents: Array, children: Array, choices: Array, fresh: Array, setup: Setup
    ) -> State:
        after = fork(state, parents, children, choices, fresh, setup)
        return with_pages(after, cache=(*after.pages.cache[:1], *state.pages.cache[1:]))

    return wrong


def _copy_nothing(_copy_page: CopyPage) -> CopyPage:
    return lambda kv_pages, _source, _destination: kv_pages


def _copy_keys_only(copy_page: CopyPage) -> CopyPage:
    def wrong(kv_pages: Array, source: ArrayLike, destination: ArrayLike) -> Array:
        copied = copy_page(kv_pages, source, destination)
        return copied.at[:, :, 1::2].set(kv_pages[:, :, 1::2])

    return wrong


def _release_twice(release: Release) -> Release:
    def wrong(state: State, slots: Array, geometry: Geometry) -> State:
        after = release(state, slots, geometry)
        lost = state.pages.counts - after.pages.counts
        return with_pages(after, counts=jnp.maximum(after.pages.counts - lost, 0))

    return wrong


def _release_empty_entries_too(release: Release) -> Release:
    def wrong(state: State, slots: Array, geometry: Geometry) -> State:
        after = release(state, slots, geometry)
        rows = state.pages.rows.at[slots].get(mode="fill", fill_value=0)
        return with_pages(after, counts=after.pages.counts.at[0].add(-jnp.sum(rows == INVALID)))

    return wrong


def _release_by_owner(release: Release) -> Release:
    def wrong(state: State, slots: Array, geometry: Geometry) -> State:
        after = release(state, slots, geometry)
        number = jnp.arange(geometry.slots)[:, None]
        rows = jnp.where(state.slots.used[:, None], state.pages.rows, INVALID)
        owner = jnp.full((geometry.pages,), INVALID).at[rows].min(number, mode="drop")
        gone = jnp.zeros((geometry.slots,), bool).at[slots].set(True, mode="drop")
        freed = gone.at[owner].get(mode="fill", fill_value=False)
        return with_pages(after, counts=jnp.where(freed, 0, after.pages.counts))

    return wrong


def _one_key_for_all_choices(draw_of: DrawOf) -> DrawOf:
    return lambda seeds, choices, positions, temperatures: draw_of(
        seeds, choices * 0, positions, temperatures
    )


PLANTS: Final = (
    Plant(
        id="RC1",
        thread="https://github.com/vllm-project/vllm/issues/42571",
        mechanism="a release lowers counts twice, and a clamp at zero hides it",
        clause="UAF",
        patches=(patch(commit.release, _release_twice),),
    ),
    Plant(
        id="RC1b",
        thread="https://github.com/vllm-project/vllm/pull/42612",
        mechanism="the empty entries of a row are released as if they were page 0",
        clause="CONS",
        patches=(patch(commit.release, _release_empty_entries_too),),
    ),
    Plant(
        id="RC2",
        thread="https://github.com/apache/tvm/pull/16666",
        mechanism="a clone does not raise the counts of the pages it shares",
        clause="RC",
        patches=(patch(commit.fork, _fork_without_counting),),
    ),
    Plant(
        id="CW1",
        thread="https://github.com/marin-community/levanter/pull/1268",
        mechanism="a clone takes over a length that has already been advanced",
        clause="ALONE",
        patches=(patch(commit.fork, _fork_with_known_of_parent),),
    ),
    Plant(
        id="CW3",
        thread="https://github.com/NVIDIA/TensorRT-LLM/pull/4943",
        mechanism="only K of a partial page is copied",
        clause="CONTENT",
        patches=(patch(paged.copy_page, _copy_keys_only),),
    ),
    Plant(
        id="CW3b",
        thread="https://github.com/NVIDIA/TensorRT-LLM/pull/4943",
        mechanism="only the first layer of a partial page is copied",
        clause="CONTENT",
        patches=(patch(commit.fork, _fork_copying_one_layer),),
    ),
    Plant(
        id="CW4",
        thread="https://github.com/NVIDIA/TensorRT-LLM/pull/12306",
        mechanism="a partial last page is shared instead of copied",
        clause="SHARE",
        patches=(patch(commit.fork, _fork_sharing_partial),),
    ),
    Plant(
        id="CW5",
        thread="https://github.com/sgl-project/sglang/pull/7725",
        mechanism="a clone gets a fresh last page and nothing is copied into it",
        clause="CONTENT",
        patches=(patch(paged.copy_page, _copy_nothing),),
    ),
    Plant(
        id="CW6",
        thread="https://github.com/apache/tvm/pull/17045",
        mechanism="a parent that goes before its clone takes the shared pages along",
        clause="UAF",
        patches=(patch(commit.release, _release_by_owner),),
    ),
    Plant(
        id="SA1",
        thread="https://github.com/marin-community/levanter/pull/1268",
        mechanism="all choices of a request draw with the key of the first",
        clause="ALONE",
        patches=(patch(integer.draw_of, _one_key_for_all_choices),),
    ),
)
"""In the order of the report."""
