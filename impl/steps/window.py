"""The step of the window: release the pages of one slot that no query can see any more.

Source: docs/sources.md, "Windows".
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32

from impl.commit import slide
from impl.models.protocol import Weights
from impl.plan import require_used
from impl.setup import Setup
from impl.state import State
from impl.status import accepted, first_refusal, target
from impl.steps.answer import Answer, nothing
from spec.vocabulary import Reason


def release(
    setup: Setup,
    weights: Weights,
    state: State,
    slot: Int32[Array, ""],
    before: Int32[Array, ""],
) -> Answer:
    """Release the whole pages of a slot that lie before position `before`."""
    most = first_visible(setup, state, slot)
    status = first_refusal(
        *require_used(state.slots, slot, setup.geometry),
        (before > most, Reason.WINDOW, before, most),
    )
    at = target(accepted(status), slot, setup.geometry.slots)
    return slide(state, at, before, setup.geometry), status, nothing()


def first_visible(setup: Setup, state: State, slot: Int32[Array, ""]) -> Int32[Array, ""]:
    """The first position of a slot that a query to come sees; 0 without a window.

    The next query is at the first cell that is not committed, also after a truncation.
    """
    if setup.geometry.window is None:
        return jnp.zeros((), jnp.int32)
    return jnp.maximum(state.slots.committed[slot] - setup.geometry.window + 1, 0)
