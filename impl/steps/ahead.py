"""Steps for a host that does not wait: each is enqueued before the ones before it are known.

`before` is the report of the call before, which may not be computed yet. If that call was refused,
this one is refused for the same reason, since it was planned on what that one would have done. So
the state stays as it was before the first of them. Source: docs/sources.md, "Steps in flight".
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32

from impl import commit
from impl.models.protocol import Weights
from impl.plan import choice_taken, require_not_held, require_unused
from impl.setup import Setup
from impl.state import Params, State, flights
from impl.state import slots as table
from impl.status import accepted, first_refusal, target
from impl.steps.answer import Answer
from impl.steps.decode import finish_reasons
from impl.steps.flights import dispatch, retire
from spec.vocabulary import Reason


def begin(
    setup: Setup,
    weights: Weights,
    state: State,
    before: Int32[Array, " R"],
    slot: Int32[Array, ""],
    tokens: Int32[Array, " L"],
    length: Int32[Array, ""],
    params: Params,
) -> Answer:
    """Reserve a slot and give it a prompt, as one action. Result: as of `launch`, zeros.

    tokens, length: the prompt, padded, and its number of tokens. params: those of 1 request.
    """
    geometry, held = setup.geometry, state.slots
    whole, request = length + params.max_new[0], params.requests[0]
    status = first_refusal(
        *require_unused(held, slot, geometry),
        require_not_held(state, slot),
        (whole > geometry.max_len, Reason.TOO_LONG, whole, geometry.max_len),
        (choice_taken(state, request, jnp.int32(0)), Reason.CHOICE_TAKEN, request, 0),
    )
    status = _behind(before, status)
    at = target(accepted(status), slot, geometry.slots)[None]
    state = commit.begin(state, at, jnp.zeros((1,), jnp.int32), length[None], params)
    state = state._replace(slots=table.put(state.slots, at, tokens=tokens))
    return state, status, jnp.zeros((geometry.slots,), jnp.int32)


def launch(
    setup: Setup,
    weights: Weights,
    state: State,
    before: Int32[Array, " R"],
    chunks: Int32[Array, " S"],
) -> Answer:
    """Dispatch a step with the next `chunks` tokens of each slot, and retire it.

    Result: for each slot, why the token that the step drew for it ends its sequence, once that is
    delivered; 0 if it does not. See FINISH_CODES. It means nothing for a slot whose sequence an
    earlier step has ended.
    """
    opens = state.flights.filled - flights.next_to_retire(state.flights)
    status = _behind(before, first_refusal((opens > 0, Reason.IN_FLIGHT, opens, 0)))
    state, own, _ = dispatch(setup, weights, state, jnp.where(accepted(status), chunks, 0))
    status = _behind(status, own)
    last = state.flights.filled - 1
    state, _, _ = retire(setup, weights, state)  # refused, if the dispatch was
    draws = accepted(status) & flights.step_at(state.flights, last).draws
    told = state.slots._replace(known=state.slots.known + state.slots.proposed)
    slots = jnp.arange(setup.geometry.slots, dtype=jnp.int32)
    return state, status, jnp.where(draws, finish_reasons(setup, told, slots), 0)


def _behind(before: Int32[Array, " R"], status: Int32[Array, "3"]) -> Int32[Array, "3"]:
    """The status of a call behind another one: that of the other, if it was refused."""
    return jnp.where(before[0] != 0, before[:3], status)
