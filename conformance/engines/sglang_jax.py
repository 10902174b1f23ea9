"""The adapter of sglang-jax: its page allocator and its table of requests, prefix caching off.

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
p + 1. `conformance.harnesses.prefix_caching` covers prefix caching.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from conformance.engines import drift
from conformance.engines.sglang_calls import PACKAGE, Pools, Request
from conformance.protocol import Action, EngineFailed, Profile, Result
from spec import table
from spec.machines import actions as act
from spec.view import View
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    Limits,
    Reason,
    Tokens,
    refused,
)

OFFERED: Final = frozenset({act.Reserve, act.Allocate, act.Free, act.Reset})


class Prefixes:
    """The calls of the scheduler with prefix caching on, for `harnesses.prefix_caching`.

    A prompt is looked up without its last token, so that one is left to compute, and a hit is
    locked. Room is made by evicting as many tokens as the scheduler requests. After each part of a
    prompt `cache_unfinished_req` is called, at the end `cache_finished_req`. A sequence ends only
    when all its cells are computed. whole_pages: a part of a prompt ends with a page or with the
    prompt.
    """

    drops = False

    def __init__(self, geometry: Geometry, *, whole_pages: bool) -> None:
        self.geometry, self._whole_pages = geometry, whole_pages
        self._pools = Pools(geometry, caching=True)
        self._requests: dict[int, Request] = {}
        self._lengths: dict[int, int] = {}

    def start(self, slot: int, tokens: Tokens, count: int) -> tuple[int, int] | None:
        """Match, lock, evict, allocate; everything is undone if there is no room."""
        pools = self._pools
        match = pools.cache.match_prefix(list(tokens[:-1]))
        pools.cache.inc_lock_ref(match.last_device_node)
        hit = len(match.device_indices)
        request = Request(pools.requests.alloc(1)[0], list(tokens))
        request.prefix_indices, request.last_node = match.device_indices, match.last_device_node
        pools.requests.write((request.req_pool_idx, slice(0, hit)), match.device_indices)
        given = self._part(tokens, max(count, hit + 1))
        if not self._extend(request, range(hit, given)):
            pools.cache.dec_lock_ref(match.last_device_node)
            pools.requests.free(request.req_pool_idx)
            return None
        self._requests[slot], self._lengths[slot] = request, given
        return hit, given

    def grow(self, slot: int, tokens: Tokens, count: int) -> int | None:
        """The next part of a prompt, or one more token."""
        request, given = self._requests[slot], self._part(tokens, count)
        if not self._extend(request, range(self._lengths[slot], given)):
            return None
        request.output_ids = list(tokens[len(request.origin_input_ids) :])
        self._lengths[slot] = given
        return given

    def computed(self, slot: int, tokens: Tokens) -> None:
        """Publish the computed part of a prompt; decoded tokens are published at the end."""
        request = self._requests[slot]
        if not request.output_ids:
            request.fill_ids = list(tokens)
            self._pools.cache.cache_unfinished_req(request)

    def end(self, slot: int, tokens: Tokens) -> None:
        """The cache takes over the pages that it lacks; the last output never had a cell."""
        request = self._requests.pop(slot)
        del self._lengths[slot]
        request.origin_input_ids, request.output_ids = list(tokens), [0]
        self._pools.release(request)

    def row(self, slot: int) -> tuple[int, ...]:
        """The pages in the table of requests."""
        return self._pools.row(self._requests[slot], self._lengths[slot])

    def spare(self) -> list[int]:
        """The free lists, and every page of a node of the tree that no request has locked."""
        cached, nodes = list[int](), [self._pools.cache.root_node]
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            if not node.lock_ref:
                cached += [cell // self.geometry.page_size - 1
                           for cell in node.value[:: self.geometry.page_size].tolist()]  # fmt: skip
        if len(cached) * self.geometry.page_size != self._pools.cache.evictable_size():
            stated = self._pools.cache.evictable_size()
            raise EngineFailed(
                f"{stated} tokens are reported as evictable, {len(cached)} pages are"
            )
        return self._pools.free_pages() + cached

    def counts(self) -> None:
        """None: sglang-jax keeps no counts."""

    def _part(self, tokens: Tokens, count: int) -> int:
        """The end of a part that should end at `count`."""
        size = self.geometry.page_size if self._whole_pages else 1
        return min(len(tokens), -(-count // size) * size)

    def _extend(self, request: Request, positions: range) -> bool:
        pools = self._pools
        wanted = len(positions) + (0 if pools.single else self.geometry.page_size)
        if pools.allocator.available_size() < wanted:
            pools.cache.evict(wanted)
        return pools.extend({0: (request, positions)}) is not None


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


def _need(answer: object, reason: Reason) -> None:
    if answer is None:
        raise refused(reason)


def make(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Adapter:
    """One call of the allocator for a whole batch, which succeeds or fails as a whole."""
    return Adapter(geometry, limits, cleanup)


def make_undoing(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Adapter:
    """One call for each sequence of a batch, undone with `restore_state` if the batch fails."""
    return Adapter(geometry, limits, cleanup, undoing=True)


def prefixes(geometry: Geometry) -> Prefixes:
    """Prefix caching on; a part of a prompt ends with a page, as it usually does."""
    return Prefixes(geometry, whole_pages=True)


def prefixes_in_parts(geometry: Geometry) -> Prefixes:
    """Prefix caching on; a part of a prompt ends anywhere."""
    return Prefixes(geometry, whole_pages=False)
