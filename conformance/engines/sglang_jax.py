"""The adapter of sglang-jax: its page allocator, its table of requests, and its prefix cache.

    make engine-sglang-jax

It drives the objects that the scheduler of sglang-jax drives: `ReqToTokenPool` for rows, the paged
allocator (the token allocator for pages of one token), and `RadixCache(disable=True)` to release a
request inside a group of frees, as its decode step does. A batch with one next position for each of
several sequences is `alloc_decode`; any other is `alloc_extend`.

sglang-jax itself must report when no row and when no page is free (both calls return None). Every
other check is its scheduler's, and guarded here: ids of slots, used and unused ones, the next
positions, the width of a batch, the length of a row, and that only a used slot is freed, once.
Slots are names of the adapter; the engine chooses the row of its table.

The view has rows, from every index of its table (a misplaced index makes `observe` fail), and
counts. sglang-jax keeps no counts: a page counts 1 minus its occurrences in the free lists, which
is exact as long as nothing is shared. It keeps no lengths, tokens or contents; the clauses that
need them are not checked. Its page 0 is for padding and never given out, so page p here is its page
p + 1.

With prefix caching it publishes, merges and evicts by itself, and the index that is shown is its
tree. A page of the tree that no request has locked can be given out; a page that is neither in a
row, nor free, nor there counts 1. Its hits tell no contexts apart. The adapter has the lengths, the
tokens and the cells, which it writes as the model would.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import Final

import attrs

from conformance.engines import drift
from conformance.engines.sglang_calls import PACKAGE, Pools, Request
from conformance.engines.texts import Text, Texts
from conformance.protocol import Action, EngineFailed, Profile, Result
from spec import table
from spec.machines import actions as act
from spec.view import View
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    Limits,
    Reason,
    refused,
)

OFFERED: Final = frozenset({act.Reserve, act.Allocate, act.Free, act.Reset})


class Adapter:
    """See `conformance.protocol`.

    undoing: a batch is one call for each sequence, undone by `backup_state` and `restore_state` if
    only a part of it fits.
    """

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, undoing: bool = False
    ) -> None:
        self.profile = Profile(
            name=f"sglang-jax {drift.version(PACKAGE)}",
            geometry=geometry,
            limits=limits,
            cleanup=cleanup,
            actions=OFFERED,
            policy="any",
            guarded=frozenset(Reason) - {Reason.NO_FREE_SLOT, Reason.OUT_OF_PAGES},
        )
        self._pools = Pools(geometry, caching=False)
        self._undoing = undoing
        self._requests: dict[int, Request] = {}
        self._lengths: dict[int, int] = {}

    def apply(self, action: Action) -> Result:
        """Call the allocator."""
        match action:
            case act.Reserve(slot):
                return self._reserve(slot)
            case act.Allocate(batch):
                return self._allocate(batch)
            case act.Free(int(slot)):
                request = self._requests.pop(slot)
                request.origin_input_ids = [0] * self._lengths.pop(slot)
                self._pools.release(request)
            case act.Reset():
                self._pools.flush()
                self._requests.clear()
                self._lengths.clear()
        return None

    def observe(self) -> View:
        """Rows and free pages; the lengths only tell where a row ends."""
        geometry, free = self.profile.geometry, self._pools.free_pages()
        return View(
            geometry=geometry,
            counts=[1 - free.count(page) for page in range(geometry.pages)],
            used=[slot in self._requests for slot in range(geometry.slots)],
            rows=[self._row(slot) for slot in range(geometry.slots)],
        )

    def _reserve(self, slot: object) -> int:
        given = self._pools.requests.alloc(1)
        _need(given, Reason.NO_FREE_SLOT)
        slots = range(self.profile.geometry.slots)
        lowest = next((one for one in slots if one not in self._requests), len(slots))
        chosen = slot if isinstance(slot, int) else lowest
        self._requests[chosen], self._lengths[chosen] = Request(given[0]), 0
        return chosen

    def _allocate(self, batch: table.Batch) -> Result:
        growth = {
            slot: (self._requests[slot], range(at[0], at[-1] + 1))
            for slot, at in table.by_slot(batch).items()
        }
        if not growth:
            return None
        cells = self._one_by_one(growth) if self._undoing else self._pools.extend(growth)
        _need(cells, Reason.OUT_OF_PAGES)
        self._lengths |= {slot: at.stop for slot, (_, at) in growth.items()}
        return self._plan(batch, cells or {})

    def _one_by_one(
        self, growth: Mapping[int, tuple[Request, range]]
    ) -> dict[int, list[int]] | None:
        saved, cells = self._pools.allocator.backup_state(), dict[int, list[int]]()
        for slot, grown in growth.items():
            given = self._pools.extend({slot: grown})
            if given is None:
                self._pools.allocator.restore_state(saved)
                return None
            cells |= given
        return cells

    def _plan(self, batch: table.Batch, cells: Mapping[int, list[int]]) -> Result:
        """The plan from the current rows and the cells that the allocator returned."""
        size = self.profile.geometry.page_size
        sequences = tuple(
            table.Sequence(self._row(slot), allocated=self._lengths[slot])
            if slot in cells
            else None
            for slot in range(self.profile.geometry.slots)
        )
        given = tuple(cell - size for slot in sorted(cells) for cell in cells[slot])
        return attrs.evolve(table.plan(sequences, batch, size), destinations=given)

    def _row(self, slot: int) -> tuple[int, ...]:
        if slot not in self._requests:
            return ()
        return self._pools.row(self._requests[slot], self._lengths[slot])


class CachingAdapter:
    """See `conformance.protocol`. Prefix caching is on; the adapter keeps texts and cells.

    A hit is locked. Room is made by evicting as many tokens as the scheduler requests. When a part
    of a prompt is written `cache_unfinished_req` is called, at the end of the sequence
    `cache_finished_req`; what was allocated and not written is given back before, as the scheduler
    does when it retracts a request. in_parts: whether a part of a prompt ends anywhere, or with a
    page or the prompt alone.
    """

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, in_parts: bool
    ) -> None:
        self.profile = Profile(
            name=f"sglang-jax with prefix caching, {drift.version(PACKAGE)}",
            geometry=geometry,
            limits=limits,
            cleanup=cleanup,
            actions=OFFERED | {act.Assign, act.Append, act.Write, act.Hit},
            unasked={act.Publish, act.Merge, act.Evict},
            contexts=False,
            policy="any",
            batches="one slot",
            guarded=frozenset(Reason) - {Reason.OUT_OF_PAGES},
        )
        self._pools, self._in_parts = Pools(geometry, caching=True), in_parts
        self._requests: dict[int, Request] = {}
        self._texts = Texts(geometry)

    def apply(self, action: Action) -> Result:
        """Call the cache and the allocator as the scheduler does."""
        held = self._texts.held
        match action:
            case act.Reserve(int(slot)):
                given = self._pools.requests.alloc(1)
                _need(given, Reason.NO_FREE_SLOT)
                self._requests[slot] = Request(given[0], last_node=self._pools.cache.root_node)
                held[slot] = Text(0)
            case act.Assign(slot=int(slot), prompt=tokens):
                held[slot].tokens += tokens
                self._requests[slot].origin_input_ids = list(tokens)
            case act.Append(int(slot), tokens):
                held[slot].tokens += tokens
            case act.Allocate(batch):
                self._allocate(batch)
            case act.Write(batch):
                self._write(batch)
            case act.Hit(slot, length):
                self._hit(slot, length)
            case act.Free(int(slot)):
                self._release(slot)
            case act.Reset():
                self._pools.flush()
                self._requests.clear()
                self._texts.reset()
        return None

    def observe(self) -> View:
        """Rows, and the index of the tree; a page that nobody has and nobody can get counts 1."""
        geometry, texts = self.profile.geometry, self._texts.shown()
        rows = [self._row(slot) if slot in self._requests else () for slot in range(geometry.slots)]
        index = self._pools.cached()
        named, spare = Counter(chain(*rows)), self._pools.spare_pages()
        for page in named.keys() & {*spare}:
            raise EngineFailed(f"page {page} can be given out, and a row names it", clause="UAF")
        if len(spare) != len({*spare}):
            raise EngineFailed(f"a page can be given out twice: {sorted(spare)}", clause="CONS")
        return View(
            geometry=geometry,
            counts=[named[page] or int(page not in spare) for page in range(geometry.pages)],
            rows=rows,
            indexed=[(0, *index[page]) if page in index else () for page in range(geometry.pages)],
            **texts,
        )

    def _allocate(self, batch: table.Batch) -> None:
        pools, size = self._pools, self.profile.geometry.page_size
        for slot, at in table.by_slot(batch).items():
            wanted = len(at) + (0 if pools.single else size)
            if pools.allocator.available_size() < wanted:
                pools.cache.evict(wanted)
            grown = {slot: (self._requests[slot], range(at[0], at[-1] + 1))}
            _need(pools.extend(grown), Reason.OUT_OF_PAGES)
            self._texts.held[slot].allocated = at[-1] + 1

    def _write(self, batch: table.Batch) -> None:
        self._texts.write(batch, self._row)
        for slot in table.by_slot(batch):
            self._publish(slot)

    def _publish(self, slot: int) -> None:
        """Publish the part of a prompt that is written; what is decoded is published at the end."""
        request, written = self._requests[slot], self._texts.held[slot].written
        prompt = len(request.origin_input_ids)
        ends = written == prompt or written % self.profile.geometry.page_size == 0
        if written <= prompt and (ends or self._in_parts):
            request.fill_ids = list(self._texts.tokens(slot)[:written])
            self._pools.cache.cache_unfinished_req(request)

    def _hit(self, slot: int, length: int) -> None:
        pools, request = self._pools, self._requests[slot]
        match = pools.cache.match_prefix(list(self._texts.tokens(slot)[:length]))
        if len(match.device_indices) < length:
            raise refused(Reason.NOT_INDEXED)
        pools.cache.inc_lock_ref(match.last_device_node)
        request.prefix_indices, request.last_node = match.device_indices, match.last_device_node
        pools.requests.write((request.req_pool_idx, slice(0, length)), match.device_indices)
        self._texts.hit(slot, length)

    def _release(self, slot: int) -> None:
        request, text = self._requests.pop(slot), self._texts.held.pop(slot)
        self._pools.give_back(request, text.written, text.allocated)
        request.origin_input_ids, request.output_ids = text.tokens[: text.written], [0]
        self._pools.release(request)

    def _row(self, slot: int) -> tuple[int, ...]:
        return self._pools.row(self._requests[slot], self._texts.held[slot].allocated)


def _need(answer: object, reason: Reason) -> None:
    if answer is None:
        raise refused(reason)


def make(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Adapter:
    """One call of the allocator for a whole batch, which succeeds or fails as a whole."""
    return Adapter(geometry, limits, cleanup)


def make_undoing(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Adapter:
    """One call for each sequence of a batch, undone with `restore_state` if the batch fails."""
    return Adapter(geometry, limits, cleanup, undoing=True)


def make_caching(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> CachingAdapter:
    """Prefix caching on; a part of a prompt ends with a page, as it usually does."""
    return CachingAdapter(geometry, limits, cleanup, in_parts=False)


def make_caching_in_parts(
    geometry: Geometry, limits: Limits, cleanup: CleanupMode
) -> CachingAdapter:
    """Prefix caching on; a part of a prompt ends anywhere."""
    return CachingAdapter(geometry, limits, cleanup, in_parts=True)
