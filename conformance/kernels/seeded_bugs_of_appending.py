"""Bugs of a kernel that writes new cells: what `mutants` plants of them, as functions.

Each makes the wrong function of the right one.
"""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol

import jax.numpy as jnp
from attrs import evolve
from jax import Array

from conformance.kernels.pallas import Ref
from impl.attention.tpu.flow import Fetch, Flow
from impl.attention.tpu.shape import Shape
from spec.vocabulary import INVALID

P = ParamSpec("P")

Bounds = Callable[[Flow, Fetch], tuple[Array, Array]]
"""What of a fetch: from, to."""
Places = Callable[Concatenate[Array, Array, Array, Array, P], Array]
"""As `impl.attention.places.of`."""
Write = Callable[Concatenate[Array, Array, Array, P], Array]
"""As `impl.attention.tpu.writing.write`."""


class Call(Protocol):
    """As the traced call of the kernel."""

    def __call__(self, shape: Shape, *given: object, cells: Array | None = None) -> Array:
        """Attend."""
        ...


def one_place_on(right: Write[P]) -> Write[P]:
    """Every new cell goes to the next one of the pool."""

    def wrong(pool: Array, cells: Array, to: Array, /, *rest: P.args, **named: P.kwargs) -> Array:
        return right(pool, cells, jnp.where(to < 0, to, to + 1), *rest, **named)

    return wrong


def padding_to_the_first_cell(right: Callable[P, Array]) -> Callable[P, Array]:
    """Tokens of no sequence are stored in cell 0."""

    def wrong(*given: P.args, **named: P.kwargs) -> Array:
        found = right(*given, **named)
        return jnp.where(found == INVALID, 0, found)

    return wrong


def last_dropped(right: Places[P]) -> Places[P]:
    """The last token of each sequence is not stored."""

    def wrong(
        pool: Array, lens: Array, ids: Array, starts: Array, /, *rest: P.args, **named: P.kwargs
    ) -> Array:
        found = right(pool, lens, ids, starts, *rest, **named)
        return found.at[starts[1:] - 1].set(INVALID, mode="drop")

    return wrong


def row_before(right: Places[P]) -> Places[P]:
    """New cells go to the pages of the sequence before."""

    def wrong(
        pool: Array, lens: Array, ids: Array, starts: Array, /, *rest: P.args, **named: P.kwargs
    ) -> Array:
        return right(pool, lens, jnp.roll(ids, 1, axis=0), starts, *rest, **named)

    return wrong


def from_the_pool(right: Call) -> Callable[..., Array]:
    """Operands are not looked at."""

    def wrong(shape: Shape, *given: object, cells: Array) -> Array:
        del cells
        return right(evolve(shape, fresh=False), *given)

    return wrong


def whole_pages(right: Bounds) -> Bounds:
    """The page that is old in part is copied whole, over what comes from the operands."""

    def wrong(self: Flow, fetch: Fetch) -> tuple[Array, Array]:
        low, high = right(self, fetch)
        size = self.shape.page_size
        return low, (high + size - 1) // size * size

    return wrong


def neighbours_cells(
    right: Callable[[Flow, Fetch, Array], None],
) -> Callable[[Flow, Fetch, Array], None]:
    """The operands are read from one row further on."""

    def wrong(self: Flow, fetch: Fetch, slot: Array) -> None:
        class Shifted:
            """Sequences that begin one row later."""

            def __getitem__(self, at: Ref) -> Array:
                following: Array = held[at] + 1
                return following

        held, before = self.inputs.cu_q_lens, self.inputs
        self.inputs = before._replace(cu_q_lens=Shifted())
        right(self, fetch, slot)
        self.inputs = before

    return wrong
