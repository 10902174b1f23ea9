"""Seeded bugs of a kernel that writes new cells, as functions for `seeded_bugs`.

Each makes the wrong function from the right one.
"""

from typing import Any

import jax.numpy as jnp
from attrs import evolve
from jax import Array

from spec.vocabulary import INVALID


def one_place_on(right: Any) -> Any:
    """Every new cell goes to the next destination."""
    return lambda pool, cells, to, **named: right(
        pool, cells, jnp.where(to < 0, to, to + 1), **named
    )


def padding_to_the_first_cell(right: Any) -> Any:
    """Tokens of no sequence are stored in cell 0."""

    def wrong(*given: Any, **named: Any) -> Array:
        found: Array = right(*given, **named)
        return jnp.where(found == INVALID, 0, found)

    return wrong


def last_dropped(right: Any) -> Any:
    """The last token of each sequence is not stored."""

    def wrong(pool: Array, lens: Array, ids: Array, starts: Array, *rest: Any, tokens: int) -> Any:
        found = right(pool, lens, ids, starts, *rest, tokens=tokens)
        return found.at[starts[1:] - 1].set(INVALID, mode="drop")

    return wrong


def row_before(right: Any) -> Any:
    """New cells go to the pages of the previous sequence."""
    return lambda pool, lens, ids, *rest, **named: right(
        pool, lens, jnp.roll(ids, 1, axis=0), *rest, **named
    )


def from_the_pool(right: Any) -> Any:
    """The operands are ignored."""

    def wrong(shape: Any, *given: Any, cells: Any) -> Any:
        del cells
        return right(evolve(shape, fresh=False), *given)

    return wrong


def whole_pages(right: Any) -> Any:
    """The partly old page is copied whole, over the cells from the operands."""

    def wrong(self: Any, fetch: Any) -> tuple[Array, Array]:
        low, high = right(self, fetch)
        size = self.shape.page_size
        return low, (high + size - 1) // size * size

    return wrong


def neighbours_cells(right: Any) -> Any:
    """The operands are read from the next row on."""

    def wrong(self: Any, *given: Any) -> None:
        class Shifted:
            """Sequences that begin one row later."""

            def __getitem__(self, at: Any) -> Any:
                return held[at] + 1

        held, before = self.inputs.cu_q_lens, self.inputs
        self.inputs = before._replace(cu_q_lens=Shifted())
        right(self, *given)
        self.inputs = before

    return wrong
