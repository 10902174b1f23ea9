"""The calls of sglang-jax that its adapters make, and the state that they read."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import pairwise
from typing import Any, Final

import attrs

from conformance.engines import drift
from conformance.protocol import EngineFailed
from spec.vocabulary import Geometry, InvalidInput

PACKAGE: Final = "sglang-jax"
REMEDY: Final = "Run `make engine-sglang-jax`: it installs sglang-jax 0.0.2 in a place of its own."
_ALLOCATOR: Final = "sgl_jax.srt.mem_cache.allocator"
_REQUESTS: Final = "sgl_jax.srt.mem_cache.memory_pool"
_CACHE: Final = "sgl_jax.srt.mem_cache.radix_cache"
_TOKENS: Final = f"{_ALLOCATOR}:TokenToKVPoolAllocator"
_PAGED: Final = f"{_ALLOCATOR}:PagedTokenToKVPoolAllocator"
_EXTEND: Final = ("self", "prefix_lens", "seq_lens", "last_loc", "extend_num_tokens")
CALLS: Final[Mapping[str, tuple[str, ...]]] = {
    _TOKENS: ("size", "kvcache"),
    f"{_TOKENS}.alloc": ("self", "need_size"),
    f"{_TOKENS}.free": ("self", "free_index"),
    f"{_TOKENS}.clear": ("self",),
    _PAGED: ("size", "page_size", "kvcache", "debug_mode"),
    f"{_PAGED}.alloc_extend": _EXTEND,
    f"{_PAGED}.alloc_decode": ("self", "seq_lens", "last_loc"),
    f"{_PAGED}.free": ("self", "free_index"),
    f"{_PAGED}.clear": ("self",),
    f"{_PAGED}.free_group_begin": ("self",),
    f"{_PAGED}.free_group_end": ("self",),
    f"{_PAGED}.backup_state": ("self",),
    f"{_PAGED}.restore_state": ("self", "state"),
    f"{_REQUESTS}:ReqToTokenPool.alloc": ("self", "need_size"),
    f"{_REQUESTS}:ReqToTokenPool.write": ("self", "indices", "values"),
    f"{_REQUESTS}:ReqToTokenPool.free": ("self", "free_index"),
    f"{_REQUESTS}:ReqToTokenPool.clear": ("self",),
    f"{_CACHE}:RadixCache.reset": ("self",),
    f"{_CACHE}:RadixCache.match_prefix": ("self", "key", "kwargs"),
    f"{_CACHE}:RadixCache.cache_finished_req": ("self", "req"),
    f"{_CACHE}:RadixCache.cache_unfinished_req": ("self", "req"),
    f"{_CACHE}:RadixCache.evict": ("self", "num_tokens"),
    f"{_CACHE}:RadixCache.inc_lock_ref": ("self", "node"),
    f"{_CACHE}:RadixCache.evictable_size": ("self",),
}
"""The calls, with the parameters of sglang-jax 0.0.2."""


@attrs.define
class Request:
    """The fields of a request that the caches of sglang-jax read.

    origin_input_ids, output_ids: its tokens; the last output has no cell yet. prefix_indices,
    last_node: the part in the prefix cache, and its place there.
    """

    req_pool_idx: int
    origin_input_ids: list[int] = attrs.field(factory=list)
    output_ids: list[int] = attrs.field(factory=list)
    fill_ids: list[int] = attrs.field(factory=list)
    prefix_indices: Any = ()
    last_node: Any = None


class Pools:
    """The two pools and the prefix cache of sglang-jax. caching: whether prefixes are kept.

    Raises InvalidInput if the package is absent, or its calls have changed.
    """

    def __init__(self, geometry: Geometry, *, caching: bool) -> None:
        drift.require_installed(
            PACKAGE, "sgl_jax", allowed="sglang-jax 0.0.2, installed", remedy=REMEDY
        )
        drift.require(PACKAGE, CALLS, remedy=REMEDY)
        allocator, memory_pool, radix_cache = (
            import_module(name) for name in (_ALLOCATOR, _REQUESTS, _CACHE)
        )
        self.size, self.single = geometry.page_size, geometry.page_size == 1
        cells = geometry.pages * self.size
        self.allocator = (
            allocator.TokenToKVPoolAllocator(cells, None)
            if self.single
            else allocator.PagedTokenToKVPoolAllocator(cells, self.size, None)
        )
        self.requests = memory_pool.ReqToTokenPool(geometry.slots, geometry.max_len)
        self.cache = radix_cache.RadixCache(self.requests, self.allocator, self.size, not caching)
        if sorted(self.free_pages()) != list(range(geometry.pages)):
            raise InvalidInput(
                PACKAGE,
                seen=f"free pages {self.free_pages()} in a new pool",
                allowed=f"the first {geometry.pages} pages after that for padding, once each",
                remedy=REMEDY,
            )

    def free_pages(self) -> list[int]:
        """The pages that can be given out, as often as they are listed."""
        pool = self.allocator
        lists = (pool.free_slots,) if self.single else (pool.free_pages, pool.release_pages)
        return [int(page) - 1 for pages in lists for page in pages]

    def row(self, request: Request, length: int) -> tuple[int, ...]:
        """The pages of the first cells of a request; raises if a cell is misplaced."""
        cells = self.requests.req_to_token[request.req_pool_idx, :length].tolist()
        for position, (cell, following) in enumerate(pairwise(cells), start=1):
            if position % self.size and following != cell + 1:
                wrong = f"position {position} is at cell {following}, not {cell + 1}"
                raise EngineFailed(wrong, clause="ROW")
        if any(cell % self.size for cell in cells[:: self.size]):
            raise EngineFailed(f"a page begins inside another: cells {cells}", clause="ROW")
        return tuple(cell // self.size - 1 for cell in cells[:: self.size])

    def extend(self, growth: Mapping[int, tuple[Request, range]]) -> dict[int, list[int]] | None:
        """Cells for the next positions of some requests, by slot; None if there are not enough."""
        ranges = [positions for _, positions in growth.values()]
        starts, ends = [one.start for one in ranges], [one.stop for one in ranges]
        rows = self.requests.req_to_token
        last = [
            int(rows[request.req_pool_idx, positions.start - 1]) if positions.start else -1
            for request, positions in growth.values()
        ]
        total = sum(map(len, ranges))
        if self.single:
            given = self.allocator.alloc(total)
        elif all(len(positions) == 1 and positions.start for positions in ranges):
            given = self.allocator.alloc_decode(ends, last)
        else:
            given = self.allocator.alloc_extend(starts, ends, last, total)
        if given is None:
            return None
        left = iter(given.tolist())
        cells = {slot: [next(left) for _ in at] for slot, (_, at) in growth.items()}
        for slot, (request, positions) in growth.items():
            where = (request.req_pool_idx, slice(positions.start, positions.stop))
            self.requests.write(where, cells[slot])
        return cells

    def release(self, request: Request) -> None:
        """End a request, as the decode step of sglang-jax does."""
        self.allocator.free_group_begin()
        self.cache.cache_finished_req(request)
        self.allocator.free_group_end()

    def give_back(self, request: Request, written: int, allocated: int) -> None:
        """Free the pages of a request of which no cell is written."""
        start = -(-written // self.size) * self.size
        if start < allocated:
            self.allocator.free(self.requests.req_to_token[request.req_pool_idx, start:allocated])

    def cached(self) -> dict[int, tuple[int, ...]]:
        """The tokens up to the end of each page in the tree of prefixes."""
        return {page: tokens for page, tokens, _ in self._tree()}

    def spare_pages(self) -> list[int]:
        """The pages that can be given out, as often as they are listed: free, or not locked.

        Raises EngineFailed if the cache reports another number of the latter.
        """
        idle = [page for page, _, is_locked in self._tree() if not is_locked]
        stated = self.cache.evictable_size()
        if len(idle) * self.size != stated:
            raise EngineFailed(f"{stated} tokens are reported as evictable, {len(idle)} pages are")
        return self.free_pages() + idle

    def _tree(self) -> Iterator[tuple[int, tuple[int, ...], bool]]:
        """Each page of the tree: its tokens and those before it, and whether it is locked."""
        nodes: list[tuple[Any, tuple[int, ...]]] = [(self.cache.root_node, ())]
        while nodes:
            node, before = nodes.pop()
            tokens = (*before, *map(int, node.key))
            for start in range(0, len(node.value), self.size):
                end = len(before) + start + self.size
                yield int(node.value[start]) // self.size - 1, tokens[:end], node.lock_ref > 0
            nodes += ((child, tokens) for child in node.children.values())

    def flush(self) -> None:
        """Empty all pools."""
        self.cache.reset()
        self.requests.clear()
        self.allocator.clear()
