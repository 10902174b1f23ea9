"""Refinement of the allocator instance: packed states are injected, moves become calls.

Contents are left out: the model has no pools, every used slot has a prompt of one token, and
allocated cells count as known and written at once. `contents` has the instances with contents.
"""

from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from attrs import evolve, frozen
from jax import Array

from conformance.exploration.packed_states import (
    BATCH_FAULTS,
    NO_PAGE,
    UNUSED,
    Allocator,
    Expansion,
    Move,
    States,
)
from conformance.refinement.names import Names, name_of, renamed, same_step
from conformance.refinement.transition import agrees, refuses, words
from conformance.refinement.vmapped import Kind, Transitions, unsampled
from impl import entries
from impl.engine import compiled
from impl.models.protocol import BatchPlan, Cache
from impl.setup import Setup
from impl.state import State, initial
from impl.state.packing import Packed, pack, unpack
from impl.state.slots import put
from impl.status import accepted, target
from spec.vocabulary import INVALID, Geometry, default_limits

Arguments = tuple[Any, Any, Any]
"""slot i32[], other i32[], offsets i32[T] of the batch's positions from the length, or INVALID."""

ENTRIES: Final = {
    "reserve": "reserve",
    "extend": "allocate",
    "clone": "clone",
    "free": "free",
    **dict.fromkeys(BATCH_FAULTS, "allocate"),
}
"""The entry point of each kind of move."""


@frozen
class NoCells:
    """A model without weights and pools, for an instance without contents."""

    vocabulary = 1

    def weight_shapes(self) -> tuple[()]:
        """No weights."""
        return ()

    def empty_cache(self, geometry: Geometry) -> Cache:  # noqa: ARG002 - the interface has it
        """No pool."""
        return ()

    def decode(self, *_: object, window: int | None) -> tuple[Array, Cache]:
        """Never called: the allocator instance writes nothing."""
        raise NotImplementedError("the allocator instance writes nothing")

    def sample(self, *_: object) -> tuple[Array, Array]:
        """Never called: the allocator instance draws nothing."""
        raise NotImplementedError("the allocator instance draws nothing")


def setup_of(geometry: Geometry) -> Setup:
    """An engine of this geometry whose batches are one page wide."""
    limits = evolve(
        default_limits(geometry),
        queue=geometry.slots,
        outputs=geometry.slots,
        prefill_tokens=max(2, geometry.page_size),
        stops=1,
        stop_len=1,
    )
    return Setup(geometry=geometry, limits=limits, model=NoCells())


def kinds(setup: Setup) -> dict[str, Kind]:
    """The checks, by entry point: each is compiled once."""
    return {
        name: Kind(name, partial(_check, setup, name), _Shipped(setup, name))
        for name in sorted(set(ENTRIES.values()))
    }


def blind_kinds(setup: Setup) -> dict[str, Kind]:
    """The checks that an entry point does not look at names, each compiled once."""
    return {
        name: Kind(name, partial(_check_blind, setup, name), unsampled)
        for name in sorted(set(ENTRIES.values()))
    }


def with_names(found: Transitions, names: Names, chosen: Any) -> Transitions:
    """The same transitions, each with the names for its state; `chosen` are their states."""
    slots, pages = (of[chosen].astype(np.int32) for of in (names.slots, names.pages))
    return found._replace(before=(found.before, slots, pages), after=())


def transitions(
    instance: Allocator, states: States, first: int, move: Move, number: int, found: Expansion
) -> Transitions:
    """The transitions of an expansion, in the form in which they are checked."""
    chosen = np.flatnonzero(found.applies)
    size = len(chosen)
    width = max(2, instance.geometry.page_size)
    given = BATCH_FAULTS.get(move.kind, range(move.other if move.kind == "extend" else 0))
    offsets = np.full((size, width), INVALID, np.int32)
    offsets[:, : len(given)] = list(given)
    child = move.other if move.kind == "clone" else 0
    return Transitions(
        state=first + chosen,
        move=np.full(size, number),
        before=states[chosen],
        arguments=(np.full(size, move.slot, np.int32), np.full(size, child, np.int32), offsets),
        after=found.after[chosen],
        mask=words(found.reasons[chosen]),
    )


def inject(setup: Setup, row: Array) -> State:
    """The engine's state for a packed state, u8[width]."""
    sizes = setup.geometry
    first, ends = sizes.slots, sizes.slots * (1 + sizes.pages_per_seq)
    in_use = row[:first] != UNUSED
    lengths = jnp.where(in_use, row[:first], 0).astype(jnp.int32)
    named = row[first:ends].reshape(sizes.slots, sizes.pages_per_seq)
    prompted = in_use.astype(jnp.int32)
    state = initial(setup)
    return state._replace(
        pages=state.pages._replace(
            counts=row[ends:].astype(jnp.int32),
            rows=jnp.where(named == NO_PAGE, INVALID, named.astype(jnp.int32)),
        ),
        slots=state.slots._replace(
            used=in_use,
            known=jnp.maximum(lengths, prompted),
            allocated=lengths,
            written=lengths,
            committed=lengths,
            prompt_lens=prompted,
            max_new=prompted,
            choices=jnp.where(in_use, jnp.arange(sizes.slots), 0),
        ),
    )


