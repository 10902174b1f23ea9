"""Adapters of other engines over states of every kind, without the packages."""

import random
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from conformance.engines import sglang_calls, sglang_jax, vllm
from conformance.protocol import EngineFailed
from spec.machines import actions as act
from spec.vocabulary import INVALID, CleanupMode, Geometry, Reason, Refused, default_limits

PAGES: Final = 4


def blocks_of_vllm(counts: list[int], free: list[int], stated: int) -> vllm.Blocks:
    """The wrapper over a pool in this state; block 0 is for padding."""
    every = [SimpleNamespace(block_id=at, ref_cnt=at and counts[at - 1]) for at in range(PAGES + 1)]
    blocks = vllm.Blocks.__new__(vllm.Blocks)
    queue = SimpleNamespace(get_all_free_blocks=lambda: [every[page + 1] for page in free])
    pool = SimpleNamespace(blocks=every, free_block_queue=queue, get_num_free_blocks=lambda: stated)
    blocks.manager, blocks.requests = SimpleNamespace(block_pool=pool), {}
    return blocks


@pytest.mark.parametrize("seed", range(60))
def test_vllm_fails_unless_all_that_it_says_of_free_blocks_agrees(seed: int) -> None:
    """Its queue has each block without an owner once, in any order, and states their number."""
    draws = random.Random(seed)
    counts = [draws.choice((0, 0, 1, 2)) for _ in range(PAGES)]
    free = [page for page, count in enumerate(counts) if not count]
    draws.shuffle(free)
    changed = draws.choice(("nothing", "lost", "twice", "used", "stated"))
    stated = len(free) + (changed == "stated") * draws.choice((-1, 1))
    if changed in {"lost", "twice"} and free:
        free = free[1:] if changed == "lost" else [*free, free[0]]
    if changed == "used":
        free = [*free, *[page for page, count in enumerate(counts) if count][:1]]
    right = sorted(free) == [page for page in range(PAGES) if not counts[page]]
    right = right and stated == len(free)

    try:
        found = blocks_of_vllm(counts, free, stated).counts()
    except EngineFailed:
        assert not right
    else:
        assert (right, tuple(counts)) == (True, found)


