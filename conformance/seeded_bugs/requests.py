"""Plants in the queue, the generation loop, finishing and admission.

Rows QS of the catalogue of real bugs, and bugs of loops, limits and stops from its threads.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import jax.numpy as jnp
from attrs import evolve
from jax import Array, lax
from jax.typing import ArrayLike

from conformance.seeded_bugs import NO_VIEW, Plant, patch
from impl import host
from impl.engine import Stats
from impl.host import HostState, _admit_refusals, _submit_refusals
from impl.models.protocol import Weights
from impl.setup import Setup
from impl.state import Queue, Slots, State, queue
from impl.steps import decode
from impl.steps import round as rounds
from spec.vocabulary import INVALID, Reason, Refusal, Request

T = TypeVar("T")

FinishReasons = Callable[[Setup, Slots, Array], Array]
Loop = Callable[[Setup, Weights, State], tuple[State, Array]]
Pop = Callable[[Queue, ArrayLike], Queue]
RoomRefusals = Callable[[HostState, Sequence[Request], Setup, Stats], Iterator[Refusal]]
SubmitRefusals = Callable[[HostState, Request, Setup, Stats], Iterator[Refusal]]


def _pop_one_more(pop: Pop) -> Pop:
    def wrong(held: Queue, count: ArrayLike) -> Queue:
        taken = jnp.asarray(count)
        return pop(held, jnp.where(taken > 0, taken + 1, taken))

    return wrong


def _limit_off_by_one(reasons: FinishReasons) -> FinishReasons:
    def wrong(setup: Setup, held: Slots, slots: Array) -> Array:
        return reasons(setup, held._replace(max_new=held.max_new + 1), slots)

    return wrong


def _stop_into_prompt(reasons: FinishReasons) -> FinishReasons:
    def wrong(setup: Setup, held: Slots, slots: Array) -> Array:
        right = reasons(setup, held, slots)
        shifted = held._replace(
            prompt_lens=jnp.zeros_like(held.prompt_lens),
            max_new=jnp.full_like(held.max_new, INVALID),
        )
        return jnp.where(right == 0, reasons(setup, shifted, slots), right)

    return wrong


def _admit_without_reserving(room_refusals: RoomRefusals) -> RoomRefusals:
    def wrong(
        state: HostState, requests: Sequence[Request], setup: Setup, stats: Stats
    ) -> Iterator[Refusal]:
        nobody = HostState(waiting=state.waiting)
        for refusal in room_refusals(nobody, requests, setup, stats):
            if refusal.reason is not Reason.OUT_OF_PAGES:
                yield refusal

    return wrong


def _admit_one_page_more(room_refusals: RoomRefusals) -> RoomRefusals:
    def wrong(
        state: HostState, requests: Sequence[Request], setup: Setup, stats: Stats
    ) -> Iterator[Refusal]:
        larger = evolve(setup.geometry, pages=setup.geometry.pages + 1)
        return room_refusals(state, requests, evolve(setup, geometry=larger), stats)

    return wrong


def _submit_what_never_fits(submit_refusals: SubmitRefusals) -> SubmitRefusals:
    def wrong(state: HostState, request: Request, setup: Setup, stats: Stats) -> Iterator[Refusal]:
        for refusal in submit_refusals(state, request, setup, stats):
            if refusal.reason is not Reason.NEVER_FITS:
                yield refusal

    return wrong


def _wait_out_of_turn(
    chosen: Callable[[HostState, Setup, Stats], T],
) -> Callable[[HostState, Setup, Stats], T]:
    def wrong(state: HostState, setup: Setup, stats: Stats) -> T:
        shortest = sorted(state.waiting, key=lambda request: len(request.prompt))
        return chosen(HostState(tuple(shortest), state.admitted), setup, stats)

    return wrong


def _loop_for_ever(loop: Loop) -> Loop:
    def wrong(setup: Setup, weights: Weights, state: State) -> tuple[State, Array]:
        def goes_on(carry: tuple[State, Array]) -> Array:
            return carry[1] < setup.limits.rounds

        def body(carry: tuple[State, Array]) -> tuple[State, Array]:
            after, status = rounds.decode_round(setup, weights, carry[0])
            return after, carry[1] + (status[0] == 0)

        return loop(setup, weights, lax.while_loop(goes_on, body, (state, jnp.int32(0)))[0])

    return wrong


PLANTS: Final = (
    Plant(
        id="QU1",
        thread="https://github.com/marin-community/levanter/pull/1169",
        mechanism="packing drops one queued token more than it takes",
        clause="Q",
        patches=(patch(queue.pop, _pop_one_more),),
    ),
    Plant(
        id="QS1",
        thread="https://github.com/marin-community/levanter/issues/1178",
        mechanism="the generation loop counts rounds that did something, and never ends",
        clause="PROG",
        patches=(patch(rounds.loop, _loop_for_ever),),
        blind=NO_VIEW,
    ),
    Plant(
        id="QS1b",
        thread="https://github.com/marin-community/levanter/pull/1264",
        mechanism="a request that can never run is taken in, and waits for ever",
        clause="ATOMIC",
        patches=(patch(_submit_refusals, _submit_what_never_fits),),
    ),
    Plant(
        id="FI1",
        thread="https://github.com/marin-community/levanter/pull/1268",
        mechanism="a sequence generates one token more than its limit",
        clause="OUT",
        patches=(patch(decode.finish_reasons, _limit_off_by_one),),
    ),
    Plant(
        id="FI2",
        thread="https://github.com/marin-community/levanter/issues/1178",
        mechanism="a stop sequence is matched against the prompt too",
        clause="OUT",
        patches=(patch(decode.finish_reasons, _stop_into_prompt),),
    ),
    Plant(
        id="QS4",
        thread="https://github.com/vllm-project/vllm/pull/47272",
        mechanism="admission does not reserve what an admitted request may still need",
        clause="ATOMIC",
        patches=(patch(host.room_refusals, _admit_without_reserving),),
    ),
    Plant(
        id="QS4b",
        thread="https://github.com/vllm-project/vllm/pull/39866",
        mechanism="admission counts one page more than requests can have",
        clause="ATOMIC",
        patches=(patch(host.room_refusals, _admit_one_page_more),),
    ),
    Plant(
        id="AD1",
        thread="https://github.com/marin-community/levanter/issues/1178",
        mechanism="the shortest waiting prompt is admitted first",
        clause="ALONE",
        patches=(
            patch(host.admissible, _wait_out_of_turn),
            patch(_admit_refusals, _wait_out_of_turn),
        ),
    ),
)
"""In the order of the report."""
