"""The findings in sglang-jax 0.0.2, reproduced with sglang-jax alone, without kvspec.

    .venv-sglang-jax/bin/python docs/findings/sglang_alone.py

Exits with 0 if each is still there, with 1 if one is not.
"""

import sys
from types import SimpleNamespace

from sgl_jax.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sgl_jax.srt.mem_cache.memory_pool import ReqToTokenPool
from sgl_jax.srt.mem_cache.radix_cache import RadixCache

PAGE = 4


def restore() -> bool:
    """`restore_state` does not give tokens back where a page is one token."""
    allocator = TokenToKVPoolAllocator(8, None)
    before, saved = allocator.available_size(), allocator.backup_state()
    allocator.alloc(3)
    allocator.restore_state(saved)
    after = allocator.available_size()
    print(f"restore: {before} tokens free before, {after} after backup, alloc(3) and restore")
    return after != before


def stale_row() -> bool:
    """A row keeps naming a page that `cache_unfinished_req` has freed."""
    allocator = PagedTokenToKVPoolAllocator(16 * PAGE, PAGE, None)
    rows = ReqToTokenPool(4, 32)
    cache = RadixCache(rows, allocator, PAGE)
    prompt = list(range(100, 108))

    def begin() -> SimpleNamespace:
        match = cache.match_prefix(prompt[:-1])
        cache.inc_lock_ref(match.last_device_node)
        return SimpleNamespace(
            req_pool_idx=rows.alloc(1)[0],
            prefix_indices=match.device_indices,
            last_node=match.last_device_node,
            computed=0,
        )

    def prefill(request: SimpleNamespace, end: int) -> None:
        start, row = request.computed, rows.req_to_token[request.req_pool_idx]
        last = int(row[start - 1]) if start else -1
        given = allocator.alloc_extend([start], [end], [last], end - start)
        rows.write((request.req_pool_idx, slice(start, end)), given)
        request.computed, request.fill_ids = end, prompt[:end]
        cache.cache_unfinished_req(request)

    first, second = begin(), begin()
    prefill(second, 2)  # a part of the prompt that ends inside a page
    prefill(first, 8)  # the same prompt at once: both of its pages are now in the tree
    prefill(second, 8)
    pages = [int(cell) // PAGE for cell in rows.req_to_token[second.req_pool_idx, :8]]
    free = {*allocator.free_pages.tolist(), *allocator.release_pages.tolist()}
    print(f"stale row: positions 0 to 7 are in pages {pages}; free: {sorted(free & set(pages))}")
    return not free.isdisjoint(pages)


if __name__ == "__main__":
    found = [restore(), stale_row()]
    sys.exit(0 if all(found) else 1)
