"""Plants in the reading of prompts in chunks. Rows CP of the catalogue of real bugs."""

from collections.abc import Callable, Sequence
from typing import Final

import jax.numpy as jnp
from jax import Array

from conformance.seeded_bugs import Plant, patch
from impl import arguments
from impl.arguments import Ints
from impl.plan import Batch
from impl.setup import Setup
from impl.state import Slots, State
from impl.steps.round import _draws, tokens_of_round, unread
from spec.vocabulary import Refused

Chunks = Callable[[Setup, Sequence[tuple[int, int]]], Ints]
Draws = Callable[[Slots, Batch], Array]
TokensOfRound = Callable[[State, Array, int], Array]
Unread = Callable[[State], Array]


def _cells_of_index(state: State) -> Array:
    """How many cells each row begins with that are of pages of the index, as after a hit."""
    found = state.indexed.holds.at[state.pages.rows].get(mode="fill", fill_value=False)
    entries = jnp.sum(jnp.cumprod(found, axis=1, dtype=jnp.int32), axis=1, dtype=jnp.int32)
    return entries * state.indexed.tokens.shape[1]


def _unread_before_hit(unread: Unread) -> Unread:
    def wrong(state: State) -> Array:
        return unread(state) + _cells_of_index(state)

    return wrong


def _draws_after_second_chunk(draws: Draws) -> Draws:
    def wrong(slots: Slots, batch: Batch) -> Array:
        at = batch.slot_ids
        reading = (slots.known[at] == slots.prompt_lens[at]) & (slots.written[at] > 0)
        return draws(slots, batch) | (batch.q_lens > 0) & reading

    return wrong


def _chunks_without_tokens(chunks: Chunks) -> Chunks:
    def wrong(setup: Setup, given: Sequence[tuple[int, int]]) -> Ints:
        try:
            return chunks(setup, given)
        except Refused:
            return chunks(setup, tuple(one for one in given if one[1] != 0))

    return wrong


def _tokens_less_hit(tokens_of_round: TokensOfRound) -> TokensOfRound:
    def wrong(state: State, counts: Array, width: int) -> Array:
        reused = _cells_of_index(state)
        first = state.slots.allocated == reused
        return tokens_of_round(
            state, jnp.where(first, jnp.maximum(counts - reused, 0), counts), width
        )

    return wrong


PLANTS: Final = (
    Plant(
        id="CP1",
        thread="https://github.com/ROCm/ATOM/pull/222",
        mechanism="what is left of a prompt is counted before its hit: a chunk runs past the end",
        clause="Q",
        first_sight="missed",
        patches=(patch(unread, _unread_before_hit),),
    ),
    Plant(
        id="CP2",
        thread="https://github.com/sgl-project/sglang-jax/pull/971",
        mechanism="the second chunk of a prompt is taken for the last one, and draws",
        clause="Q",
        first_sight="caught",
        patches=(patch(_draws, _draws_after_second_chunk),),
    ),
    Plant(
        id="CP3",
        thread="https://github.com/lablup/mlxcel/pull/183",
        mechanism="a chunk without a token is let in: its round goes on with nothing of it",
        clause="Q",
        first_sight="caught",
        patches=(patch(arguments.chunks, _chunks_without_tokens),),
    ),
    Plant(
        id="CP6",
        thread="https://github.com/NVIDIA/TensorRT-LLM/pull/12682",
        mechanism="the cost of a chunk is taken less the cells of its hit: a round has more tokens",
        clause="KNOB",
        first_sight="missed",
        patches=(patch(tokens_of_round, _tokens_less_hit),),
    ),
)
