"""Seeded bugs of our TPU kernel, planted one at a time, which the bench must catch.

Most are modelled on bugs of public kernels: copies without a wait, buffers that are not alternated,
masks that are off by one, sums that are not carried or not restarted. Each is a function from the
right to the wrong implementation.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Concatenate, Final, Never, ParamSpec, Protocol, TypeVar

import jax.numpy as jnp
from attrs import evolve, frozen
from jax import Array, lax
from jax.experimental import pallas as pl

import impl.attention.tpu as kernel
from conformance.kernels.batches import SIZES
from conformance.kernels.pallas import Copy, Ref
from impl.attention import places
from impl.attention.tpu import cells, decode, flow, fresh, prefill, writing
from impl.attention.tpu.decode import Span
from impl.attention.tpu.flow import Fetch, Flow
from impl.attention.tpu.shape import LANES, Shape
from spec.vocabulary import INVALID
from spec.vocabulary.errors import InvalidInput

PLAIN: Final = SIZES[0].name
WINDOW: Final = SIZES[2].name
CAPPED: Final = SIZES[1].name
SCALED: Final = SIZES[3].name
BYTES: Final = SIZES[4].name
FOUR: Final = SIZES[11].name
PLANNED: Final = "as planned, eight KV heads"
LONG_WINDOW: Final = SIZES[8].name
MANY: Final = SIZES[9].name
UNGUIDED: Final = "a head_dim of 80, no groups"
"""Destinations of its new cells follow from the table."""
ONES: Final = "pages of one cell"
LARGE_PAGES: Final = "e5m2, wide heads, large pages"
TWELVE: Final = "float16 queries, pages of 12"
SINKS: Final = "sinks"
OF_CELLS: Final = "scales of cells, eight KV heads in int8"
OF_CELLS_CAPPED: Final = "scales of cells, three KV heads, a window, a cap"
ONES_CAPPED: Final = "sinks, a window, a cap, pages of one cell"

P = ParamSpec("P")
R = TypeVar("R")

Change = Callable[[Never], object]
"""Makes the wrong function, or value, from the right one."""
Bounds = Callable[[Flow, Fetch], tuple[Array, Array]]
"""What of a fetch: from, to."""
After = Callable[[Flow, Fetch], Fetch]
StartPage = Callable[[Flow, Fetch, Array, Array], None]
Seen = Callable[[Shape, Array, Span, Array, int], Array]
Whole = Callable[[Shape, Array, Span], tuple[Array, Array]]
Blanked = Callable[[Shape, Array, Array, Array], Array]
Fold = Callable[[Ref, Ref], object]
"""Another place in a pair of buffers, from the pair and the place that is asked for."""


Places = Callable[Concatenate[Array, Array, Array, Array, P], Array]
"""As `impl.attention.places.of`."""
Write = Callable[Concatenate[Shape, Array, fresh.Operand, Array, P], Array]
"""As `impl.attention.tpu.writing.write`."""


WithSink = Callable[[Shape, Array, Array, Array, Array], tuple[Array, Array]]
"""As `impl.attention.tpu.decode.with_sink`."""
Prefill = Callable[Concatenate[Flow, Shape, Fetch, P], None]
Begin = Callable[[Flow, Array], Fetch]
Turn = Callable[[decode.Steps, Array, int, Array, Array], tuple[Array, Array]]
IdPlace = Callable[[Flow, Fetch, Array, Array], tuple[Array, Array]]
CopyPages = Callable[[Flow, Array, Array, Array, int], None]
Beside = Callable[[Flow, Fetch, flow.Starts, Array], None]
Decode = Callable[Concatenate[Flow, P], None]
Hide = Callable[Concatenate[Shape, Array, ...], Array]
"""As `impl.attention.tpu.decode.masked`."""


class Call(Protocol):
    """As the traced call of the kernel."""

    def __call__(
        self,
        shape: Shape,
        *given: object,
        sinks: Array | None,
        scales: Array | None,
        new: Array | None = None,
    ) -> Array:
        """Attend."""
        ...


class Masked(Protocol):
    """A step over cells of which some may be hidden."""

    def __call__(self, *given: object, masked: bool, opens: bool = False) -> None:
        """Take the step."""
        ...


@frozen
class Mutant:
    """what: the defect. place, name: the attribute to replace. change: makes the wrong function.

    sizes, variant, mode, append: the job that shows it, see `trials.Job`.
    """

    what: str
    place: ModuleType | type
    name: str
    change: Change
    sizes: str = PLAIN
    variant: int = 0
    mode: str = "on_wait"
    append: bool = False


def _nothing(_right: Callable[P, None]) -> Callable[P, None]:
    def wrong(*_given: P.args, **_named: P.kwargs) -> None:
        return

    return wrong


class _Unwaited:
    """A copy that is started and never waited for."""

    def __init__(self, copy: Copy) -> None:
        self.start = copy.start

    def wait(self) -> None:
        """Return without waiting."""


def _unwaited(right: Callable[P, Copy]) -> Callable[P, _Unwaited]:
    def wrong(*given: P.args, **named: P.kwargs) -> _Unwaited:
        return _Unwaited(right(*given, **named))

    return wrong


def _span(low: int, high: int) -> Callable[[Bounds], Bounds]:
    """The visible cells of a fetch, with wrong ends."""

    def change(right: Bounds) -> Bounds:
        def wrong(self: Flow, fetch: Fetch) -> tuple[Array, Array]:
            first, last = right(self, fetch)
            return jnp.maximum(first + low, 0), last + high

        return wrong

    return change


def _in_seven_bits(right: Begin) -> Begin:
    """The lengths of the sequence without the bits that only large batches need."""
    return lambda self, seq: right(self, seq & 127)._replace(seq=seq)


def _fetches(
    **other: int,
) -> Callable[[Callable[[Flow, Fetch], R]], Callable[[Flow, Fetch], R]]:
    """A function that receives a fetch with one field changed."""

    def change(right: Callable[[Flow, Fetch], R]) -> Callable[[Flow, Fetch], R]:
        def wrong(self: Flow, fetch: Fetch) -> R:
            numbers = {name: jnp.int32(value) for name, value in other.items()}
            return right(self, fetch._replace(**numbers))

        return wrong

    return change


def _shapes(
    other: Callable[[Shape], Shape],
) -> Callable[[Callable[Concatenate[Shape, P], R]], Callable[Concatenate[Shape, P], R]]:
    """A kernel that is traced with wrong options."""

    def change(right: Callable[Concatenate[Shape, P], R]) -> Callable[Concatenate[Shape, P], R]:
        def wrong(shape: Shape, /, *rest: P.args, **named: P.kwargs) -> R:
            return right(other(shape), *rest, **named)

        return wrong

    return change


def _longer_window(shape: Shape, *, by: int) -> Shape:
    assert shape.window is not None  # it is planted where there is one
    return evolve(shape, window=shape.window + by)


def _seen(*, by: int) -> Callable[[Seen], Seen]:
    """The mask of a prefill, for queries at wrong positions."""

    def change(right: Seen) -> Seen:
        return lambda shape, position, *rest: right(shape, position + by, *rest)

    return change


def _from_the_first(right: Whole) -> Whole:
    """The window of the first query is that of all."""
    return lambda shape, position, span: (span.low, right(shape, position, span)[1])


def _at_most_64(shape: Shape) -> Shape:
    """As if no page had more cells than 64."""
    return evolve(shape, page_size=min(shape.page_size, 64))


def _next_page(right: CopyPages) -> CopyPages:
    def wrong(self: Flow, named: Array, slot: Array, page: Array, count: int) -> None:
        right(self, named + 1, slot, page, count)

    return wrong


class _Folded:
    """A pair of buffers that returns the first one twice."""

    def __init__(self, held: Ref, fold: Fold) -> None:
        self.at, self._held, self._fold = self, held, fold

    def __getitem__(self, place: Ref) -> Ref:
        return self._held.at[self._fold(self._held, place)]


def _one_buffer(
    name: str, fold: Fold
) -> Callable[[Callable[Concatenate[Flow, P], None]], Callable[Concatenate[Flow, P], None]]:
    """A fetch that overwrites the buffer in use."""

    def change(
        right: Callable[Concatenate[Flow, P], None],
    ) -> Callable[Concatenate[Flow, P], None]:
        def wrong(self: Flow, /, *given: P.args, **named: P.kwargs) -> None:
            before = self.buffers
            self.buffers = before._replace(**{name: _Folded(getattr(before, name), fold)})
            right(self, *given, **named)
            self.buffers = before

        return wrong

    return change


def _in_first_half(held: Ref, rows: Ref) -> object:
    start = lax.rem(rows.start, jnp.int32(held.shape[0] // 2))
    return pl.ds(pl.multiple_of(start, rows.size), rows.size)


def _fewer_pages(right: Bounds) -> Bounds:
    def wrong(self: Flow, fetch: Fetch) -> tuple[Array, Array]:
        low, high = right(self, fetch)
        return low, high - 1

    return wrong


def _unreset(*kept: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """An initialisation that leaves some of the scratch unchanged."""

    def change(right: Callable[P, None]) -> Callable[P, None]:
        def wrong(*given: P.args, **named: P.kwargs) -> None:
            scratch = next(one for one in given if hasattr(one, "_replace"))
            before = {name: getattr(scratch, name)[...] for name in kept}
            right(*given, **named)
            for name, value in before.items():
                getattr(scratch, name)[...] = value

        return wrong

    return change


def _only_masked(right: Masked) -> Masked:
    """Steps with only visible cells are left out."""

    def wrong(*given: object, masked: bool, opens: bool = False) -> None:
        if masked:
            right(*given, masked=masked, opens=opens)

    return wrong


def _two_registers(right: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The sum over a row takes its first two registers alone."""

    def wrong(weights: Array) -> Array:
        return right(weights[:, : 2 * LANES])

    return wrong


