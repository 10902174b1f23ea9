"""Bugs to plant in our TPU kernel, one at a time: what the bench must catch.

Most are among the ways in which public kernels went wrong: copies that nobody waits for, buffers
that are not alternated, masks that are off by one, sums that are not carried or not begun anew.
Each is a function of what it replaces.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import jax.numpy as jnp
from attrs import evolve, frozen
from jax import Array, lax
from jax.experimental import pallas as pl

import impl.attention.tpu as kernel
from conformance.kernels.batches import SIZES
from impl.attention import places
from impl.attention.tpu import cells, decode, flow, prefill, writing
from spec.vocabulary import INVALID
from spec.vocabulary.errors import InvalidInput

PLAIN: Final = SIZES[0].name
WINDOW: Final = SIZES[2].name
CAPPED: Final = SIZES[1].name
SCALED: Final = SIZES[3].name
BYTES: Final = SIZES[4].name


@frozen
class Mutant:
    """what: is wrong. place, name: what is replaced. change: makes the wrong one of the right one.

    sizes, variant, mode, append: where it shows, see `tries.Job`.
    """

    what: str
    place: Any
    name: str
    change: Callable[[Any], Any]
    sizes: str = PLAIN
    variant: int = 0
    mode: str = "on_wait"
    append: bool = False


def _nothing(_right: Any) -> Any:
    return lambda *_given, **_named: None


class _Unwaited:
    """A copy that is started and not waited for."""

    def __init__(self, copy: Any) -> None:
        self.start = copy.start

    def wait(self) -> None:
        """It does not."""


def _span(low: int, high: int) -> Callable[[Any], Any]:
    """The visible cells of a fetch, with other ends."""

    def change(right: Any) -> Any:
        def wrong(self: Any, fetch: Any) -> Any:
            first, last = right(self, fetch)
            return jnp.maximum(first + low, 0), last + high

        return wrong

    return change


def _fetches(**wrong_of: Callable[[Any], Array]) -> Callable[[Any], Any]:
    """A function of a fetch that is given one in which something is different."""

    def change(right: Any) -> Any:
        def wrong(self: Any, fetch: Any, *rest: Any) -> Any:
            other = {name: make(fetch) for name, make in wrong_of.items()}
            return right(self, fetch._replace(**other), *rest)

        return wrong

    return change


def _shapes(**options: Any) -> Callable[[Any], Any]:
    """A kernel that is traced with other options than it was given."""

    def change(right: Any) -> Any:
        return lambda shape, *rest: right(evolve(shape, **options), *rest)

    return change


def _window(by: int) -> Callable[[Any], Any]:
    """A kernel whose window is longer or shorter."""

    def change(right: Any) -> Any:
        return lambda shape, *rest: right(evolve(shape, window=shape.window + by), *rest)

    return change


def _seen(right: Any, *, by: int) -> Any:
    """The mask of a prefill, for queries that stand elsewhere."""
    return lambda shape, position, *rest: right(shape, position + by, *rest)


def _next_page(right: Any) -> Any:
    def wrong(self: Any, fetch: Any, slot: Array, page: Array) -> None:
        class Shifted:
            """Page ids, each of them one more."""

            def __getitem__(self, at: Any) -> Any:
                return held[at] + 1

        held, before = self.buffers.ids, self.buffers
        self.buffers = before._replace(ids=Shifted())
        right(self, fetch, slot, page)
        self.buffers = before

    return wrong


class _Folded:
    """A pair of buffers of which the first is given out twice."""

    def __init__(self, held: Any, fold: Callable[[Any, Any], Any]) -> None:
        self.at, self._held, self._fold = self, held, fold

    def __getitem__(self, place: Any) -> Any:
        return self._held.at[self._fold(self._held, place)]


def _one_buffer(name: str, fold: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """What is copied in is put where that lies that is being worked on."""

    def change(right: Any) -> Any:
        def wrong(self: Any, *given: Any) -> None:
            before = self.buffers
            self.buffers = before._replace(**{name: _Folded(getattr(before, name), fold)})
            right(self, *given)
            self.buffers = before

        return wrong

    return change


def _in_first_half(held: Any, rows: Any) -> Any:
    start = lax.rem(rows.start, jnp.int32(held.shape[0] // 2))
    return pl.ds(pl.multiple_of(start, rows.size), rows.size)


def _fewer_pages(right: Any) -> Any:
    def wrong(self: Any, fetch: Any) -> tuple[Array, Array]:
        low, high = right(self, fetch)
        return low, high - 1

    return wrong


def _unreset(*kept: str) -> Callable[[Any], Any]:
    """A beginning that leaves some of the scratch as it was."""

    def change(right: Any) -> Any:
        def wrong(*given: Any) -> None:
            at = next(index for index, one in enumerate(given) if hasattr(one, "_replace"))
            scratch = given[at]
            before = {name: getattr(scratch, name)[...] for name in kept}
            right(*given)
            for name, value in before.items():
                getattr(scratch, name)[...] = value

        return wrong

    return change


def _only_masked(right: Any) -> Any:
    """Steps of which every cell is visible are left out."""

    def wrong(*given: Any, masked: bool) -> None:
        if masked:
            right(*given, masked=masked)

    return wrong


def _never_rescaled(right: Any) -> Any:
    """What was summed up is not rescaled when a larger score comes: it is [rows, 128]."""

    def wrong(shape: Any, difference: Array) -> Array:
        found: Array = right(shape, difference)
        return jnp.ones_like(found) if difference.shape[1] == 128 else found

    return wrong


def _other_heads(right: Any) -> Any:
    """Query heads take KV heads in turn, not in groups."""

    def wrong(self: Any, shape: Any, *rest: Any) -> None:
        right(self, shape, *rest)
        like = (shape.q_heads, self.count)
        place = cells.place(shape, lax.broadcasted_iota(jnp.int32, like, 1), self.count)
        _, head = cells.divide(place, shape.kv_heads)
        _, row = cells.divide(lax.broadcasted_iota(jnp.int32, like, 0), shape.kv_heads)
        self.own = head == row

    return wrong


def _as_one_core(right: Any) -> Any:
    """The same as if there were one core, but that each still has its number."""

    def wrong(self: Any, fetch: Any) -> Any:
        before = self.shape
        self.shape = evolve(before, cores=1)
        found = right(self, fetch)
        self.shape = before
        return found

    return wrong


def _one_place_on(right: Any) -> Any:
    """Every new cell goes to the next destination."""
    return lambda pool, cells, to, **named: right(
        pool, cells, jnp.where(to < 0, to, to + 1), **named
    )


def _padding_to_first_cell(right: Any) -> Any:
    """Tokens of no sequence are stored in cell 0."""

    def wrong(*given: Any, **named: Any) -> Array:
        found: Array = right(*given, **named)
        return jnp.where(found == INVALID, 0, found)

    return wrong


def _last_dropped(right: Any) -> Any:
    """The last token of each sequence is not stored."""

    def wrong(pool: Array, lens: Array, ids: Array, starts: Array, *rest: Any, tokens: int) -> Any:
        found = right(pool, lens, ids, starts, *rest, tokens=tokens)
        return found.at[starts[1:] - 1].set(INVALID, mode="drop")

    return wrong


def _row_before(right: Any) -> Any:
    """New cells go to the pages of the previous sequence."""
    return lambda pool, lens, ids, *rest, **named: right(
        pool, lens, jnp.roll(ids, 1, axis=0), *rest, **named
    )


def _from_the_pool(right: Any) -> Any:
    """The operands are ignored."""

    def wrong(shape: Any, *given: Any, cells: Any) -> Any:
        del cells
        return right(evolve(shape, fresh=False), *given)

    return wrong


def _whole_pages(right: Any) -> Any:
    """The partly old page is copied whole, over the cells from the operands."""

    def wrong(self: Any, fetch: Any) -> tuple[Array, Array]:
        low, high = right(self, fetch)
        size = self.shape.page_size
        return low, (high + size - 1) // size * size

    return wrong


def _neighbours_cells(right: Any) -> Any:
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


MUTANTS: Final[Mapping[str, Mutant]] = {
    "pages are not waited for": Mutant("no wait", flow.Flow, "_wait_pages", _nothing),
    "queries are not waited for": Mutant("no wait", flow.Flow, "_wait_queries", _nothing),
    "page ids are not waited for": Mutant(
        "no wait", flow.Flow, "_ids_copy", lambda right: lambda *given: _Unwaited(right(*given))
    ),
    "results are not waited for": Mutant("no wait", flow.Flow, "_wait_result", _nothing),
    "pages in one buffer": Mutant(
        "no double buffering",
        flow.Flow,
        "_start_page",
        _one_buffer("pages", _in_first_half),
    ),
    "pages in one buffer, copied at once": Mutant(
        "a race",
        flow.Flow,
        "_start_page",
        _one_buffer("pages", _in_first_half),
        mode="eager",
    ),
    "results not waited for, copied at once": Mutant(
        "a race", flow.Flow, "_wait_result", _nothing, mode="eager"
    ),
    "page ids in one buffer": Mutant(
        "prefetch into the live buffer",
        flow.Flow,
        "_ids_copy",
        _fetches(number=lambda _fetch: jnp.int32(0)),
    ),
    "the number of a fetch is not carried": Mutant(
        "buffer index not carried",
        flow.Flow,
        "_after",
        lambda right: lambda self, fetch: right(self, fetch)._replace(number=fetch.number),
    ),
    "both cores take the same blocks": Mutant(
        "half of the work left out",
        flow.Flow,
        "_first",
        lambda _right: lambda self: self._begin(self._next_seq(jnp.int32(0))),
        variant=1,
    ),
    "each core takes every block": Mutant(
        "a race of two cores", flow.Flow, "_after", _as_one_core, variant=1, mode="eager"
    ),
    "queries in one buffer": Mutant(
        "no double buffering",
        flow.Flow,
        "_start_queries",
        _one_buffer("queries", lambda _held, place: (0, *place[1:])),
    ),
    "queries in one buffer, their semaphore too": Mutant(
        "waits for ever",
        flow.Flow,
        "_start_queries",
        _fetches(item=lambda _fetch: jnp.int32(0)),
    ),
    "a page id and one": Mutant("page index plus one", flow.Flow, "_start_page", _next_page),
    "the last page is not copied": Mutant(
        "a page too few",
        flow.Flow,
        "_pages",
        _fewer_pages,
    ),
    "sequences past the last": Mutant(
        "num_seqs ignored",
        flow.Flow,
        "_seqs",
        lambda _right: lambda self: jnp.int32(self.shape.seqs),
    ),
    "results too wide": Mutant(
        "store mask too wide",
        flow.Flow,
        "_rows_of",
        lambda right: lambda self, fetch: (right(self, fetch)[0], self.shape.blocks.q_rows),
    ),
    "a cell too many": Mutant("no KV mask at the end", flow.Flow, "_span", _span(0, 1)),
    "a cell too few": Mutant("the last cell is masked", flow.Flow, "_span", _span(0, -1)),
    "the first cell is masked": Mutant("a cell too few", flow.Flow, "_span", _span(1, 0)),
    "one position into the future": Mutant(
        "causal off by one", prefill, "_seen", lambda right: _seen(right, by=1)
    ),
    "not its own position": Mutant(
        "causal off by one", prefill, "_seen", lambda right: _seen(right, by=-1)
    ),
    "a window that is longer": Mutant(
        "window off by one", kernel, "_kernel", _window(1), sizes=WINDOW
    ),
    "a window that is shorter": Mutant(
        "window off by one", kernel, "_kernel", _window(-1), sizes=WINDOW
    ),
    "the largest score starts at 0": Mutant(
        "running maximum not initialised", decode, "LOWEST", lambda _right: 0.0
    ),
    "decoding keeps the largest score": Mutant(
        "running maximum not initialised", decode, "begin", _unreset("largest")
    ),
    "decoding keeps its sums": Mutant("sums not begun anew", decode, "begin", _unreset("sums")),
    "a prefill keeps its total": Mutant("sums not begun anew", prefill, "begin", _unreset("total")),
    "decoding is not rescaled": Mutant("no rescaling", decode, "power", _never_rescaled),
    "a prefill is not rescaled": Mutant("no rescaling", prefill, "power", _never_rescaled),
    "decoding leaves whole steps out": Mutant(
        "the fast path does nothing", decode.Work, "add", _only_masked, variant=1
    ),
    "a prefill leaves whole steps out": Mutant(
        "the fast path does nothing", prefill, "_step", _only_masked
    ),
    "heads in turn": Mutant("query heads grouped wrongly", decode.Work, "__init__", _other_heads),
    "V for K": Mutant("K and V change places", cells, "keys", lambda _right: cells.values),
    "V of dead cells": Mutant(
        "NaN times 0", cells, "blanked", lambda _right: lambda words, *_: words
    ),
    "V of a dead cell in a live one's word": Mutant(
        "NaN times 0",
        cells,
        "_kept",
        lambda right: lambda at, *by: right(at & ~1, *by),
        sizes=SCALED,
    ),
    "one of two heads in a word": Mutant(
        "the other head's K and V", cells, "upper", lambda _right: cells.lower, sizes=BYTES
    ),
    "no scale": Mutant("scale dropped", kernel, "_kernel", _shapes(scale=1.0)),
    "no cap": Mutant("soft cap dropped", kernel, "_kernel", _shapes(soft_cap=None), sizes=CAPPED),
    "no scale of V": Mutant("scale dropped", kernel, "_kernel", _shapes(v_scale=1.0), sizes=SCALED),
    "a new cell one place on": Mutant(
        "written one off", kernel, "write", _one_place_on, append=True
    ),
    "padding is written": Mutant(
        "padding to cell 0", places, "of", _padding_to_first_cell, append=True
    ),
    "the last new cell is not written": Mutant(
        "a cell too few", places, "of", _last_dropped, append=True
    ),
    "new cells in another's pages": Mutant(
        "the row of the sequence before", places, "of", _row_before, append=True
    ),
    "new cells are read from the pool": Mutant(
        "not from the operands", kernel, "_call", _from_the_pool, append=True
    ),
    "new cells are not waited for": Mutant(
        "no wait",
        writing,
        "copy",
        lambda right: lambda *given: _Unwaited(right(*given)),
        append=True,
    ),
    "a page over new cells": Mutant(
        "both are copied there", flow.Flow, "_stored", _whole_pages, append=True
    ),
    "new cells of the neighbour": Mutant(
        "operands one row off", flow.Flow, "_start_fresh", _neighbours_cells, append=True
    ),
}
"""By name."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The kernel with this bug, until the block is left; nothing may be traced before it."""
    if name not in MUTANTS:
        raise InvalidInput(
            "mutant", seen=name, allowed=", ".join(MUTANTS), remedy="Choose one of them."
        )
    mutant = MUTANTS[name]
    right = mutant.place.__dict__[mutant.name]
    setattr(mutant.place, mutant.name, mutant.change(right))
    try:
        yield
    finally:
        setattr(mutant.place, mutant.name, right)