SIZES: Final = (1, 2, 4)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("wrong", [None, *range(9)])
def test_a_row_of_sglang_is_whole_pages(size: int, wrong: int | None) -> None:
    """Any cell of a row that is not at its place in its page fails, and any length is read."""
    pages = [5, 2, 7, 1, 9, 3, 8, 4, 6]
    cells = [pages[at // size] * size + at % size for at in range(9)]
    pools = sglang_calls.Pools.__new__(sglang_calls.Pools)
    pools.size, pools.single = size, size == 1
    pools.requests = SimpleNamespace(req_to_token=np.array([[0] * 9, cells]))
    if wrong is not None:
        pools.requests.req_to_token[1, wrong] += 1

    for length in range(10):
        right = size == 1 or wrong is None or wrong >= length
        try:
            row = pools.row(sglang_calls.Request(1), length)
        except AssertionError:
            assert not right
        else:
            shown = pages[: -(-length // size)]
            if size == 1 and wrong is not None and wrong < length:
                shown[wrong] += 1
            assert (True, tuple(page - 1 for page in shown)) == (right, row)


@pytest.mark.parametrize("single", [True, False])
def test_each_free_page_of_sglang_is_listed(*, single: bool) -> None:
    """Pages in either list can be given out; page 0 is for padding, and page p is page p + 1."""
    pools = sglang_calls.Pools.__new__(sglang_calls.Pools)
    pools.size, pools.single = (1, True) if single else (2, False)
    lists: dict[str, Any] = {"free_pages": np.array([3, 1]), "release_pages": np.array([2, 2])}
    slots: dict[str, Any] = {"free_slots": np.array([4, 1])}
    pools.allocator = SimpleNamespace(**slots if single else lists)

    assert ([3, 0] if single else [2, 0, 1, 1]) == pools.free_pages()


class Manager:
    """The cache manager of vLLM with its first free blocks, as far as the adapter calls it."""

    def __init__(self, pages: int, size: int) -> None:
        self.size, self.rows = size, dict[str, list[int]]()
        every = [SimpleNamespace(block_id=at, ref_cnt=0) for at in range(pages + 1)]
        self.free: list[Any] = every[1:]
        queue = SimpleNamespace(get_all_free_blocks=lambda: self.free)
        self.block_pool = SimpleNamespace(
            blocks=every, free_block_queue=queue, get_num_free_blocks=lambda: len(self.free)
        )

    def allocate_slots(self, request: Any, more: int) -> list[Any] | None:
        """Blocks for this many tokens past the computed ones."""
        row = self.rows.setdefault(request.request_id, [])
        lacking = -(-(request.num_computed_tokens + more) // self.size) - len(row)
        if lacking > len(self.free):
            return None
        taken = [self.free.pop(0) for _ in range(lacking)]
        for block in taken:
            block.ref_cnt = 1
        row += [block.block_id for block in taken]
        return taken

    def get_block_ids(self, name: str) -> tuple[list[int]]:
        """The blocks of a request."""
        return (self.rows.get(name, []),)

    def free_request(self, request: Any) -> None:
        """Give the blocks of a request back."""
        for block in self.rows.pop(request.request_id, []):
            self.block_pool.blocks[block].ref_cnt = 0
            self.free.append(self.block_pool.blocks[block])

    def reset_prefix_cache(self) -> bool:
        """Whether no block is in use."""
        return not any(block.ref_cnt for block in self.block_pool.blocks)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", SIZES)
def test_the_adapter_of_vllm_has_a_page_for_each_position(
    monkeypatch: pytest.MonkeyPatch, size: int, seed: int
) -> None:
    """Whatever is reserved, extended, freed and reset, each slot has the pages of its length."""
    geometry = Geometry(pages=5, slots=3, page_size=size, pages_per_seq=3)
    manager: Any = Manager(geometry.pages, size)

    def stand_in(blocks: vllm.Blocks, _geometry: Geometry, *, caching: bool) -> None:
        assert not caching
        blocks.manager = SimpleNamespace(
            allocate_slots=manager.allocate_slots,
            get_block_ids=manager.get_block_ids,
            free=manager.free_request,
            reset_prefix_cache=manager.reset_prefix_cache,
            block_pool=manager.block_pool,
        )
        blocks.requests, blocks._made, blocks._params, blocks._hasher = {}, 0, None, None
        requests: Any = SimpleNamespace(
            Request=lambda name, *_, **__: SimpleNamespace(request_id=name, num_computed_tokens=0)
        )
        blocks._request = requests

    monkeypatch.setattr(vllm.Blocks, "__init__", stand_in)
    adapter = vllm.make(geometry, default_limits(geometry), CleanupMode.NONE)
    draws, lengths = random.Random(seed), dict[int, int]()

    for _ in range(60):
        slot, more = draws.randrange(geometry.slots), draws.randrange(1, 4)
        kind = draws.random()
        if kind < 0.05:
            adapter.apply(act.Reset())
            lengths.clear()
        elif slot not in lengths:
            adapter.apply(act.Reserve(slot))
            lengths[slot] = 0
        elif kind < 0.3:
            adapter.apply(act.Free(slot))
            del lengths[slot]
        elif lengths[slot] + more <= geometry.max_len:
            places = range(lengths[slot], lengths[slot] + more)
            held = {one: geometry.pages_for(length) for one, length in lengths.items()}
            needed = held | {slot: geometry.pages_for(places.stop)}
            batch = act.Allocate(tuple((slot, position) for position in places))
            if sum(needed.values()) > geometry.pages:
                with pytest.raises(Refused) as refused:
                    adapter.apply(batch)
                assert {Reason.OUT_OF_PAGES} == refused.value.reasons
            else:
                adapter.apply(batch)
                lengths[slot] = places.stop
        view = adapter.observe()
        shown = [[page for page in row if page != INVALID] for row in view.rows]
        pages = [geometry.pages_for(lengths.get(slot, 0)) for slot in range(geometry.slots)]
        assert pages == list(map(len, shown))
        assert [slot in lengths for slot in range(geometry.slots)] == list(view.used)
        named = [page for row in shown for page in row]
        assert [named.count(page) for page in range(geometry.pages)] == list(view.counts or ())


@pytest.mark.parametrize("whole_pages", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_a_part_of_a_prompt_of_sglang_ends_where_it_should(size: int, *, whole_pages: bool) -> None:
    """A part ends at the count or the whole page after it, and never past the prompt."""
    prefixes = sglang_jax.Prefixes.__new__(sglang_jax.Prefixes)
    prefixes.geometry = Geometry(pages=4, slots=1, page_size=size, pages_per_seq=4)
    prefixes._whole_pages = whole_pages

    for length in range(1, 4 * size):
        for count in range(1, length + 1):
            ends = [at for at in range(count, length) if at % size == 0 or not whole_pages]
            assert min([*ends, length]) == prefixes._part(tuple(range(length)), count)