def _in_first_buffers(
    right: Callable[[decode.Steps, Array], Array],
) -> Callable[[decode.Steps, Array], Array]:
    """Steps of decoding take the cells of the steps whose buffers of scores they reuse."""

    def wrong(self: decode.Steps, index: Array) -> Array:
        return right(self, lax.rem(index, decode.BUFFERS))

    return wrong


def _not_added(right: Turn) -> Turn:
    """A step of a group adds nothing to the sums."""

    def wrong(
        self: decode.Steps, index: Array, step: int, before: Array, now: Array
    ) -> tuple[Array, Array]:
        total, sums = self.scratch.total[...], self.scratch.sums[...]
        found = right(self, index, step, before, now)
        self.scratch.total[...], self.scratch.sums[...] = total, sums
        return found

    return wrong


def _longer_for_a_few(right: Prefill[P]) -> Prefill[P]:
    """A sequence with a few queries has one cell more than it has."""

    def wrong(self: Flow, shape: Shape, fetch: Fetch, /, *given: P.args, **named: P.kwargs) -> None:
        more = int(shape.blocks.q_rows == flow.FEW)
        right(self, shape, fetch._replace(kv_len=fetch.kv_len + more), *given, **named)

    return wrong


def _never_rescaled(right: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Sums that are not rescaled when a larger score comes: [rows, 128]."""

    def wrong(difference: Array) -> Array:
        found = right(difference)
        return jnp.ones_like(found) if difference.shape[1] == 128 else found

    return wrong


def _other_heads(right: Hide) -> Hide:
    """Query heads take KV heads in turn, not in groups."""

    def wrong(shape: Shape, found: Array, *ends: Array | None) -> Array:
        real = shape.kv_heads * shape.group
        place = [row % shape.kv_heads * shape.group + row // shape.kv_heads for row in range(real)]
        place += range(real, shape.q_heads)
        back = [place.index(row) for row in range(shape.q_heads)]
        moved = jnp.stack([found[row] for row in back])
        hidden = right(shape, moved, *ends)
        return jnp.stack([hidden[row] for row in place])

    return wrong


def _as_one_core(right: After) -> After:
    """The plan for one core on several, each with its own number."""

    def wrong(self: Flow, fetch: Fetch) -> Fetch:
        before = self.shape
        self.shape = evolve(before, cores=1)
        found = right(self, fetch)
        self.shape = before
        return found

    return wrong


def _one_place_on(right: Write[P]) -> Write[P]:
    """Every new cell goes to the next destination."""

    def wrong(
        shape: Shape,
        pool: Array,
        new: fresh.Operand,
        to: Array,
        /,
        *rest: P.args,
        **named: P.kwargs,
    ) -> Array:
        return right(shape, pool, new, jnp.where(to < 0, to, to + 1), *rest, **named)

    return wrong


def _one_on(right: Callable[P, Array]) -> Callable[P, Array]:
    """A place, and the one where it is looked for, are both one further on."""
    return lambda *given, **named: right(*given, **named) + 1


def _padding_to_first_cell(right: Callable[P, Array]) -> Callable[P, Array]:
    """Tokens of no sequence are stored in cell 0."""

    def wrong(*given: P.args, **named: P.kwargs) -> Array:
        found = right(*given, **named)
        return jnp.where(found == INVALID, 0, found)

    return wrong


def _last_dropped(right: Places[P]) -> Places[P]:
    """The last token of each sequence is not stored."""

    def wrong(
        pool: Array, lens: Array, ids: Array, starts: Array, /, *rest: P.args, **named: P.kwargs
    ) -> Array:
        found = right(pool, lens, ids, starts, *rest, **named)
        return found.at[starts[1:] - 1].set(INVALID, mode="drop")

    return wrong


def _row_before(right: Places[P]) -> Places[P]:
    """New cells go to the pages of the previous sequence."""

    def wrong(
        pool: Array, lens: Array, ids: Array, starts: Array, /, *rest: P.args, **named: P.kwargs
    ) -> Array:
        return right(pool, lens, jnp.roll(ids, 1, axis=0), starts, *rest, **named)

    return wrong


def _from_the_pool(right: Call) -> Callable[..., Array]:
    """The operands are ignored."""

    def wrong(
        shape: Shape, *given: object, sinks: Array | None, scales: Array | None, new: Array
    ) -> Array:
        del new
        return right(evolve(shape, fresh=False), *given, sinks=sinks, scales=scales)

    return wrong


def _whole_pages(right: Bounds) -> Bounds:
    """The partly old page is copied whole, over the cells from the operands."""

    def wrong(self: Flow, fetch: Fetch) -> tuple[Array, Array]:
        low, high = right(self, fetch)
        size = self.shape.page_size
        return low, (high + size - 1) // size * size

    return wrong


def _neighbours_cells(
    right: Callable[[Flow, Fetch, Array], None],
) -> Callable[[Flow, Fetch, Array], None]:
    """The operands are read from the next row on."""

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


def _sink(other: Callable[[Shape, Array], Array]) -> Callable[[WithSink], WithSink]:
    """Another sink, from the right one."""

    def change(right: WithSink) -> WithSink:
        return lambda shape, total, sums, score, sink: right(
            shape, total, sums, score, other(shape, sink)
        )

    return change


def _scaled(shape: Shape, sink: Array) -> Array:
    return sink * shape.scale


def _capped(shape: Shape, sink: Array) -> Array:
    assert shape.soft_cap is not None  # it is planted where there is one
    return shape.soft_cap * jnp.tanh(sink / shape.soft_cap)


def _of_the_head_before(_shape: Shape, sink: Array) -> Array:
    return jnp.roll(sink, 1, axis=0)


def _beside_raw_scores(right: WithSink) -> WithSink:
    """A sink beside scores that are not scaled yet."""
    return lambda shape, total, sums, score, sink: right(
        shape, total, sums, score / decode.remaining(shape), sink
    )


def _forgotten(_right: WithSink) -> Callable[..., tuple[Array, Array]]:
    return lambda _shape, total, sums, *_: (total, sums)


def _first_heads(right: Callable[[Shape, Ref, int], Array]) -> Callable[[Shape, Ref, int], Array]:
    return lambda shape, sinks, _head: right(shape, sinks, 0)


def _sink_of_each_fetch(right: Decode[P]) -> Decode[P]:
    """The weight of a sink is added after every fetch."""

    def wrong(self: Flow, /, *given: P.args, **named: P.kwargs) -> None:
        right(self, *given, **named)
        held, sinks = self.decode, self.inputs.sinks[...]
        own = jnp.exp(sinks - held.largest[...] * decode.remaining(self.shape))
        held.total[...] = held.total[...] + own / LANES

    return wrong


def _scales_of_dead_cells(_right: Callable[P, Array]) -> Callable[..., Array]:
    return lambda _shape, scales, *_others: scales


def _other_kind(right: Callable[..., R]) -> Callable[..., R]:
    """Scales of V for those of K."""
    return lambda *given: right(*given[:-1], cells.OF_VALUES)


def _head_before(right: Callable[..., R]) -> Callable[..., R]:
    def wrong(shape: Shape, kv: cells.Held, head: Array, *given: object) -> R:
        return right(shape, kv, jnp.maximum(head - 1, 0), *given)

    return wrong


def _in_order_of_cells(right: Callable[..., R]) -> Callable[..., R]:
    """As if the cells stood in their order in the rows of a head."""

    def wrong(shape: Shape, *given: object) -> R:
        return right(evolve(shape, kv_dtype=jnp.dtype(jnp.float32)), *given)

    return wrong


def _capped_before(right: Callable[..., Array]) -> Callable[..., Array]:
    """A score is scaled when it has been capped."""

    def wrong(shape: Shape, queries: Array, keys: Array, scales: Array | None) -> Array:
        found = right(shape, queries, keys, None)
        return found if scales is None else found * scales

    return wrong


def _no_scales(right: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *given: right(*given[:-1], None)


def _of_older_cells(right: Bounds) -> Bounds:
    """Scales of new cells are not copied."""

    def wrong(self: Flow, fetch: Fetch) -> tuple[Array, Array]:
        low, high = self._stored(fetch)
        first, _ = right(self, fetch)
        cells = self.shape.together * self.shape.page_size
        return first, jnp.where(high > low, (high + cells - 1) // cells, first)

    return wrong


def _in_one_row_of_ids(right: IdPlace) -> IdPlace:
    def wrong(self: Flow, fetch: Fetch, slot: Array, page: Array) -> tuple[Array, Array]:
        return right(self, fetch, slot, page & (LANES - 1))

    return wrong


def _by_their_ends(right: Callable[[Shape, Array], Array]) -> Callable[[Shape, Array], Array]:
    """Pages are a run if the first and the last id are as far from each other as in one."""

    def wrong(shape: Shape, table: Array) -> Array:
        found = right(shape, table)
        ids = jnp.maximum(found, ~found).reshape(-1, shape.together)
        is_run = ids[:, -1] - ids[:, 0] == shape.together - 1
        first = jnp.where(is_run, ~ids[:, 0], ids[:, 0])
        return ids.at[:, 0].set(first).reshape(found.shape)

    return wrong


def _one_step_on(right: Beside) -> Beside:
    """Each step starts the pages of the next one."""
    return lambda self, fetch, starts, step: right(self, fetch, starts, step + 1)


def _twice_the_room(right: Callable[[Flow, Fetch], Array]) -> Callable[[Flow, Fetch], Array]:
    return lambda self, fetch: 2 * right(self, fetch)


def _first_parts(
    right: Callable[[Shape, Array], Array],
) -> Callable[[Shape, Array], Array]:
    """Every part of a page is its first one."""

    def wrong(shape: Shape, table: Array) -> Array:
        parts = shape.pages_per_seq // table.shape[1]
        return right(shape, table) // parts * parts

    return wrong


def _same_number(right: After) -> After:
    return lambda self, fetch: right(self, fetch)._replace(number=fetch.number)


def _first_of_all(_right: Callable[[Flow], Fetch]) -> Callable[[Flow], Fetch]:
    return lambda self: self._begin(self._next_seq(jnp.int32(0)))


def _all_seqs(_right: Callable[[Flow], Array]) -> Callable[[Flow], Array]:
    return lambda self: jnp.int32(self.shape.seqs)


def _whole_block(right: Bounds) -> Callable[[Flow, Fetch], tuple[Array, int]]:
    return lambda self, fetch: (right(self, fetch)[0], self.shape.blocks.q_rows)


def _not_blanked(_right: Blanked) -> Blanked:
    return lambda _shape, held, *_: held


def _first_member(right: Callable[[Array, int], Array]) -> Callable[[Array, int], Array]:
    return lambda words, _member: right(words, 0)


def _new_alone(_right: Callable[P, Array]) -> Callable[..., Array]:
    return lambda _shape, _old, new, *_: new


def _no_parts(_right: Callable[P, Array]) -> Callable[..., Array]:
    return lambda _self, waiting, *_: waiting


def _kept_by_words(right: Blanked) -> Blanked:
    return lambda shape, row, *by: right(shape, row & ~1, *by)


MUTANTS: Final[Mapping[str, Mutant]] = {
    "pages are not waited for": Mutant("no wait", flow.Flow, "_wait_pages", _nothing),
    "queries are not waited for": Mutant("no wait", flow.Flow, "_wait_queries", _nothing),
    "page ids are not waited for": Mutant("no wait", flow.Flow, "_ids_copy", _unwaited),
    "results are not waited for": Mutant("no wait", flow.Flow, "_wait_result", _nothing),
    "results of decoding are not waited for": Mutant(
        "no wait", flow.Flow, "_wait_answer", _nothing
    ),
    "pages in one buffer": Mutant(
        "no double buffering",
        flow.Flow,
        "_copy_pages",
        _one_buffer("pages", _in_first_half),
    ),
    "pages in one buffer, copied at once": Mutant(
        "a race",
        flow.Flow,
        "_copy_pages",
        _one_buffer("pages", _in_first_half),
        mode="eager",
    ),
    "results not waited for, copied at once": Mutant(
        "a race", flow.Flow, "_wait_result", _nothing, mode="eager"
    ),
    "results of decoding not waited for, copied at once": Mutant(
        "a race", flow.Flow, "_wait_answer", _nothing, mode="eager"
    ),
    "page ids in one buffer": Mutant(
        "prefetch into the live buffer",
        flow.Flow,
        "_ids_copy",
        _fetches(number=0),
    ),
    "the number of a fetch is not carried": Mutant(
        "buffer index not carried",
        flow.Flow,
        "_after",
        _same_number,
    ),
    "both cores take the same blocks": Mutant(
        "half of the work left out",
        flow.Flow,
        "_first",
        _first_of_all,
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
        _fetches(item=0),
    ),
    "a page id and one": Mutant("page index plus one", flow.Flow, "_copy_pages", _next_page),
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
        _all_seqs,
    ),
    "results too wide": Mutant(
        "store mask too wide",
        flow.Flow,
        "_rows_of",
        _whole_block,
    ),
    "a cell too many": Mutant("no KV mask at the end", flow.Flow, "_span", _span(0, 1)),
    "a cell too few": Mutant("the last cell is masked", flow.Flow, "_span", _span(0, -1)),
    "the first cell is masked": Mutant("a cell too few", flow.Flow, "_span", _span(1, 0)),
    "sequences past 127": Mutant(
        "the lengths of another sequence",
        flow.Flow,
        "_begin",
        _in_seven_bits,
        sizes=MANY,
        append=True,
    ),
    "one position into the future": Mutant("causal off by one", prefill, "_seen", _seen(by=1)),
    "behind the window in a step without a mask": Mutant(
        "cells that the first query sees alone",
        prefill,
        "_whole",
        _from_the_first,
        sizes=LONG_WINDOW,
    ),
    "not its own position": Mutant("causal off by one", prefill, "_seen", _seen(by=-1)),
    "a window that is longer": Mutant(
        "window off by one",
        kernel,
        "_kernel",
        _shapes(lambda shape: _longer_window(shape, by=1)),
        sizes=WINDOW,
    ),
    "a window that is shorter": Mutant(
        "window off by one",
        kernel,
        "_kernel",
        _shapes(lambda shape: _longer_window(shape, by=-1)),
        sizes=WINDOW,
    ),
    "the largest score starts at 0": Mutant(
        "running maximum not initialised", decode, "LOWEST", lambda _right: 0.0
    ),
    "decoding keeps the largest score": Mutant(
        "running maximum not initialised", decode, "begin", _unreset("largest")
    ),
    "decoding keeps its sums": Mutant("sums not begun anew", decode, "begin", _unreset("sums")),
    "a prefill keeps its total": Mutant("sums not begun anew", prefill, "_set", _unreset("total")),
    "decoding is not rescaled": Mutant("no rescaling", decode, "power", _never_rescaled),
    "a prefill is not rescaled": Mutant("no rescaling", prefill, "power", _never_rescaled),
    "decoding leaves whole steps out": Mutant(
        "the fast path does nothing", decode.Steps, "_turn", _not_added
    ),
    "decoding leaves its last step out": Mutant(
        "the end of a row is not read", decode, "rest", _nothing, sizes=ONES
    ),
    "a few queries see a cell too many": Mutant(
        "no KV mask at the end of a small block", flow.Flow, "_prefill", _longer_for_a_few
    ),
    "a prefill leaves whole steps out": Mutant(
        "the fast path does nothing", prefill, "_step", _only_masked
    ),
    "the end of a long row": Mutant(
        "seen with planned block sizes alone", decode, "by_lane", _two_registers, sizes=PLANNED
    ),
    "steps past the buffers": Mutant(
        "the cells of earlier steps",
        decode.Steps,
        "_start",
        _in_first_buffers,
        sizes=PLANNED,
    ),
    "heads in turn": Mutant("query heads grouped wrongly", decode, "masked", _other_heads),
    "V for K": Mutant("K and V change places", cells, "keys", lambda _right: cells.values),
    "V of dead cells": Mutant("NaN times 0", cells, "blanked", _not_blanked),
    "V of a dead cell in a live one's word": Mutant(
        "NaN times 0",
        cells,
        "_inside",
        _kept_by_words,
        sizes=SCALED,
        append=True,
    ),
    "one of two heads in a word": Mutant(
        "the other head's K and V", cells, "upper", lambda _right: cells.lower
    ),
    "one of two heads in 8 bits": Mutant(
        "the other head's K and V",
        cells,
        "_bytes",
        _first_member,
        sizes=BYTES,
        append=True,
    ),
    "one of four heads in a word": Mutant(
        "the K and V of another head", cells, "_bytes", _first_member, sizes=FOUR
    ),
    "two of four heads in a word": Mutant(
        "the K and V of other heads", cells, "upper", lambda _right: cells.lower, sizes=FOUR
    ),
    "the cells of words in their order": Mutant(
        "a mask for other cells", cells, "place", lambda _right: lambda _shape, index, _count: index
    ),
    "a block of new cells alone": Mutant(
        "old cells are lost beside new ones", cells, "blended", _new_alone, append=True
    ),
    "a block is written before it has come": Mutant(
        "no wait", writing.Work, "_old", _unwaited, append=True
    ),
    "new cells behind the first of a block": Mutant(
        "a part of a block is left out", writing.Work, "part", _no_parts, append=True
    ),
    "no scale": Mutant(
        "scale dropped", kernel, "_kernel", _shapes(lambda shape: evolve(shape, scale=1.0))
    ),
    "no cap": Mutant(
        "soft cap dropped",
        kernel,
        "_kernel",
        _shapes(lambda shape: evolve(shape, soft_cap=None)),
        sizes=CAPPED,
    ),
    "no scale of V": Mutant(
        "scale dropped",
        kernel,
        "_kernel",
        _shapes(lambda shape: evolve(shape, v_scale=1.0)),
        sizes=SCALED,
        append=True,
    ),
    "a new cell one place on": Mutant(
        "written one off", kernel, "write", _one_place_on, append=True
    ),
    "new cells of a large page": Mutant(
        "in another page",
        writing,
        "_kernel",
        _shapes(_at_most_64),
        sizes=LARGE_PAGES,
        append=True,
    ),
    "padding is written": Mutant(
        "padding to cell 0", places, "of", _padding_to_first_cell, sizes=UNGUIDED, append=True
    ),
    "the last new cell is not written": Mutant(
        "a cell too few", places, "of", _last_dropped, sizes=UNGUIDED, append=True
    ),
    "new cells in another's pages": Mutant(
        "the row of the sequence before", places, "of", _row_before, sizes=UNGUIDED, append=True
    ),
    "new cells are read from the pool": Mutant(
        "not from the operands", kernel, "_call", _from_the_pool, append=True
    ),
    "new cells are not waited for": Mutant(
        "no wait",
        writing,
        "copy",
        _unwaited,
        append=True,
    ),
    "a page over new cells": Mutant(
        "both are copied there", flow.Flow, "_stored", _whole_pages, append=True
    ),
    "new cells of the neighbour": Mutant(
        "operands one row off", flow.Flow, "_start_fresh", _neighbours_cells, append=True
    ),
    "new cells one place on in the operand": Mutant(
        "copies begin inside a tile", fresh, "place", _one_on, sizes=MANY, append=True
    ),
    "runs of pages by their ends": Mutant(
        "other pages are copied between them", kernel, "_ids", _by_their_ends
    ),
    "pages beside a step are those of the next": Mutant(
        "pages left out", flow.Flow, "_start_beside", _one_step_on, sizes=ONES
    ),
    "more pages are left than there are steps": Mutant(
        "pages left out", flow.Flow, "_room", _twice_the_room, sizes=ONES
    ),
    "page ids past the first 128 of a fetch": Mutant(
        "one row of ids alone", flow.Flow, "_id_place", _in_one_row_of_ids, sizes=ONES
    ),
    "the parts of a page": Mutant(
        "ids of pages for those of parts",
        kernel,
        "_ids",
        _first_parts,
        sizes=TWELVE,
        append=True,
    ),
    "float16 queries are narrowed": Mutant(
        "bits of the queries are lost",
        kernel,
        "WIDENED",
        lambda _right: {"float16": "bfloat16"},
        sizes=TWELVE,
        append=True,
    ),
    "blocks are larger than a page": Mutant(
        "written past the end of a page",
        Shape,
        "block",
        lambda _right: vars(Shape)["unit"],
        sizes=ONES_CAPPED,
        append=True,
    ),
    "decoding scales the sink": Mutant(
        "scaled twice", decode, "with_sink", _sink(_scaled), sizes=SINKS
    ),
    "a prefill scales the sink": Mutant(
        "scaled twice", prefill, "with_sink", _sink(_scaled), sizes=SINKS
    ),
    "decoding caps the sink": Mutant(
        "a cap that is of scores alone",
        decode,
        "with_sink",
        _sink(_capped),
        sizes=ONES_CAPPED,
        append=True,
    ),
    "decoding takes the sink beside raw scores": Mutant(
        "scale forgotten", decode, "with_sink", _beside_raw_scores, sizes=SINKS
    ),
    "a prefill takes the sink beside raw scores": Mutant(
        "scale forgotten", prefill, "with_sink", _beside_raw_scores, sizes=SINKS
    ),
    "decoding takes the sink of another head": Mutant(
        "heads one off", decode, "with_sink", _sink(_of_the_head_before), sizes=SINKS
    ),
    "a prefill takes the sinks of the first heads": Mutant(
        "the sinks of another group", prefill, "sinks_of", _first_heads, sizes=SINKS
    ),
    "decoding without sinks": Mutant(
        "sinks in one of two paths", decode, "with_sink", _forgotten, sizes=SINKS
    ),
    "a prefill without sinks": Mutant(
        "sinks in one of two paths", prefill, "with_sink", _forgotten, sizes=SINKS
    ),
    "scales are not waited for": Mutant(
        "no wait",
        flow.Flow,
        "_wait_scales",
        _nothing,
        sizes=OF_CELLS,
        append=True,
    ),
    "scales in one buffer": Mutant(
        "buffer index constant",
        flow.Flow,
        "_copy_scales",
        _one_buffer("scales", _in_first_half),
        sizes=OF_CELLS,
        append=True,
    ),
    "scales of new cells are not copied": Mutant(
        "older cells alone",
        flow.Flow,
        "_scale_blocks",
        _of_older_cells,
        sizes=OF_CELLS,
        append=True,
    ),
    "scales of the page behind": Mutant(
        "page index plus one",
        flow.Flow,
        "_copy_scales",
        _next_page,
        sizes=OF_CELLS,
        append=True,
    ),
    "scales of dead cells": Mutant(
        "NaN times 0", cells, "only_visible", _scales_of_dead_cells, sizes=OF_CELLS_CAPPED
    ),
    "decoding takes scales of V for K": Mutant(
        "K and V change places",
        cells,
        "scales",
        _other_kind,
        sizes=OF_CELLS,
        append=True,
    ),
    "a prefill takes scales of V for K": Mutant(
        "K and V change places",
        cells,
        "scales_of_head",
        _other_kind,
        sizes=OF_CELLS,
        append=True,
    ),
    "a prefill takes scales of another head": Mutant(
        "heads one off",
        cells,
        "scales_of_head",
        _head_before,
        sizes=OF_CELLS,
        append=True,
    ),
    "a prefill takes scales in the order of cells": Mutant(
        "another order than that of K",
        cells,
        "scales_of_head",
        _in_order_of_cells,
        sizes=OF_CELLS,
        append=True,
    ),
    "registers of scales that follow each other": Mutant(
        "those between are left out",
        cells,
        "_numbers",
        lambda right: lambda needed: right(list(range(needed[0], needed[0] + len(needed)))),
        sizes=OF_CELLS,
        append=True,
    ),
    "decoding scales what is capped": Mutant(
        "a scale behind the cap", decode, "scores", _capped_before, sizes=OF_CELLS_CAPPED
    ),
    "a prefill scales what is capped": Mutant(
        "a scale behind the cap", prefill, "scores", _capped_before, sizes=OF_CELLS_CAPPED
    ),
    "decoding without scales of V": Mutant(
        "scales in one of two paths",
        decode,
        "weigh",
        _no_scales,
        sizes=OF_CELLS,
        append=True,
    ),
    "a prefill without scales of V": Mutant(
        "scales in one of two paths",
        prefill,
        "weigh",
        _no_scales,
        sizes=OF_CELLS,
        append=True,
    ),
    "a sink for each fetch": Mutant(
        "added several times", flow.Flow, "_decode", _sink_of_each_fetch, sizes=SINKS
    ),
}
"""All seeded bugs, by name."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The kernel with this bug inside the block; nothing may be traced before it."""
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
