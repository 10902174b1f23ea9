"""Plants in preemption by recomputation."""

from collections.abc import Callable
from typing import Final

import jax.numpy as jnp
from jax import Array

from conformance.seeded_bugs import Plant, patch
from impl import entries
from impl.models.protocol import Weights
from impl.setup import Setup
from impl.state import State, queue
from impl.status import accepted
from impl.steps.answer import Answer

Preempt = Callable[[Setup, Weights, State, Array], Answer]
Replay = Callable[[Setup, Weights, State, Array, Array, Array], Answer]


def _preempt_leaves_queue(preempt: Preempt) -> Preempt:
    def wrong(setup: Setup, weights: Weights, state: State, request: Array) -> Answer:
        after, status, result = preempt(setup, weights, state, request)
        return after._replace(queue=state.queue), status, result

    return wrong


def _preempt_finished_too(preempt: Preempt) -> Preempt:
    def wrong(setup: Setup, weights: Weights, state: State, request: Array) -> Answer:
        held = state.slots
        ended = jnp.where(held.requests == request, 0, held.finished)
        unfinished = state._replace(slots=held._replace(finished=ended))
        after, status, result = preempt(setup, weights, unfinished, request)
        kept = jnp.where(after.slots.used, held.finished, 0)
        return after._replace(slots=after.slots._replace(finished=kept)), status, result

    return wrong


def _replay_draws_again(replay: Replay) -> Replay:
    def wrong(
        setup: Setup, weights: Weights, state: State, slot: Array, tokens: Array, count: Array
    ) -> Answer:
        after, status, result = replay(setup, weights, state, slot, tokens, count)
        last, position = tokens[count - 1], after.slots.known[slot] - 1
        waiting = queue.push(
            after.queue, slot[None], last[None], position[None], accepted(status)[None]
        )
        return after._replace(queue=waiting), status, result

    return wrong


PLANTS: Final = (
    Plant(
        id="QS5",
        thread="https://github.com/vllm-project/vllm-omni/pull/6053",
        mechanism="a preemption leaves the queued tokens of the slots that it frees",
        clause="Q",
        first_sight="caught",
        patches=(patch(entries.preempt, _preempt_leaves_queue),),
    ),
    Plant(
        id="QS6",
        thread="https://github.com/vllm-project/vllm/issues/16832",
        mechanism="a preemption frees the choices that have finished as well",
        clause="DET",
        first_sight="caught",
        patches=(patch(entries.preempt, _preempt_finished_too),),
    ),
    Plant(
        id="QS7",
        thread="https://github.com/vllm-project/vllm/pull/48245",
        mechanism="the last token that is replayed waits to be decoded once more",
        clause="Q",
        first_sight="caught",
        patches=(patch(entries.replay, _replay_draws_again),),
    ),
)
"""In the order of the report."""
