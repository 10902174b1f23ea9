"""The schedule of the kernel: every fetch of every block of queries, with copies two ahead.

A fetch is some pages of one sequence for one block of its queries; the fetches of all sequences
form one list. While one is worked on, the pages of the next are being copied, and the page ids of
the one after that. Only pages that hold visible cells are copied, and each fetch is waited for as a
whole. Tables lie in main memory, so that they may be of any size. Two cores take turns at the
blocks of queries: each has its own list, and they share only their inputs.
"""

from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from impl.attention.tpu import decode, fresh, prefill
from impl.attention.tpu.arithmetic import divide, parity, quotient, rounded_up
from impl.attention.tpu.buffers import Buffers, Inputs
from impl.attention.tpu.copies import copy, in_powers
from impl.attention.tpu.decode import Span
from impl.attention.tpu.shape import LANES, Shape

TOGETHER: Final = 8
"""Copies of pages whose starts overlap: each waits for its page id."""


class Fetch(NamedTuple):
    """A fetch: its sequence, block of queries, index in the sequence, and number in the list.

    item: the number of its block of queries in the list. All i32[].
    """

    seq: Array
    block: Array
    fetch: Array
    number: Array
    item: Array


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

    def run(self) -> None:
        """Work through the list of fetches."""
        self.buffers.stored[0], self.buffers.stored[1] = jnp.int32(0), jnp.int32(0)
        first = self._first()
        self._start_ids(first)
        self._start_pages(first)
        second = self._after(first)
        self._start_ids(second)

        def body(carry: tuple[Fetch, Fetch]) -> tuple[Fetch, Fetch]:
            now, ahead = carry
            later = self._after(ahead)
            self._start_pages(ahead)
            self._start_ids(later)
            self._work(now)
            return ahead, later

        lax.while_loop(lambda carry: self._exists(carry[0]), body, (first, second))
        for slot in range(2):
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
        early = jnp.maximum(self._q_len(at) - self.inputs.kv_lens[at], 0)
        return self._first_of(seq, quotient(early, self.shape.blocks.q_rows))

    def _first_of(self, seq: Array, block: Array) -> Fetch:
        start = Fetch(seq, block, *[jnp.int32(0)] * 3)
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
        at = jnp.minimum(fetch.seq, self.shape.seqs - 1)
        blocks = rounded_up(self._q_len(at), self.shape.blocks.q_rows)
        more = fetch.block + 1 < blocks
        following = self._next_seq(jnp.where(unless | more, self._seqs(), fetch.seq + 1))
        return _either(more, self._first_of(fetch.seq, fetch.block + 1), self._begin(following))

    def _visible(self, fetch: Fetch) -> tuple[Array, Array]:
        """The cells of the sequence that its block of queries may see: from, to."""
        at = jnp.minimum(fetch.seq, self.shape.seqs - 1)
        kv_len, rows = self.inputs.kv_lens[at], self.shape.blocks.q_rows
        first = kv_len - self._q_len(at) + fetch.block * rows
        high = jnp.minimum(jnp.minimum(kv_len, first + rows), self.shape.capacity)
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
        before: Array = self.inputs.kv_lens[fetch.seq] - self._q_len(fetch.seq)
        return before - fetch.fetch * self.shape.fetch_cells

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

    def _ids_copy(self, fetch: Fetch) -> Any:
        shape, slot = self.shape, parity(fetch.number)
        page = fetch.fetch * shape.blocks.kv_pages
        row = fetch.seq * shape.table_rows + quotient(page, LANES)
        return copy(
            self.inputs.ids.at[pl.ds(row, shape.id_rows)],
            self.buffers.ids.at[pl.ds(slot * shape.id_rows, shape.id_rows)],
            self.buffers.ids_here.at[slot],
        )

    def _start_pages(self, fetch: Fetch) -> None:
        """Copy the pages; and the queries, if this is their first fetch."""

        @pl.when(self._exists(fetch))
        def _() -> None:
            self._ids_copy(fetch).wait()
            slot = parity(fetch.number)
            first, last = self._pages(fetch)
            several = quotient(last - first, TOGETHER)
            done = first + several * TOGETHER

            def start(group: Array, _: None) -> None:
                for page in range(TOGETHER):
                    self._start_page(fetch, slot, first + group * TOGETHER + page)

            with jax.named_scope("together"):
                lax.fori_loop(0, several, start, None)
            with jax.named_scope("alone"):
                lax.fori_loop(done, last, lambda page, _: self._start_page(fetch, slot, page), None)
            if self.shape.fresh:
                self._start_rest(fetch, slot)
                self._start_fresh(fetch, slot)
            pl.when(self._opens(fetch))(lambda: self._start_queries(fetch))

    def _start_page(self, fetch: Fetch, slot: Array, page: Array) -> None:
        shape = self.shape
        copy(
            self.inputs.pool.at[self._page_id(fetch, slot, page)],
            self.buffers.pages.at[self._place(slot, page * shape.page_size, shape.page_size)],
            self.buffers.pages_here.at[slot],
        ).start()

    def _page_id(self, fetch: Fetch, slot: Array, page: Array) -> Array:
        shape = self.shape
        _, before = divide(fetch.fetch * shape.blocks.kv_pages, LANES)
        row, lane = divide(before + page, LANES)
        named: Array = self.buffers.ids[slot * shape.id_rows + row, 0, lane]
        return named

    def _place(self, slot: Any, cell: Array, count: int) -> Any:
        """The rows of some cells of a fetch in its buffer."""
        return self._rows(slot * self.shape.fetch_cells + cell, count)

    def _rows(self, cell: Array, count: int) -> Any:
        """The rows of `count` cells, which begin at a multiple of it or of `Shape.unit`."""
        rows = self.shape.rows
        known = min(count, self.shape.unit) if self.shape.fresh else count
        return pl.ds(pl.multiple_of(cell * rows, known * rows), count * rows)

    def _start_rest(self, fetch: Fetch, slot: Array) -> None:
        """Copy the beginning of the last page: later cells are dead, or will be overwritten."""
        shape = self.shape
        page, count = self._rest(fetch)

        @pl.when(count > 0)
        def _() -> None:
            named = self._page_id(fetch, slot, page)

            def start(done: Array, size: int) -> None:
                copy(
                    self.inputs.pool.at[named, self._rows(done, size)],
                    self.buffers.pages.at[self._place(slot, page * shape.page_size + done, size)],
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
        held = fresh.place(shape, token, seq, self.inputs.kv_lens[seq], end)

        def start(done: Array, size: int) -> None:
            copy(
                self.inputs.fresh.at[self._rows(held + done, size)],
                self.buffers.pages.at[self._place(slot, first + done, size)],
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
            held = self.buffers.pages.at[pl.ds(0, size * cells * self.shape.rows)]
            copy(held, held, self.buffers.pages_here.at[slot]).wait()

        in_powers(count, self.shape.fetch_cells // cells, wait)

    def _rows_of(self, fetch: Fetch) -> tuple[Array, Array]:
        """The first row in q of the queries of this block, and their number; none past its end."""
        done, tokens = fetch.block * self.shape.blocks.q_rows, self.shape.tokens
        first = jnp.clip(self.inputs.cu_q_lens[fetch.seq] + done, 0, tokens)
        count = jnp.minimum(self._q_len(fetch.seq) - done, self.shape.blocks.q_rows)
        return first, jnp.minimum(count, tokens - first)

    def _start_queries(self, fetch: Fetch) -> None:
        first, count = self._rows_of(fetch)
        slot = parity(fetch.item)

        def start(done: Array, size: int) -> None:
            copy(
                self.inputs.queries.at[pl.ds(first + done, size)],
                self.buffers.queries.at[slot, pl.ds(done, size)],
                self.buffers.queries_here.at[slot],
            ).start()

        in_powers(count, self.shape.blocks.q_rows, start)

    def _wait_queries(self, fetch: Fetch) -> None:
        _, count = self._rows_of(fetch)
        slot = parity(fetch.item)
        self._wait_rows(self.buffers.queries, count, self.buffers.queries_here.at[slot])

    def _wait_rows(self, held: Any, count: Array, semaphore: Any) -> None:
        def wait(_done: Array, size: int) -> None:
            part = held.at[0, pl.ds(0, size)]
            copy(part, part, semaphore).wait()

        in_powers(count, self.shape.blocks.q_rows, wait)

    def _work(self, fetch: Fetch) -> None:
        """Wait for the copies of a fetch, use them, and store the results of a block at its end."""
        _, high = self._visible(fetch)
        opens = self._opens(fetch)
        closes = (fetch.fetch + 1) * self.shape.fetch_cells >= high
        single = self._q_len(fetch.seq) == 1
        pl.when(opens)(lambda: self._wait_queries(fetch))
        self._wait_pages(fetch)
        pl.when(single)(lambda: self._decode(fetch, opens, closes))
        pl.when(~single)(lambda: self._prefill(fetch, opens, closes))

    def _in_buffer(self, fetch: Fetch) -> Span:
        start = parity(fetch.number) * self.shape.fetch_cells
        return Span(start, *self._span(fetch))

    def _decode(self, fetch: Fetch, opens: Array, closes: Array) -> None:
        shape, slot = self.shape, parity(fetch.item)
        pl.when(opens)(lambda: decode.begin(self.decode))
        queries = self.buffers.queries[slot, 0].astype(shape.compute)
        decode.absorb(shape, self.decode, self.buffers.pages, queries, self._in_buffer(fetch))

        @pl.when(closes)
        def _() -> None:
            self._wait_result(slot)
            found = decode.result(shape, self.decode, self.inputs.sinks) * shape.v_scale
            held = self.buffers.results
            held[slot, 0] = found.astype(held.dtype)
            self._store(fetch, most=1)

    def _prefill(self, fetch: Fetch, opens: Array, closes: Array) -> None:
        shape, slot = self.shape, parity(fetch.item)
        pl.when(opens)(lambda: prefill.begin(shape, self.prefill, self.buffers.queries[slot]))
        seq = fetch.seq
        position = self.inputs.kv_lens[seq] - self._q_len(seq)
        position += fetch.block * shape.blocks.q_rows - fetch.fetch * shape.fetch_cells
        span = self._in_buffer(fetch)
        prefill.absorb(shape, self.prefill, self.buffers.pages, position, span)

        @pl.when(closes)
        def _() -> None:
            self._wait_result(slot)
            found = prefill.result(shape, self.prefill, self.inputs.sinks) * shape.v_scale
            self.buffers.results[slot] = found.astype(self.buffers.results.dtype)
            self._store(fetch, most=shape.blocks.q_rows)

    def _store(self, fetch: Fetch, *, most: int) -> None:
        """Copy the results of a block out. most: how many it can have."""
        first, count = self._rows_of(fetch)
        slot = parity(fetch.item)

        def start(done: Array, size: int) -> None:
            copy(
                self.buffers.results.at[slot, pl.ds(done, size)],
                self.out.at[pl.ds(first + done, size)],
                self.buffers.results_gone.at[slot],
            ).start()

        in_powers(count, most, start)
        self.buffers.stored[slot] = count

    def _wait_result(self, slot: Any) -> None:
        """Wait until the last results stored from this buffer are copied out."""
        semaphore = self.buffers.results_gone.at[slot]
        self._wait_rows(self.buffers.results, self.buffers.stored[slot], semaphore)
        self.buffers.stored[slot] = jnp.int32(0)


def _either(first: Array, one: Fetch, other: Fetch) -> Fetch:
    return Fetch(*(jnp.where(first, *both) for both in zip(one, other, strict=True)))
