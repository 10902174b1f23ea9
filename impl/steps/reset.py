"""Reset: logical, and physical, which also zeroes the pool."""

import jax.numpy as jnp

from impl.cache.paged import zero
from impl.models.protocol import Cache, Weights
from impl.setup import Setup
from impl.state import State, blank_metadata, flights
from impl.steps.answer import Answer, done, nothing


def reset_logical(setup: Setup, weights: Weights, state: State) -> Answer:
    """Forget everything; touch no K or V byte."""
    return _forgotten(setup, state, state.pages.cache), done(), nothing()


def reset_physical(setup: Setup, weights: Weights, state: State) -> Answer:
    """Forget everything and zero the pool."""
    cleared = tuple(zero(pool) for pool in state.pages.cache)
    return _forgotten(setup, state, cleared), done(), nothing()


def _forgotten(setup: Setup, state: State, cache: Cache) -> State:
    """The initial state, in which steps in flight hold the slots and pages that they held."""
    blank = blank_metadata(setup, cache)
    every = jnp.arange(setup.geometry.slots, dtype=jnp.int32)
    return blank._replace(
        pages=blank.pages._replace(held=state.pages.held),
        flights=flights.abandon(state.flights, every),
    )
