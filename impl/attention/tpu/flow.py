"""The schedule of the kernel: every fetch of every block of queries, with copies two ahead.

A fetch is some pages of one sequence for one block of its queries; the fetches of all sequences
form one list. While one is worked on, the pages of the next are being copied, and the page ids of
the one after that. Copies are started before it; where there are many small pages and it is
decoded, the scalar unit starts most of them beside its steps. Only pages that hold visible cells
are copied, and each fetch is waited for as a whole. Tables lie in main memory, so that they may be
of any size. Two cores take turns at the blocks of queries: each has its own list, and they share
only their inputs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from attrs import evolve
from jax import Array, lax
from jax.experimental import pallas as pl

from impl.attention.tpu import decode, fresh, prefill
from impl.attention.tpu.arithmetic import divide, parity, quotient, rounded_up
from impl.attention.tpu.buffers import Buffers, Inputs
from impl.attention.tpu.cells import Held
from impl.attention.tpu.copies import copy, in_powers, part
from impl.attention.tpu.decode import Span
from impl.attention.tpu.shape import LANES, Shape

Copying = Callable[[Array, Array, Array, int], None]
"""Starts a copy for some pages: of the id of the first, the slot, their place, and their number."""

FEW: Final = 8
"""Most queries of a sequence that has a small block of its own, such as drafts to be verified."""


class Fetch(NamedTuple):
    """A fetch: its sequence, block of queries, index in the sequence, and number in the list.

    q_len, kv_len: of the sequence. item: the number of its block of queries in the list. All i32[].
    """

    seq: Array
    q_len: Array
    kv_len: Array
    block: Array
    fetch: Array
    number: Array
    item: Array


class Starts(NamedTuple):
    """When the pages of a fetch are copied that are copied whole. All i32[].

    first to last, of which those from `beside` on are started by the fetch before it, beside its
    steps. `beside` is a multiple of `Shape.together`, and may be past the last.
    """

    first: Array
    beside: Array
    last: Array


class Flow:
    """One run of the kernel."""

    def __init__(
        self,
        shape: Shape,
        inputs: Inputs,
        out: Any,
        buffers: Buffers,
        scratch: tuple[decode.Scratch, prefill.Scratch],
    ) -> None:
        self.shape, self.inputs, self.out, self.buffers = shape, inputs, out, buffers
        self.decode, self.prefill = scratch
        self.few = evolve(shape, blocks=evolve(shape.blocks, q_rows=FEW))

    def run(self) -> None:
        """Work through the list of fetches."""
        for slot in range(2):
            self.buffers.stored[slot] = self.buffers.answered[slot] = jnp.int32(0)
        first = self._first()
        self._start_ids(first)
        self._wait_ids(first)
        self._start_pages(first, self._starts(first, None))
        second = self._after(first)
        self._start_ids(second)

        def body(carry: tuple[Fetch, Fetch]) -> tuple[Fetch, Fetch]:
            now, ahead = carry
            later = self._after(ahead)
            self._wait_ids(ahead)
            starts = self._starts(ahead, now)
            self._start_pages(ahead, starts)
            self._start_ids(later)
            self._work(now, ahead, starts)
            return ahead, later

        lax.while_loop(lambda carry: self._exists(carry[0]), body, (first, second))
        for slot in range(2):
            self._wait_answer(slot)
            self._wait_result(slot)

    def _exists(self, fetch: Fetch) -> Array:
        found: Array = fetch.seq < self._seqs()
        return found

    def _seqs(self) -> Array:
        return jnp.minimum(self.inputs.num_seqs[0], self.shape.seqs)

    def _next_seq(self, seq: Array) -> Array:
        """The first sequence from this one on that has queries and cells."""

        def empty(seq: Array) -> Array:
            at = jnp.minimum(seq, self.shape.seqs - 1)
            nothing = (self._q_len(at) <= 0) | (self.inputs.kv_lens[at] <= 0)
            skipped: Array = (seq < self._seqs()) & nothing
            return skipped

        found: Array = lax.while_loop(empty, lambda seq: seq + 1, seq)
        return found

    def _q_len(self, seq: Array) -> Array:
        length: Array = self.inputs.cu_q_lens[seq + 1] - self.inputs.cu_q_lens[seq]
        return length

    def _first(self) -> Fetch:
        """The first fetch of this core's list: that of the block with the number of the core."""
        first = self._begin(self._next_seq(jnp.int32(0)))
        if self.shape.cores == 1:
            return first
        core = pl.program_id(0)
        later: Fetch = lax.fori_loop(0, core, lambda _, one: self._next_block(one), first)
        return later

    def _begin(self, seq: Array) -> Fetch:
        """The first fetch of a sequence: queries at negative positions see nothing."""
        at = jnp.minimum(seq, self.shape.seqs - 1)
        q_len, kv_len = self._q_len(at), self.inputs.kv_lens[at]
        early = jnp.maximum(q_len - kv_len, 0)
        first = Fetch(seq, q_len, kv_len, *[jnp.int32(0)] * 4)
        return self._first_of(first, quotient(early, self.shape.blocks.q_rows))

    def _first_of(self, fetch: Fetch, block: Array) -> Fetch:
        """The first fetch of another block of the same sequence."""
        start = fetch._replace(block=block)
        return start._replace(fetch=quotient(self._visible(start)[0], self.shape.fetch_cells))

    def _after(self, fetch: Fetch) -> Fetch:
        """The next fetch of the list; past its end it stays there."""
        _, high = self._visible(fetch)
        same = (fetch.fetch + 1) * self.shape.fetch_cells < high
        block = fetch
        for _ in range(self.shape.cores):
            block = self._next_block(block, unless=same)
        onward = fetch._replace(fetch=fetch.fetch + 1, number=fetch.number + 1)
        return _either(same, onward, block._replace(number=fetch.number + 1, item=fetch.item + 1))

    def _next_block(self, fetch: Fetch, *, unless: Array | bool = False) -> Fetch:
        """The first fetch of the next block of queries, of any core. unless: none is needed."""
        blocks = rounded_up(fetch.q_len, self.shape.blocks.q_rows)
        more = fetch.block + 1 < blocks
        following = self._next_seq(jnp.where(unless | more, self._seqs(), fetch.seq + 1))
        return _either(more, self._first_of(fetch, fetch.block + 1), self._begin(following))

    def _visible(self, fetch: Fetch) -> tuple[Array, Array]:
        """The cells of the sequence that its block of queries may see: from, to."""
        rows = self.shape.blocks.q_rows
        first = fetch.kv_len - fetch.q_len + fetch.block * rows
        high = jnp.minimum(jnp.minimum(fetch.kv_len, first + rows), self.shape.capacity)
        if self.shape.window is None:
            return jnp.int32(0), high
        # A length past the table, which is a misuse, must not leave a negative number of cells.
        return jnp.clip(first - self.shape.window + 1, 0, jnp.maximum(high - 1, 0)), high

    def _opens(self, fetch: Fetch) -> Array:
        """Whether the fetch is the first of its block of queries."""
        low, _ = self._visible(fetch)
        first: Array = fetch.fetch == quotient(low, self.shape.fetch_cells)
        return first

    def _span(self, fetch: Fetch) -> tuple[Array, Array]:
        """The visible cells of this fetch, from its own start."""
        low, high = self._visible(fetch)
        start, size = fetch.fetch * self.shape.fetch_cells, self.shape.fetch_cells
        return jnp.maximum(low - start, 0), jnp.minimum(high - start, size)

    def _stored(self, fetch: Fetch) -> tuple[Array, Array]:
        """The visible cells of this fetch that are read from the pool; 0, 0 if there are none."""
        low, high = self._span(fetch)
        if not self.shape.fresh:
            return low, high
        end = self._first_fresh(fetch)
        some = end > low
        return jnp.where(some, low, 0), jnp.where(some, jnp.minimum(end, high), 0)

    def _first_fresh(self, fetch: Fetch) -> Array:
        """The first cell of the queries' own tokens, from the start of the fetch."""
        return fetch.kv_len - fetch.q_len - fetch.fetch * self.shape.fetch_cells

    def _fresh(self, fetch: Fetch) -> tuple[Array, Array]:
        """The visible cells of this fetch that are given as operands: the first, how many."""
        low, high = self._span(fetch)
        begin = self._first_fresh(fetch)
        first = jnp.maximum(low, begin)
        left = self.shape.tokens - self.inputs.cu_q_lens[fetch.seq] - (first - begin)
        return first, jnp.clip(high - first, 0, jnp.maximum(left, 0))

    def _pages(self, fetch: Fetch) -> tuple[Array, Array]:
        """The pages of the fetch that are copied whole: from, to.

        With operands, only the older cells of the last page are copied; see `_rest`.
        """
        low, high = self._stored(fetch)
        size = self.shape.page_size
        end = quotient(high, size) if self.shape.fresh else rounded_up(high, size)
        return quotient(low, size), end

    def _rest(self, fetch: Fetch) -> tuple[Array, Array]:
        """The page of the fetch that is not copied whole, and how many of its cells are copied."""
        _, high = self._stored(fetch)
        return divide(high, self.shape.page_size)

    def _start_ids(self, fetch: Fetch) -> None:
        @pl.when(self._exists(fetch))
        def _() -> None:
            self._ids_copy(fetch).start()

    def _wait_ids(self, fetch: Fetch) -> None:
        @pl.when(self._exists(fetch))
        def _() -> None:
            self._ids_copy(fetch).wait()

    def _ids_copy(self, fetch: Fetch) -> Any:
        shape, slot = self.shape, parity(fetch.number)
        page = fetch.fetch * shape.blocks.kv_pages
        row = fetch.seq * shape.table_rows + quotient(page, LANES)
        return copy(
            self.inputs.ids.at[pl.ds(row, shape.id_rows)],
            self.buffers.ids.at[pl.ds(slot * shape.id_rows, shape.id_rows)],
            self.buffers.ids_here.at[slot],
        )

    def _starts(self, fetch: Fetch, before: Fetch | None) -> Starts:
        """Which pages the fetch before it can start: so many in each step of decoding.

        The first block of pages is not among them, which keeps memory busy until these steps begin;
        and none is if it is a run, since runs need few copies.
        """
        together = self.shape.together
        first, last = self._pages(fetch)
        begin = rounded_up(first, together)
        left = rounded_up(last, together) - begin
        if before is not None and self.shape.beside:
            room = jnp.where(self._is_run(fetch, begin * together), 0, self._room(before))
            left = jnp.maximum(left - quotient(room, together), 1)
        beside = (begin + left) * together
        return Starts(first, beside, jnp.where(self._exists(fetch), last, 0))

    def _is_run(self, fetch: Fetch, page: Array) -> Array:
        """Whether a run begins with this page, which may be past the last; its ids are here."""

        def first() -> Array:
            row, lane = self._id_place(fetch, parity(fetch.number), page)
            named: Array = self.buffers.ids[row, 0, lane]
            return named

        is_there = self._exists(fetch) & (page < self.shape.blocks.kv_pages)
        found: Array = lax.cond(is_there, first, lambda: jnp.int32(0)) < 0
        return found

    def _room(self, fetch: Fetch) -> Array:
        """How many starts of copies there is time for, beside the steps of this fetch."""
        steps = decode.cut(self.shape, self._in_buffer(fetch))
        single = self._is_single(fetch)
        return jnp.where(single, steps.end - steps.first, 0) * self.shape.beside

    def _start_pages(self, fetch: Fetch, starts: Starts) -> None:
        """Copy pages that are not started later; and the queries, if this is their first fetch."""

        @pl.when(self._exists(fetch))
        def _() -> None:
            slot, together = parity(fetch.number), self.shape.together
            last = jnp.minimum(starts.beside, starts.last)
            begin = starts.first

            def alone(page: Array, _: None) -> None:
                self._start_block(self._copy_pages, fetch, slot, page, 1)

            if self.shape.window is not None:
                with jax.named_scope("before"):
                    begin = rounded_up(begin, together) * together
                    lax.fori_loop(starts.first, jnp.minimum(begin, last), alone, None)
            end = quotient(last, together)
            with jax.named_scope("together"):
                lax.fori_loop(
                    quotient(begin, together),
                    end,
                    lambda block, _: self._start_together(
                        self._copy_pages, fetch, slot, block * together
                    ),
                    None,
                )
            with jax.named_scope("alone"):
                lax.fori_loop(jnp.maximum(end * together, begin), last, alone, None)
            if self.shape.scales:
                self._start_scales(fetch, slot)
            if self.shape.fresh:
                self._start_rest(fetch, slot)
                self._start_fresh(fetch, slot)
            pl.when(self._opens(fetch))(lambda: self._start_queries(fetch))

    def _start_beside(self, fetch: Fetch, starts: Starts, step: Array) -> None:
        """Copy the pages that are left for this step of the fetch before."""
        begin = starts.beside + step * self.shape.beside
        size = min(self.shape.beside, self.shape.together)
        most = self.shape.blocks.kv_pages - size
        for done in range(0, self.shape.beside, size):
            left, page = starts.last - begin - done, jnp.minimum(begin + done, most)
            slot = parity(fetch.number)
            self._start_block(self._copy_pages, fetch, slot, page, size, left=left)

    def _start_together(self, act: Copying, fetch: Fetch, slot: Array, page: Array) -> None:
        """Copy a block of pages, or of their scales; at once if they follow each other."""
        count = self.shape.together
        if not self.shape.runs:
            self._start_block(act, fetch, slot, page, count)
            return
        row, lane = self._id_place(fetch, slot, page)
        named = self.buffers.ids[row, 0, lane]

        @pl.when(named < 0)
        def _() -> None:
            act(~named, slot, page, count)

        pl.when(named >= 0)(lambda: self._start_block(act, fetch, slot, page, count))

    def _start_block(
        self,
        act: Copying,
        fetch: Fetch,
        slot: Array,
        page: Array,
        count: int,
        *,
        left: Array | None = None,
    ) -> None:
        """Copy several pages, whose ids are in one row. left: how many there are; None for all.

        Each has a branch of its own, of the copy alone: so the compiler predicates it and does not
        jump. Ids are read in any case, and page is then one that the fetch could have.
        """
        row, lane = self._id_place(fetch, slot, page)
        for index in range(count):
            named = self.buffers.ids[row, 0, lane + index]
            if index == 0 and self.shape.runs:
                named = jnp.maximum(named, ~named)
            start = partial(act, named, slot, page + index, 1)
            if left is None:
                start()
            else:
                pl.when(left > index)(start)

    def _copy_pages(self, named: Array, slot: Array, page: Array, count: int) -> None:
        """Copy pages that follow each other. named: the id of the first."""
        shape = self.shape
        held = slot * shape.blocks.kv_pages + page
        tiles, rest = divmod(shape.page_rows, shape.tile)
        if rest:  # a page is less than a tile, and the pool has an axis of pages instead of tiles
            assert count == 1
            source = self.inputs.pool.at[named]
            target = part(self.buffers.pages, held * shape.page_rows, shape.page_rows)
        else:  # tiles are counted, so that an address is a product, without further arithmetic
            source = self.inputs.pool.at[pl.ds(named * tiles, count * tiles)]
            target = self.buffers.pages.at[pl.ds(held * tiles, count * tiles)]
        copy(source, target, self.buffers.pages_here.at[slot]).start()

    def _start_scales(self, fetch: Fetch, slot: Array) -> None:
        """Copy the scales of all pages with visible cells, new ones too.

        Whole blocks are copied, of which every id is in range: scales that nobody needs do no harm.
        """
        together = self.shape.together
        with jax.named_scope("scales"):
            lax.fori_loop(
                *self._scale_blocks(fetch),
                lambda block, _: self._start_together(
                    self._copy_scales, fetch, slot, block * together
                ),
                None,
            )

    def _scale_blocks(self, fetch: Fetch) -> tuple[Array, Array]:
        """The blocks of pages of which scales are copied: from, to."""
        low, high = self._span(fetch)
        cells = self.shape.together * self.shape.page_size
        return quotient(low, cells), rounded_up(high, cells)

    def _copy_scales(self, named: Array, slot: Array, page: Array, count: int) -> None:
        """Copy scales of pages that follow each other. named: the id of the first."""
        each = self.shape.page_rows // LANES
        held = slot * self.shape.blocks.kv_pages + page
        copy(
            self.inputs.scales.at[pl.ds(named * each, count * each)],
            self.buffers.scales.at[pl.ds(held * each, count * each)],
            self.buffers.scales_here.at[slot],
        ).start()

    def _wait_scales(self, fetch: Fetch) -> None:
        """Wait as `_wait_pages` does."""
        shape, slot = self.shape, parity(fetch.number)
        first, last = self._scale_blocks(fetch)
        each = shape.together * shape.page_rows // LANES

        def wait(_done: Array, size: int) -> None:
            held = self.buffers.scales.at[pl.ds(0, size * each)]
            copy(held, held, self.buffers.scales_here.at[slot]).wait()

        with jax.named_scope("scales"):
            in_powers(last - first, shape.blocks.kv_pages // shape.together, wait)

    def _id_place(self, fetch: Fetch, slot: Array, page: Array) -> tuple[Array, Array]:
        """The row and the lane of the id of a page in the buffer."""
        shape = self.shape
        _, before = divide(fetch.fetch * shape.blocks.kv_pages, LANES)
        row, lane = divide(before + page, LANES)
        return slot * shape.id_rows + row, lane

    def _page_id(self, fetch: Fetch, slot: Array, page: Array) -> Array:
        row, lane = self._id_place(fetch, slot, page)
        named: Array = self.buffers.ids[row, 0, lane]
        return jnp.maximum(named, ~named) if self.shape.runs else named

    def _cells(self, held: Any, cell: Array, count: int) -> Any:
        """The rows of `count` cells, which begin at a multiple of it or of `Shape.unit`."""
        return part(held, cell * self.shape.rows, count * self.shape.rows)

    def _start_rest(self, fetch: Fetch, slot: Array) -> None:
        """Copy the beginning of the last page: later cells are dead, or will be overwritten."""
        shape = self.shape
        page, count = self._rest(fetch)

        @pl.when(count > 0)
        def _() -> None:
            named = self._page_id(fetch, slot, page)
            begin = slot * shape.fetch_cells + page * shape.page_size

            def start(done: Array, size: int) -> None:
                copy(
                    self._cells(self.inputs.pool, named * shape.page_size + done, size),
                    self._cells(self.buffers.pages, begin + done, size),
                    self.buffers.pages_here.at[slot],
                ).start()

            in_powers(count, shape.page_size // 2, start)

    def _start_fresh(self, fetch: Fetch, slot: Array) -> None:
        """Copy the cells of the queries' own tokens from the operand.

        One by one until they begin at a multiple of the unit, and then as many as there are.
        """
        shape, seq = self.shape, fetch.seq
        first, count = self._fresh(fetch)
        begin, end = self.inputs.cu_q_lens[seq], self.inputs.cu_q_lens[seq + 1]
        token = begin + first - self._first_fresh(fetch)
        held = fresh.place(shape, token, seq, fetch.kv_len, end)

        def start(done: Array, size: int) -> None:
            copy(
                self._cells(self.inputs.fresh, held + done, size),
                self._cells(self.buffers.pages, slot * shape.fetch_cells + first + done, size),
                self.buffers.pages_here.at[slot],
            ).start()

        single = jnp.minimum(-first & (shape.unit - 1), count)
        if shape.unit > 1:
            lax.fori_loop(0, single, lambda index, _: start(index, 1), None)
        in_powers(count - single, shape.fetch_cells, lambda done, size: start(single + done, size))

    def _wait_pages(self, fetch: Fetch) -> None:
        """One wait for a whole fetch, and one for each power of two otherwise."""
        slot = parity(fetch.number)
        first, last = self._pages(fetch)
        count, cells = last - first, self.shape.page_size
        if self.shape.fresh:
            count = count * cells + self._rest(fetch)[1] + self._fresh(fetch)[1]
            cells = 1

        def wait(_done: Array, size: int) -> None:
            held = part(self.buffers.pages, jnp.int32(0), size * cells * self.shape.rows)
            copy(held, held, self.buffers.pages_here.at[slot]).wait()

        in_powers(count, self.shape.fetch_cells // cells, wait)

    def _rows_of(self, fetch: Fetch) -> tuple[Array, Array]:
        """The first row in q of the queries of this block, and their number; none past its end."""
        done, tokens = fetch.block * self.shape.blocks.q_rows, self.shape.tokens
        first = jnp.clip(self.inputs.cu_q_lens[fetch.seq] + done, 0, tokens)
        count = jnp.minimum(fetch.q_len - done, self.shape.blocks.q_rows)
        return first, jnp.minimum(count, tokens - first)

    def _start_queries(self, fetch: Fetch) -> None:
        """Copy the queries of a block; a single one is found at once."""
        single = self._is_single(fetch)
        pl.when(single)(lambda: self._start_query(fetch))
        pl.when(~single)(lambda: self._start_rows(fetch, most=self.shape.blocks.q_rows))

    def _start_query(self, fetch: Fetch) -> None:
        self._start_rows(fetch, most=1)

    def _start_rows(self, fetch: Fetch, *, most: int) -> None:
        first, count = self._rows_of(fetch)
        slot = parity(fetch.item)

        def start(done: Array, size: int) -> None:
            copy(
                self.inputs.queries.at[pl.ds(first + done, size)],
                self.buffers.queries.at[slot, pl.ds(done, size)],
                self.buffers.queries_here.at[slot],
            ).start()

        in_powers(count, most, start)

    def _is_single(self, fetch: Fetch) -> Array:
        """Whether the sequence has one query, and is decoded."""
        single: Array = fetch.q_len == 1
        return single

    def _wait_query(self, fetch: Fetch) -> None:
        self._wait_rows(self.buffers.queries, *self._arriving(fetch), most=1)

    def _wait_queries(self, fetch: Fetch, *, most: int) -> None:
        self._wait_rows(self.buffers.queries, *self._arriving(fetch), most=most)

    def _arriving(self, fetch: Fetch) -> tuple[Array, Any]:
        """How many queries of a block there are, and the semaphore of their copies."""
        _, count = self._rows_of(fetch)
        return count, self.buffers.queries_here.at[parity(fetch.item)]

    def _wait_rows(self, held: Any, count: Array, semaphore: Any, *, most: int) -> None:
        def wait(_done: Array, size: int) -> None:
            part = held.at[0, pl.ds(0, size)]
            copy(part, part, semaphore).wait()

        in_powers(count, most, wait)

    def _work(self, fetch: Fetch, ahead: Fetch, starts: Starts) -> None:
        """Wait for the copies of a fetch, use them, and store the results of a block at its end.

        ahead, starts: the next fetch, and which of its pages are left for the steps of this one.
        """
        _, high = self._visible(fetch)
        opens = self._opens(fetch)
        closes = (fetch.fetch + 1) * self.shape.fetch_cells >= high
        single, few = self._is_single(fetch), fetch.q_len <= FEW
        self._wait_pages(fetch)
        if self.shape.scales:
            self._wait_scales(fetch)
        pl.when(single)(lambda: self._decode(fetch, opens, closes, ahead, starts))
        pl.when(~single & few)(lambda: self._prefill(self.few, fetch, opens, closes))
        pl.when(~few)(lambda: self._prefill(self.shape, fetch, opens, closes))

    def _held(self) -> Held:
        return Held(self.buffers.pages, self.buffers.scales)

    def _in_buffer(self, fetch: Fetch) -> Span:
        start = parity(fetch.number) * self.shape.fetch_cells
        return Span(start, *self._span(fetch))

    def _decode(
        self, fetch: Fetch, opens: Array, closes: Array, ahead: Fetch, starts: Starts
    ) -> None:
        shape, slot = self.shape, parity(fetch.item)

        @pl.when(opens)
        def _() -> None:
            self._wait_query(fetch)
            decode.begin(self.decode)

        queries = self.buffers.queries[slot, 0].astype(shape.compute)
        work = decode.Fetched(shape, self.decode, self._held(), queries, self._in_buffer(fetch))
        if shape.beside:
            left = starts.beside < starts.last
            pl.when(left)(lambda: self._absorb_and_start(work, ahead, starts))
            pl.when(~left)(lambda: decode.absorb(work))
        else:
            decode.absorb(work)
        decode.rest(work)

        @pl.when(closes)
        def _() -> None:
            self._wait_answer(slot)
            found = decode.result(shape, self.decode, self.inputs.sinks) * shape.v_scale
            held = self.buffers.answers
            held[slot, 0] = found.astype(held.dtype)
            first, count = self._rows_of(fetch)
            self._store(held, slot, first, count, self.buffers.answers_gone, most=1)
            self.buffers.answered[slot] = count

    def _absorb_and_start(self, work: decode.Fetched, ahead: Fetch, starts: Starts) -> None:
        decode.absorb(work, partial(self._start_beside, ahead, starts))

    def _prefill(self, shape: Shape, fetch: Fetch, opens: Array, closes: Array) -> None:
        """Attend with a block of queries. shape: that of the kernel, or one with smaller blocks."""
        slot, size = parity(fetch.item), shape.blocks.q_rows
        scratch = self.prefill.of(shape.group * size)

        position = fetch.kv_len - fetch.q_len
        position += fetch.block * size - fetch.fetch * shape.fetch_cells
        span = self._in_buffer(fetch)

        @pl.when(opens)
        def _() -> None:
            self._wait_queries(fetch, most=size)
            block = self.buffers.queries[slot, :size]
            prefill.open_with(shape, scratch, block, self._held(), position, span)

        prefill.absorb(shape, scratch, self._held(), position, span, opens)

        @pl.when(closes)
        def _() -> None:
            self._wait_result(slot)
            held = self.buffers.results
            prefill.result(shape, scratch, self.inputs.sinks, held.at[slot, pl.ds(0, size)])
            first, count = self._rows_of(fetch)
            self._store(held, slot, first, count, self.buffers.results_gone, most=size)
            self.buffers.stored[slot] = count

    def _store(
        self, held: Any, slot: Array, first: Array, count: Array, gone: Any, *, most: int
    ) -> None:
        """Copy the results of a block out. most: how many it can have."""

        def start(done: Array, size: int) -> None:
            copy(
                held.at[slot, pl.ds(done, size)],
                self.out.at[pl.ds(first + done, size)],
                gone.at[slot],
            ).start()

        in_powers(count, most, start)

    def _wait_answer(self, slot: Any) -> None:
        """Wait until the last result of decoding from this buffer is copied out."""
        count, gone = self.buffers.answered[slot], self.buffers.answers_gone.at[slot]
        self._wait_rows(self.buffers.answers, count, gone, most=1)
        self.buffers.answered[slot] = jnp.int32(0)

    def _wait_result(self, slot: Any) -> None:
        """Wait until the last results of a prefill from this buffer are copied out."""
        count, gone = self.buffers.stored[slot], self.buffers.results_gone.at[slot]
        self._wait_rows(self.buffers.results, count, gone, most=self.shape.blocks.q_rows)
        self.buffers.stored[slot] = jnp.int32(0)


def _either(first: Array, one: Fetch, other: Fetch) -> Fetch:
    return Fetch(*(jnp.where(first, *both) for both in zip(one, other, strict=True)))
