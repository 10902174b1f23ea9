"""The queue of tokens that wait to be decoded: parallel arrays, oldest first.

Every operation is one gather or scatter over the whole queue. Source: docs/sources.md, "Token
queue".
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Int32

from impl.setup import Setup
from impl.status import target
from spec.vocabulary import INVALID


class Queue(NamedTuple):
    """One entry per token; entries from `filled` on are meaningless."""

    tokens: Int32[Array, " Q"]
    slots: Int32[Array, " Q"]
    positions: Int32[Array, " Q"]
    filled: Int32[Array, ""]


def make(setup: Setup) -> Queue:
    """An empty queue."""
    size = (setup.limits.queue,)
    return Queue(
        tokens=jnp.zeros(size, jnp.int32),
        slots=jnp.zeros(size, jnp.int32),
        positions=jnp.zeros(size, jnp.int32),
        filled=jnp.zeros((), jnp.int32),
    )


def head(queue: Queue, width: int) -> tuple[Int32[Array, " {width}"], Int32[Array, " {width}"]]:
    """Slots and positions of the `width` oldest tokens; past the end the slot is INVALID."""
    index = jnp.arange(width)
    slots = queue.slots.at[index].get(mode="fill", fill_value=INVALID)
    positions = queue.positions.at[index].get(mode="fill", fill_value=0)
    return jnp.where(index < queue.filled, slots, INVALID), positions


def pop(queue: Queue, count: ArrayLike) -> Queue:
    """Drop the `count` oldest tokens."""
    kept = jnp.arange(queue.slots.shape[0]) >= count
    return _keep(queue, kept)


def push(
    queue: Queue,
    slots: Int32[Array, " N"],
    tokens: Int32[Array, " N"],
    positions: Int32[Array, " N"],
    there: Bool[Array, " N"],
) -> Queue:
    """Append those of N tokens that are `there`, in order; the caller has checked the room."""
    place = queue.filled + jnp.cumsum(there, dtype=jnp.int32) - 1
    place = target(there, place, queue.slots.shape[0])
    return Queue(
        tokens=queue.tokens.at[place].set(tokens, mode="drop"),
        slots=queue.slots.at[place].set(slots, mode="drop"),
        positions=queue.positions.at[place].set(positions, mode="drop"),
        filled=queue.filled + jnp.sum(there, dtype=jnp.int32),
    )


def fork(
    queue: Queue, parent: Int32[Array, ""], child: Int32[Array, ""], ok: Bool[Array, ""]
) -> Queue:
    """Queue for a child copies of its parent's queued tokens, if `ok`."""
    children = jnp.full_like(queue.slots, child)
    return push(queue, children, queue.tokens, queue.positions, pending(queue, parent) & ok)


def purge(queue: Queue, slots: Int32[Array, " N"]) -> Queue:
    """Drop every queued token of these slots; INVALID names none."""
    return _keep(queue, ~jnp.any(queue.slots[:, None] == slots, axis=1))


def within(queue: Queue, first: Int32[Array, " S"], count: Int32[Array, " S"]) -> Bool[Array, " Q"]:
    """Which entries are among the `count` positions of their slot from `first` on."""
    there = jnp.arange(queue.slots.shape[0]) < queue.filled
    past = queue.positions - first.at[queue.slots].get(mode="fill", fill_value=0)
    return there & (past >= 0) & (past < count.at[queue.slots].get(mode="fill", fill_value=0))


def drop(queue: Queue, gone: Bool[Array, " Q"]) -> Queue:
    """Drop some entries."""
    return _keep(queue, ~gone)


def truncate(queue: Queue, slot: Int32[Array, ""], length: Int32[Array, ""]) -> Queue:
    """Drop the queued tokens of a slot from a position on; a slot past the table has none."""
    return _keep(queue, (queue.slots != slot) | (queue.positions < length))


def pending(queue: Queue, slot: Int32[Array, ""]) -> Bool[Array, " Q"]:
    """Which entries belong to a slot."""
    return (queue.slots == slot) & (jnp.arange(queue.slots.shape[0]) < queue.filled)


def lengths(queue: Queue, slots: int) -> Int32[Array, " {slots}"]:
    """How many entries belong to each slot."""
    there = jnp.arange(queue.slots.shape[0]) < queue.filled
    names = jnp.where(there, queue.slots, INVALID)
    return jnp.zeros((slots,), jnp.int32).at[names].add(1, mode="drop")


def _keep(queue: Queue, kept: Bool[Array, " Q"]) -> Queue:
    size = queue.slots.shape[0]
    kept = kept & (jnp.arange(size) < queue.filled)
    place = target(kept, jnp.cumsum(kept, dtype=jnp.int32) - 1, size)

    def moved(array: Int32[Array, " Q"]) -> Int32[Array, " Q"]:
        return jnp.zeros_like(array).at[place].set(array, mode="drop")

    return Queue(
        tokens=moved(queue.tokens),
        slots=moved(queue.slots),
        positions=moved(queue.positions),
        filled=jnp.sum(kept, dtype=jnp.int32),
    )
