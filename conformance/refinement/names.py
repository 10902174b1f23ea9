"""Random names of pages and slots, and the check that the engine does not look at names.

A state up to renaming stands for every state that has other names. Each is injected under several
random ones, in which every slot takes every name. The other names follow from those if the engine
does not look at them: a step from a renamed state is the renamed step, apart from the free pages
and the free slot that its policy takes.
"""

from collections.abc import Iterator
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
from attrs import frozen
from jax import Array

from conformance.refinement.transition import identical
from impl import entries
from impl.setup import Setup
from impl.state import State
from impl.state.pages import in_use
from spec.vocabulary import INVALID, Geometry

RENAMINGS: Final = 8
_WORDS: Final = 4
"""So many numbers are drawn at a time."""

Call = tuple[Any, ...]


@frozen(eq=False)
class Names:
    """New names in N states: of each slot i64[N, S], and of each page i64[N, P]."""

    slots: Any
    pages: Any


def renamings(geometry: Geometry) -> int:
    """How often a state is renamed: at least once for each slot."""
    return max(RENAMINGS, geometry.slots)


def drawn(seed: int, first: int, size: int, geometry: Geometry) -> Iterator[Names]:
    """The renamings of the states `first` to `first + size`, each a draw of its seed and number.

    Of each run of as many as there are slots, every slot takes every name.
    """
    turns, slots, pages = renamings(geometry), geometry.slots, geometry.pages
    runs = -(-turns // slots)
    width = runs * slots + turns * pages
    width += -width % _WORDS
    bits = np.random.Philox(key=seed)
    bits.advance(first * width // _WORDS)
    keys = np.random.Generator(bits).random((size, width))
    for turn in range(turns):
        run, step = divmod(turn, slots)
        names = np.argsort(keys[:, run * slots : (run + 1) * slots], axis=1)
        start = runs * slots + turn * pages
        yield Names(
            slots=np.roll(names, step, axis=1),
            pages=np.argsort(keys[:, start : start + pages], axis=1),
        )


def renamed(state: State, slots: Array, pages: Array, *, choices: Array | None = None) -> State:
    """The engine's state with other names. slots i32[S], pages i32[P]: the new ones.

    choices: those of the choices of prompts; by default those of the slots. The lists of the index,
    whose order depends on names, keep the old ones.
    """
    slot_of, page_of = _inverse(slots), _inverse(pages)
    whole, index, queue, steps = state.pages, state.indexed, state.queue, state.flights
    held = type(state.slots)(*(field[slot_of] for field in state.slots))
    named = name_of(held.choices, slots if choices is None else choices)
    return state._replace(
        pages=whole._replace(
            cache=tuple(pool[page_of] for pool in whole.cache),
            counts=whole.counts[page_of],
            released=whole.released[page_of],
            rows=name_of(whole.rows[slot_of], pages),
            held=whole.held[page_of],
        ),
        indexed=index._replace(
            contexts=index.contexts[page_of],
            parents=name_of(index.parents[page_of], pages),
            tokens=index.tokens[page_of],
            children=index.children[page_of],
        ),
        slots=held._replace(choices=jnp.where(held.prompt_lens > 0, named, held.choices)),
        queue=queue._replace(
            slots=jnp.where(
                jnp.arange(queue.slots.shape[0]) < queue.filled,
                name_of(queue.slots, slots),
                queue.slots,
            )
        ),
        flights=steps._replace(
            holds=steps.holds[:, slot_of],
            first=steps.first[:, slot_of],
            lens=steps.lens[:, slot_of],
            draws=steps.draws[:, slot_of],
            rows=name_of(steps.rows[:, slot_of], pages),
        ),
    )


def _inverse(names: Array) -> Array:
    """The old name of each new one."""
    return jnp.argmax(names == jnp.arange(names.shape[0])[:, None], axis=1)


def name_of(ids: Array, names: Array) -> Array:
    """The new name of each id; one that is no id stays."""
    inside = (ids >= 0) & (ids < names.shape[0])
    return jnp.where(inside, names[jnp.where(inside, ids, 0)], ids)


def same_step(
    setup: Setup,
    entry: str,
    states: tuple[State, State],
    names: tuple[Array, Array],
    call: Call,
    again: Call,
) -> Array:
    """bool[]: whether an entry point takes a renamed state to the renamed successor.

    states: a state, and the same one with other names. call: the arguments in the first; again:
    those of the renamed action. The reason of a refusal is the same, and so is every bit of the
    state, dead cells and unused slots included. Results are not compared.
    """
    before, other = states
    step, (slots, pages) = getattr(entries, entry), names
    one, status, _ = step(setup, (), before, *call)
    two, told, _ = step(setup, (), other, *again)
    after_slots = _with_slot(states, (one, two), slots)
    after_pages = _with_pages(before, (one, two), after_slots, pages)
    named = in_use(before.pages) > 0
    kept = jnp.all((after_slots == slots) | ~before.slots.used)
    kept &= jnp.all((after_pages == pages) | ~(named | before.indexed.holds))
    same = _same(renamed(one, after_slots, after_pages, choices=slots), two)
    return jnp.asarray(kept & same & (status[0] == told[0]))


def _same(one: State, other: State) -> Array:
    """bool[]: whether two states are the same, bit for bit.

    But for lists of the index, and choices without a prompt, which are not renamed.
    """
    lists, prompted = one.indexed, one.slots.prompt_lens > 0
    choices = jnp.where(prompted, other.slots.choices, one.slots.choices)
    return identical(
        one,
        other._replace(
            indexed=other.indexed._replace(
                buckets=lists.buckets, after=lists.after, before=lists.before
            ),
            slots=other.slots._replace(choices=choices),
        ),
    )


def _with_slot(before: tuple[State, State], after: tuple[State, State], slots: Array) -> Array:
    """The names of slots after a step: the one that each of the two took is the same one."""
    one, other = (
        now.slots.used & ~then.slots.used for then, now in zip(before, after, strict=True)
    )
    return _with(slots, jnp.argmax(one), jnp.argmax(other), jnp.any(one) & jnp.any(other))


def _with_pages(before: State, after: tuple[State, State], slots: Array, pages: Array) -> Array:
    """The names of pages after a step: those taken for the same row entry are the same one.

    A step takes at most one page for each slot.
    """
    rows, again = after[0].pages.rows.ravel(), after[1].pages.rows[slots].ravel()
    fresh = (rows != INVALID) & (again != INVALID)
    fresh &= in_use(before.pages).at[rows].get(mode="fill", fill_value=1) == 0
    for _ in range(slots.shape[0]):
        entry = jnp.argmax(fresh)
        pages = _with(pages, rows[entry], again[entry], fresh[entry])
        fresh &= jnp.arange(rows.shape[0]) != entry
    return pages


def _with(names: Array, one: Array, name: Array, goes: Array) -> Array:
    """The names with one of them changed to `name`, which another one gives for it."""
    inside = jnp.clip(one, 0, names.shape[0] - 1)
    swapped = jnp.where(names == name, names[inside], names)
    chosen = jnp.arange(names.shape[0]) == one
    return jnp.asarray(jnp.where(goes, jnp.where(chosen, name, swapped), names))
