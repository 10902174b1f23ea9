"""Plants in the queue, the generation loop, finishing and admission.

Rows QS of the catalogue of real bugs, and what its threads say of loops, limits and stops.
"""

from typing import Any, Final

import jax.numpy as jnp
from attrs import evolve
from jax import lax

import impl.host
import impl.round
from conformance.seeded_bugs import NO_VIEW, Plant
from spec.vocabulary import INVALID, Reason


def _pop_one_more(pop: Any) -> Any:
    return lambda state, count: pop(state, jnp.where(count > 0, count + 1, count))


def _limit_off_by_one(reasons: Any) -> Any:
    def wrong(setup: Any, state: Any, slots: Any) -> Any:
        return reasons(setup, state._replace(max_new=state.max_new + 1), slots)

    return wrong


def _stop_into_prompt(reasons: Any) -> Any:
    def wrong(setup: Any, state: Any, slots: Any) -> Any:
        right = reasons(setup, state, slots)
        shifted = state._replace(
            prompt_lens=jnp.zeros_like(state.prompt_lens),
            max_new=jnp.full_like(state.max_new, INVALID),
        )
        return jnp.where(right == 0, reasons(setup, shifted, slots), right)

    return wrong


def _admit_without_reserving(room_refusals: Any) -> Any:
    def wrong(state: Any, requests: Any, setup: Any, stats: Any) -> Any:
        nobody = impl.host.HostState(waiting=state.waiting)
        for refusal in room_refusals(nobody, requests, setup, stats):
            if refusal.reason is not Reason.OUT_OF_PAGES:
                yield refusal

    return wrong


def _admit_one_page_more(room_refusals: Any) -> Any:
    def wrong(state: Any, requests: Any, setup: Any, stats: Any) -> Any:
        larger = evolve(setup.geometry, pages=setup.geometry.pages + 1)
        return room_refusals(state, requests, evolve(setup, geometry=larger), stats)

    return wrong


def _submit_what_never_fits(submit_refusals: Any) -> Any:
    def wrong(state: Any, request: Any, setup: Any, stats: Any) -> Any:
        for refusal in submit_refusals(state, request, setup, stats):
            if refusal.reason is not Reason.NEVER_FITS:
                yield refusal

    return wrong


def _wait_out_of_turn(chosen: Any) -> Any:
    def wrong(state: Any, setup: Any, stats: Any) -> Any:
        shortest = sorted(state.waiting, key=lambda request: len(request.prompt))
        return chosen(impl.host.HostState(tuple(shortest), state.admitted), setup, stats)

    return wrong


def _loop_for_ever(loop: Any) -> Any:
    def wrong(setup: Any, weights: Any, state: Any) -> Any:
        def goes_on(carry: Any) -> Any:
            return carry[1] < setup.limits.rounds

        def body(carry: Any) -> Any:
            after, status = impl.round.decode_round(setup, weights, carry[0])
            return after, carry[1] + (status[0] == 0)

        return loop(setup, weights, lax.while_loop(goes_on, body, (state, jnp.int32(0)))[0])

    return wrong


PLANTS: Final = (
    Plant(
        id="QU1",
        thread="https://github.com/marin-community/levanter/pull/1169",
        mechanism="packing drops one queued token more than it takes",
        clause="Q",
        patches=(("impl.queue", "pop", _pop_one_more),),
    ),
    Plant(
        id="QS1",
        thread="https://github.com/marin-community/levanter/issues/1178",
        mechanism="the generation loop counts rounds that did something, and never ends",
        clause="PROG",
        patches=(("impl.round", "loop", _loop_for_ever),),
        blind=NO_VIEW,
    ),
    Plant(
        id="QS1b",
        thread="https://github.com/marin-community/levanter/pull/1264",
        mechanism="a request that can never run is taken in, and waits for ever",
        clause="ATOMIC",
        patches=(("impl.host", "_submit_refusals", _submit_what_never_fits),),
    ),
    Plant(
        id="FI1",
        thread="https://github.com/marin-community/levanter/pull/1268",
        mechanism="a sequence generates one token more than its limit",
        clause="OUT",
        patches=(("impl.decode", "finish_reasons", _limit_off_by_one),),
    ),
    Plant(
        id="FI2",
        thread="https://github.com/marin-community/levanter/issues/1178",
        mechanism="a stop sequence is matched against the prompt too",
        clause="OUT",
        patches=(("impl.decode", "finish_reasons", _stop_into_prompt),),
    ),
    Plant(
        id="QS4",
        thread="https://github.com/vllm-project/vllm/pull/47272",
        mechanism="admission does not reserve what an admitted request may still need",
        clause="ATOMIC",
        patches=(("impl.host", "room_refusals", _admit_without_reserving),),
    ),
    Plant(
        id="QS4b",
        thread="https://github.com/vllm-project/vllm/pull/39866",
        mechanism="admission counts one page more than requests can have",
        clause="ATOMIC",
        patches=(("impl.host", "room_refusals", _admit_one_page_more),),
    ),
    Plant(
        id="AD1",
        thread="https://github.com/marin-community/levanter/issues/1178",
        mechanism="the shortest waiting prompt is admitted first",
        clause="ALONE",
        patches=tuple(
            ("impl.host", name, _wait_out_of_turn) for name in ("admissible", "_admit_refusals")
        ),
    ),
)
"""In the order of the report."""
