"""The steps in flight: those that are dispatched and not delivered, oldest first.

A step has the positions of each of its slots, and the row of each as it was at the dispatch. It
holds the slot and these pages until it is delivered, also if the sequence ends before; then the
step has no positions of it any more. `pages.held` counts the steps that name each page. Source:
docs/sources.md, "Steps in flight".
"""

from typing import Final, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int32

from impl.setup import Setup
from impl.status import target
from spec.vocabulary import INVALID, LAG

MOST: Final = LAG + 1
"""The most steps in flight."""


class Flights(NamedTuple):
    """F is the most steps in flight, of which the first `filled` are there; the others are blank.

    retired: whether the device has done a step. holds: whether it has, or had, a part for a slot.
    first, lens: the positions of the part; lens is 0 if there is none, or if the slot no longer
    has the sequence of the step. draws: whether the part draws a token. rows: the row of each slot
    at the dispatch, INVALID where no page is named.
    """

    filled: Int32[Array, ""]
    retired: Bool[Array, " F"]
    holds: Bool[Array, "F S"]
    first: Int32[Array, "F S"]
    lens: Int32[Array, "F S"]
    draws: Bool[Array, "F S"]
    rows: Int32[Array, "F S M"]


class Step(NamedTuple):
    """One step: the positions of each slot, whether it draws, and its row; fields as in Flights."""

    first: Int32[Array, " S"]
    lens: Int32[Array, " S"]
    draws: Bool[Array, " S"]
    rows: Int32[Array, "S M"]


def make(setup: Setup) -> Flights:
    """No step in flight."""
    slots, width = setup.geometry.slots, setup.geometry.pages_per_seq
    return Flights(
        filled=jnp.zeros((), jnp.int32),
        retired=jnp.zeros((MOST,), jnp.bool_),
        holds=jnp.zeros((MOST, slots), jnp.bool_),
        first=jnp.zeros((MOST, slots), jnp.int32),
        lens=jnp.zeros((MOST, slots), jnp.int32),
        draws=jnp.zeros((MOST, slots), jnp.bool_),
        rows=jnp.full((MOST, slots, width), INVALID, jnp.int32),
    )


def steps_of(flights: Flights) -> Int32[Array, " S"]:
    """How many steps have positions of the sequence in each slot."""
    return jnp.sum(flights.lens > 0, axis=0, dtype=jnp.int32)


def drawn(flights: Flights) -> Int32[Array, " S"]:
    """How many tokens the steps draw for each slot."""
    return jnp.sum(flights.draws, axis=0, dtype=jnp.int32)


def promised(flights: Flights) -> Int32[Array, ""]:
    """How many slots have a step that draws."""
    return jnp.sum(drawn(flights) > 0, dtype=jnp.int32)


def held(flights: Flights) -> Int32[Array, " S"]:
    """How many steps hold each slot."""
    return jnp.sum(flights.holds, axis=0, dtype=jnp.int32)


def step_at(flights: Flights, index: Int32[Array, ""]) -> Step:
    """The step with this index; past the end, a step without a part."""
    return Step(
        first=flights.first.at[index].get(mode="fill", fill_value=0),
        lens=flights.lens.at[index].get(mode="fill", fill_value=0),
        draws=flights.draws.at[index].get(mode="fill", fill_value=False),
        rows=flights.rows.at[index].get(mode="fill", fill_value=INVALID),
    )


def push(flights: Flights, step: Step, ok: Bool[Array, ""]) -> Flights:
    """Append a step if `ok`; the caller has checked the room."""
    at = target(ok, flights.filled, MOST)
    return Flights(
        filled=flights.filled + ok,
        retired=flights.retired,
        holds=flights.holds.at[at].set(step.lens > 0, mode="drop"),
        first=flights.first.at[at].set(step.first, mode="drop"),
        lens=flights.lens.at[at].set(step.lens, mode="drop"),
        draws=flights.draws.at[at].set(step.draws, mode="drop"),
        rows=flights.rows.at[at].set(step.rows, mode="drop"),
    )


def next_to_retire(flights: Flights) -> Int32[Array, ""]:
    """The index of the oldest step that has not retired, `filled` if there is none."""
    return jnp.sum(flights.retired, dtype=jnp.int32)


def retire(flights: Flights, ok: Bool[Array, ""]) -> Flights:
    """Mark the oldest step that has not retired, if `ok`."""
    at = target(ok, next_to_retire(flights), MOST)
    return flights._replace(retired=flights.retired | (jnp.arange(MOST) == at))


def pop(flights: Flights, ok: Bool[Array, ""]) -> Flights:
    """Drop the oldest step if `ok`."""
    later = jnp.arange(MOST) + ok
    return Flights(
        filled=flights.filled - ok,
        retired=flights.retired.at[later].get(mode="fill", fill_value=False),
        holds=flights.holds.at[later].get(mode="fill", fill_value=False),
        first=flights.first.at[later].get(mode="fill", fill_value=0),
        lens=flights.lens.at[later].get(mode="fill", fill_value=0),
        draws=flights.draws.at[later].get(mode="fill", fill_value=False),
        rows=flights.rows.at[later].get(mode="fill", fill_value=INVALID),
    )


def abandon(flights: Flights, slots: Int32[Array, " N"]) -> Flights:
    """Let the steps only hold N slots and their pages; INVALID, or one past the table, is none."""
    at = target(slots != INVALID, slots, flights.lens.shape[1])
    lens = flights.lens.at[:, at].set(0, mode="drop")
    return flights._replace(
        first=jnp.where(lens > 0, flights.first, 0), lens=lens, draws=flights.draws & (lens > 0)
    )
