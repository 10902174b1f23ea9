"""Reset: logical, and physical, which also zeroes the pool."""

from impl.cache.paged import zero
from impl.models.protocol import Weights
from impl.setup import Setup
from impl.state import State, blank_metadata
from impl.steps.answer import Answer, done, nothing


def reset_logical(setup: Setup, weights: Weights, state: State) -> Answer:
    """Forget everything; touch no K or V byte."""
    return blank_metadata(setup, state.pages.cache), done(), nothing()


def reset_physical(setup: Setup, weights: Weights, state: State) -> Answer:
    """Forget everything and zero the pool."""
    cleared = tuple(zero(pool) for pool in state.pages.cache)
    return blank_metadata(setup, cleared), done(), nothing()