def call(setup: Setup, name: str, state: State, arguments: Arguments) -> tuple[Any, ...]:
    """The arguments of an entry point."""
    slot, other, offsets = arguments
    if name == "allocate":
        inside = offsets != INVALID
        start = state.slots.allocated[jnp.clip(slot, 0, setup.geometry.slots - 1)]
        return jnp.where(inside, slot, INVALID), jnp.where(inside, start + offsets, 0)
    if name == "reserve":
        return slot, jnp.int32(0)
    return (slot, other, other) if name == "clone" else (slot,)


def settle(setup: Setup, name: str, state: State, status: Array, arguments: Arguments) -> State:
    """Apply the assumptions: a reserved slot has a prompt, allocated cells are written."""
    slot = target(accepted(status), arguments[0], setup.geometry.slots)
    if name == "reserve":
        prompt = {"known": 1, "prompt_lens": 1, "max_new": 1, "choices": arguments[0]}
        return state._replace(slots=put(state.slots, slot, **prompt))
    if name == "allocate":
        slots = state.slots
        covered = jnp.where(accepted(status), slots.allocated, slots.written)
        known = jnp.maximum(slots.known, covered)
        return state._replace(slots=slots._replace(written=covered, committed=covered, known=known))
    return state


def _check_blind(
    setup: Setup, name: str, before: tuple[Array, ...], arguments: Arguments, *_: object
) -> Array:
    row, slots, pages = before
    slot, other, offsets = arguments
    state = inject(setup, row)
    other_state = renamed(state, slots, pages)
    named = name_of(slot, slots), name_of(other, slots), offsets
    first = call(setup, name, state, arguments)
    again = call(setup, name, other_state, named)
    return same_step(setup, name, (state, other_state), (slots, pages), first, again)


def _check(
    setup: Setup, name: str, before: Array, arguments: Arguments, after: Array, mask: Array
) -> Array:
    state = inject(setup, before)
    entry = getattr(entries, name)
    seen, status, result = entry(setup, (), state, *call(setup, name, state, arguments))
    return _verdict(setup, name, state, (seen, status, result), arguments, after, mask)


def _verdict(
    setup: Setup,
    name: str,
    state: State,
    answered: tuple[State, Array, Array],
    arguments: Arguments,
    after: Array,
    mask: Array,
) -> Array:
    seen, status, result = answered
    right = inject(setup, after)
    settled = settle(setup, name, seen, status, arguments)
    fine = agrees(setup, state, settled, status, right, mask)
    if name == "allocate":
        plan = plan_of(setup, right, arguments)
        wanted = jnp.concatenate([field.ravel() for field in plan])
        fine &= refuses(mask) | jnp.array_equal(result, wanted)
    if name in {"reserve", "clone"}:
        wanted = arguments[1] if name == "clone" else arguments[0]
        fine &= refuses(mask) | (result[0] == wanted)
    return fine


def plan_of(setup: Setup, right: State, arguments: Arguments) -> BatchPlan:
    """The plan of one slot's next positions, from the expected rows."""
    slot, _, offsets = arguments
    size, width = setup.geometry.page_size, offsets.shape[0]
    index, count = jnp.arange(width), jnp.sum(offsets != INVALID)
    positions = right.slots.allocated[slot] - count + index
    pages = right.pages.rows[slot, positions // size]
    seqs = jnp.arange(setup.batch_seqs)
    return BatchPlan(
        slot_ids=jnp.where(seqs == 0, slot, INVALID),
        page_indices=jnp.where(seqs[:, None] == 0, right.pages.rows[slot], INVALID),
        kv_lens=jnp.where(seqs == 0, right.slots.allocated[slot], 0),
        cu_q_lens=jnp.where(jnp.arange(setup.batch_seqs + 1) == 0, 0, count),
        num_seqs=jnp.int32(1),
        order=index,
        destinations=jnp.where(index < count, pages * size + positions % size, INVALID),
    )


class _Shipped:
    """The same check of the entry point that an engine runs: jitted alone, its state donated."""

    def __init__(self, setup: Setup, name: str) -> None:
        self._inject = jax.jit(lambda row: pack(inject(setup, row)))
        self._call = jax.jit(lambda packed, given: call(setup, name, unpack(setup, packed), given))
        self._entry = compiled(setup, name)

        def judge(
            before: Array,
            packed: Packed,
            report: Array,
            given: Arguments,
            after: Array,
            mask: Array,
        ) -> Array:
            answered = unpack(setup, packed), report[:3], report[3:]
            return _verdict(setup, name, inject(setup, before), answered, given, after, mask)

        self._judge = jax.jit(judge)

    def __call__(self, before: Array, arguments: Arguments, after: Array, mask: Array) -> bool:
        packed = self._inject(before)
        given = self._call(packed, arguments)
        packed, report = self._entry((), packed, *given)
        return bool(self._judge(before, packed, report, arguments, after, mask))
