"""Adapters of other engines over states of every kind, without the packages."""

import random
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from conformance.engines import sglang_calls, sglang_jax, vllm
from conformance.engines.sglang_calls import Request
from conformance.engines.texts import Text, Texts
from conformance.protocol import EngineFailed
from spec.cells import POISON
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
        except EngineFailed:
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


@pytest.mark.parametrize("in_parts", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_sglang_publishes_the_parts_of_a_prompt(size: int, *, in_parts: bool) -> None:
    """Those that end with a page or the prompt, or all of them; and nothing that is decoded."""
    adapter = sglang_jax.CachingAdapter.__new__(sglang_jax.CachingAdapter)
    geometry = Geometry(pages=4, slots=1, page_size=size, pages_per_seq=4)
    told, prompt = list[list[int]](), list(range(2 * size + 1))
    cache = SimpleNamespace(cache_unfinished_req=lambda request: told.append(request.fill_ids))
    pools: Any = SimpleNamespace(cache=cache)
    profile: Any = SimpleNamespace(geometry=geometry)
    adapter._pools, adapter.profile, adapter._in_parts = pools, profile, in_parts
    adapter._requests = {0: Request(0, origin_input_ids=prompt)}
    adapter._texts = Texts(geometry)

    for written in range(1, 4 * size):
        adapter._texts.held[0] = Text(0, [*prompt, 7, 7, 7, 7, 7], written, written)
        adapter._publish(0)

    ends = range(1, len(prompt) + 1)
    parts = [end for end in ends if in_parts or end % size == 0 or end == len(prompt)]
    assert [prompt[:end] for end in parts if end < 4 * size] == told


def test_the_tree_of_sglang_is_read_page_by_page() -> None:
    """Each page with the tokens up to its end; what is not locked can be given out."""

    def node(key: list[int], cells: list[int], locks: int, *children: Any) -> Any:
        below = dict(enumerate(children))
        return SimpleNamespace(key=key, value=cells, lock_ref=locks, children=below)

    leaf, twin = node([5, 6], [10, 11], 0), node([7, 8], [2, 3], 1)
    upper = node([1, 2, 3, 4], [4, 5, 8, 9], 1, leaf, twin)
    pools = sglang_calls.Pools.__new__(sglang_calls.Pools)
    pools.size, pools.single = 2, False
    evictable = [2]
    pools.cache = SimpleNamespace(
        root_node=node([], [], 1, upper), evictable_size=lambda: evictable[0]
    )
    pools.allocator = SimpleNamespace(free_pages=[6], release_pages=[7])

    assert pools.cached() == {
        1: (1, 2),
        3: (1, 2, 3, 4),
        4: (1, 2, 3, 4, 5, 6),
        0: (1, 2, 3, 4, 7, 8),
    }
    assert pools.spare_pages() == [5, 6, 4]
    evictable[0] = 4
    with pytest.raises(EngineFailed, match="4 tokens are reported as evictable, 1 pages are"):
        pools.spare_pages()


def test_texts_are_what_a_scheduler_and_a_model_keep() -> None:
    """Tokens and lengths by slot, and in each cell of a row the tokens up to its position."""
    texts = Texts(Geometry(pages=4, slots=2, page_size=2, pages_per_seq=2))
    texts.held[1] = Text(3)
    texts.held[1].tokens += (5, 6, 7)
    texts.held[1].allocated = 3
    texts.write(((1, 0), (1, 1), (1, 2)), lambda _slot: (3, 0))
    shown = texts.shown()

    assert (3, 5, 6) == texts.key(1, 1)
    assert ((5, 6, 7), 3) == (texts.tokens(1), texts.held[1].written)
    assert ((5, 6, 7), POISON, POISON, POISON, POISON, POISON, (5,), (5, 6)) == shown["cells"]
    assert ([False, True], [(), (5, 6, 7)], [0, 3]) == tuple(
        shown[name] for name in ("used", "tokens", "contexts")
    )
    texts.hit(1, 2)
    assert ([0, 2], [0, 2]) == (texts.shown()["allocated"], texts.shown()["written"])
    texts.reset()
    assert [False, False] == texts.shown()["used"]
    assert {POISON} == {*texts.shown()["cells"]}
