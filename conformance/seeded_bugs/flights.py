"""Plants in steps in flight."""

from collections.abc import Callable
from typing import Final

import jax.numpy as jnp
from jax import Array

from conformance.seeded_bugs import Plant, patch
from impl import commit, entries
from impl.models.protocol import Weights
from impl.setup import Setup
from impl.state import Pages, State, flights, pages
from impl.state.flights import Flights
from impl.state.index import forgotten
from impl.steps.answer import Answer

Entry = Callable[[Setup, Weights, State], Answer]
OfOne = Callable[[Setup, Weights, State, Array], Answer]
DropIndex = Callable[[State, Setup], State]
InUse = Callable[[Pages], Array]
Held = Callable[[Flights], Array]


def _still_current(ends: OfOne) -> OfOne:
    """The sequence ends, and steps in flight go on with its slot."""

    def wrong(setup: Setup, weights: Weights, state: State, given: Array) -> Answer:
        after, status, result = ends(setup, weights, state, given)
        return after._replace(flights=state.flights), status, result

    return wrong


def _map_of_another_step(deliver: Entry) -> Entry:
    def wrong(setup: Setup, weights: Weights, state: State) -> Answer:
        held = state.flights
        newest = jnp.maximum(held.filled - 1, 0)
        mixed = {
            name: getattr(held, name).at[0].set(getattr(held, name)[newest])
            for name in ("first", "lens")
        }
        return deliver(setup, weights, state._replace(flights=held._replace(**mixed)))

    return wrong


def _slot_not_held(_held: Held) -> Held:
    return lambda held: jnp.zeros((held.lens.shape[1],), jnp.int32)


def _pages_not_held(_in_use: InUse) -> InUse:
    return lambda held: held.counts


def _final_when_written(retire: Entry) -> Entry:
    def wrong(setup: Setup, weights: Weights, state: State) -> Answer:
        after, status, result = retire(setup, weights, state)
        held = after.slots
        return after._replace(slots=held._replace(committed=held.written)), status, result

    return wrong


def _every_chunk_is_the_last(dispatch: OfOne) -> OfOne:
    def wrong(setup: Setup, weights: Weights, state: State, chunks: Array) -> Answer:
        after, status, result = dispatch(setup, weights, state, chunks)
        drawing = after.flights._replace(draws=after.flights.lens > 0)
        return after._replace(flights=drawing), status, result

    return wrong


def _in_flight_not_stale(_drop_index: DropIndex) -> DropIndex:
    def wrong(state: State, setup: Setup) -> State:
        held = state.slots
        stale = held.stale | held.used & (held.written > 0)
        left = forgotten(state.indexed, setup)
        return state._replace(indexed=left, slots=held._replace(stale=stale))

    return wrong


PLANTS: Final = (
    Plant(
        id="QS2",
        thread="https://github.com/vllm-project/vllm/pull/48245",
        mechanism="a preemption leaves its slots in the steps in flight, which go on with them",
        clause="SNAP",
        first_sight="caught",
        patches=(patch(entries.preempt, _still_current),),
        blind=frozenset({"refine"}),  # no alphabet preempts beside a step in flight
    ),
    Plant(
        id="IF5",
        thread="https://github.com/wtdcode/vllm-backport/pull/63",
        mechanism="a delivery has the positions of the newest step in flight, not of its own",
        clause="SNAP",
        first_sight="caught",
        patches=(patch(entries.deliver, _map_of_another_step),),
    ),
    Plant(
        id="IF7",
        thread="https://github.com/vllm-project/vllm/issues/42492",
        mechanism="a late outcome is applied to a slot by its number, though that was freed",
        clause="SNAP",
        first_sight="caught",
        patches=(patch(entries.free, _still_current),),
    ),
    Plant(
        id="IF8",
        thread="https://github.com/sgl-project/sglang/pull/18803",
        mechanism="a slot that a step in flight still has is given to a new sequence",
        clause="FENCE",
        first_sight="caught",
        patches=(patch(flights.held, _slot_not_held),),
    ),
    Plant(
        id="IF8b",
        thread="https://github.com/sgl-project/sglang/pull/18803",
        mechanism="a page that a step in flight still names is taken for another sequence",
        clause="HELD",
        first_sight="caught",
        patches=(patch(pages.in_use, _pages_not_held),),
    ),
    Plant(
        id="TX2",
        thread="https://github.com/vllm-project/vllm/pull/46278",
        mechanism="cells are final as soon as a step has written them, before its delivery",
        clause="SETTLED",
        first_sight="caught",
        patches=(patch(entries.retire, _final_when_written),),
    ),
    Plant(
        id="CP2b",
        thread="https://github.com/sgl-project/sglang-jax/pull/971",
        mechanism="a step in flight takes each of its chunks for the last one of the prompt",
        clause="SNAP",
        first_sight="caught",
        patches=(patch(entries.dispatch, _every_chunk_is_the_last),),
    ),
    Plant(
        id="PX8b",
        thread="https://github.com/vllm-project/vllm/issues/42125",
        mechanism="what a step in flight computes with the old weights counts as of the new ones",
        clause="PC",
        first_sight="caught",
        patches=(patch(commit.drop_index, _in_flight_not_stale),),
    ),
)
"""In the order of the report."""
