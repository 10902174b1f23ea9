"""The adapter of the paged cache of transformers' continuous batching, with real tensors.

    make engine-transformers

`PagedAttentionCache` and its allocator, on the CPU, with two layers of full attention, each of one
head of one number. A block stands for a page, and a `RequestState` for a slot. Block sharing is
on, so a fork shares full blocks. With `make_sharing` prefixes are shared too: the hashes of full
blocks are registered after each pass, as the scheduler does, and a hit looks them up. With `make`
no hash is registered.

transformers itself must report when no block is free. Every other check is its scheduler's, and
guarded here. `pool.try_to_free_sectors` goes before each allocation and each fork, as there. The
scheduler allocates before it forks, so a block table is opened with the request, without a block.

transformers publishes a full block, or merges it with the block that has its hash, after the pass
that completes it. It evicts all idle blocks at once, when an allocation has no room. A fork without
room evicts nothing there: the scheduler sends the prompt again as a new request. The adapter evicts
in its place and forks again, so that a fork has to succeed where there is room.

The index of the view is `ledger.hash_to_block`. A hash is shown as the text that has it, of all
texts that some request had. `observe` fails if a hash is of none of them, or if `block_to_hash` has
another one. A hit of a part of what is found is the hit of a shorter prompt. transformers has no
contexts.

K and V of a batch are written by `update`, at the indices of `extend_read_and_write_indices`, and
`written` and `tokens` are those of the `RequestState`; the number of allocated cells is what was
asked for. `attend` stores in each cell its own name, and reads through `update` and through the
block table of the kernels: both layers, keys and values, must name the same cells. The new K and V
of that call go to the cells that transformers gives to padding.

The first two sectors belong to padding, so page 0 is the first block of sector 2. A sector is a
multiple of 128 bytes: one block of eight cells, or two of four. transformers has no smaller pages.

Not driven: the scheduler's safety margin, which evicts earlier; offloading, which frees blocks
without keeping them; asynchronous batches; sliding windows.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from itertools import chain, islice
from typing import Any, Final
from zlib import crc32

from conformance.engines import drift
from conformance.protocol import Action, EngineFailed, Poison, Profile, Result
from spec.machines import actions as act
from spec.table import by_slot
from spec.view import View
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    Limits,
    Reason,
    Tokens,
    refused,
)

PACKAGE: Final = "transformers"
REMEDY: Final = "Run `make engine-transformers`: it installs 5.23.0 in a place of its own."
OFFERED: Final = frozenset(
    {act.Reserve, act.Assign, act.Append, act.Allocate, act.Write, act.Clone, act.Free, act.Reset}
)
UNASKED: Final = frozenset({act.Publish, act.Merge, act.Evict})
SIZES: Final[Mapping[str, range]] = {"page_size": range(4, 4097, 4), "pages": range(2, 65537, 2)}
"""The sizes that fill whole sectors."""
LAYERS: Final = 2
WIDTH: Final = 1
"""The numbers of K, and of V, in one cell of one layer."""
NUMBERS: Final = 2 * LAYERS * WIDTH
_PACKAGE: Final = "transformers.generation.continuous_batching"
_CACHE: Final = f"{_PACKAGE}.cache"
_ALLOCATORS: Final = f"{_PACKAGE}.cache_allocators"
_ALLOCATOR: Final = f"{_ALLOCATORS}.cache_allocator"
_REQUESTS: Final = f"{_PACKAGE}.requests"
_DISTRIBUTED: Final = f"{_PACKAGE}.distributed"
CALLS: Final[Mapping[str, tuple[str, ...]]] = {
    f"{_CACHE}:PagedAttentionCache": (
        "config", "continuous_batching_config", "device", "distributed_helper", "dtype",
        "model_supports_logits_to_keep",
    ),
    f"{_CACHE}:PagedAttentionCache.can_store_request_tokens": (
        "self", "state", "request_len", "dry_run",
    ),
    f"{_CACHE}:PagedAttentionCache.extend_read_and_write_indices": (
        "self", "request_id", "past_length", "query_length", "read_index", "write_index",
    ),
    f"{_CACHE}:PagedAttentionCache.fill_block_table": (
        "self", "request_id", "past_length", "query_length", "block_table",
    ),
    f"{_CACHE}:PagedAttentionCache.update": (
        "self", "key_states", "value_states", "layer_idx", "kwargs",
    ),
    f"{_CACHE}:PagedAttentionCache.prepare_fork_request": (
        "self", "src_state", "dst_req_ids", "copy_src_and_dst",
    ),
    f"{_CACHE}:PagedAttentionCache.perform_cache_copy": ("self", "copy_src_and_dst"),
    f"{_CACHE}:PagedAttentionCache.free_blocks": ("self", "request_id", "no_cache"),
    f"{_CACHE}:PagedAttentionCache.reset": ("self",),
    f"{_CACHE}:PagedAttentionCache.search_prefix_match": ("self", "request_id", "prompt_ids"),
    f"{_CACHE}:PagedAttentionCache.count_new_complete_blocks": ("self", "state", "request_len"),
    f"{_CACHE}:PagedAttentionCache.mark_complete_blocks": ("self", "state", "complete_blocks"),
    f"{_CACHE}:PagedAttentionCache.evict_cached_blocks": ("self",),
    f"{_ALLOCATOR}:compute_block_hash": ("parent_hash", "tokens"),
    f"{_ALLOCATORS}:FullAttentionCacheAllocator.get_cache_for_block_table": ("self", "layer_idx"),
    f"{_ALLOCATORS}:FullAttentionCacheAllocator.get_seqlen_k": (
        "self", "past_length", "query_length",
    ),
    f"{_ALLOCATORS}:CachePool.try_to_free_sectors": ("self",),
    f"{_REQUESTS}:RequestState.current_len": ("self",),
    f"{_REQUESTS}:RequestState.fork": ("self", "new_request_id"),
    f"{_DISTRIBUTED}:DistributedHelper": ("device_mesh", "cpu_group_timeout", "tp_plan"),
}  # fmt: skip
"""The calls, with the parameters of transformers 5.23.0."""


def content(prefix: Tokens) -> list[float]:
    """K and V of both layers at the end of a prefix: integers that float32 holds exactly."""
    data = b"".join(token.to_bytes(4, "little") for token in prefix)
    return [float(crc32(data, start) >> 8) for start in range(NUMBERS)]


class Blocks:
    """A cache of transformers and its requests by slot.

    Raises InvalidInput if transformers is absent, or its calls have changed.
    """

    def __init__(self, geometry: Geometry) -> None:
        drift.require_installed(
            PACKAGE, _CACHE, allowed="transformers 5.23.0, installed", remedy=REMEDY
        )
        drift.require(PACKAGE, CALLS, remedy=REMEDY)
        top, cache = import_module("transformers"), import_module(_CACHE)
        self._torch = import_module("torch")
        self._request = import_module(_REQUESTS).RequestState
        self.geometry = geometry
        self.cache = cache.PagedAttentionCache(
            top.LlamaConfig(
                num_hidden_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=1, head_dim=WIDTH
            ),
            top.ContinuousBatchingConfig(
                page_size=geometry.page_size,
                num_blocks=geometry.pages,
                max_batch_tokens=1,
                max_memory_percent=1.0,
            ),
            "cpu",
            import_module(_DISTRIBUTED).DistributedHelper(None, None),
            self._torch.float32,
        )
        (self._allocator,) = self.cache.cache_allocators.values()
        self._first = 2 * self._allocator.blocks_per_sector
        self._hash = import_module(_ALLOCATOR).compute_block_hash
        self._texts: dict[int, Tokens] = {}
        self.requests: dict[int, Any] = {}
        self._made = 0

    def open(self, slot: int, tokens: Tokens) -> Any:
        """Open a request with a unique name."""
        self.requests[slot] = self._request(self._name(), list(tokens))
        return self.requests[slot]

    def grow(self, slot: int, count: int) -> bool:
        """Allocate cells for `count` positions in all; whether there was room."""
        request = self.requests[slot]
        self.cache.pool.try_to_free_sectors()
        fits: bool = self.cache.can_store_request_tokens(request, count - request.current_len())
        return fits

    def evict(self) -> bool:
        """Evict what is only kept for its contents; whether there was any."""
        evicted: bool = self.cache.evict_cached_blocks()
        return evicted

    def hit(self, slot: int, length: int) -> bool:
        """Look up a prompt that ends one token past `length`; whether so many cells are found."""
        request = self.requests[slot]
        prompt = self.tokens(slot)[: length + 1]
        found: int = self.cache.search_prefix_match(request.request_id, prompt)
        request.position_offset = found
        return found == length

    def learn(self, slot: int) -> None:
        """Keep the text of a slot for each hash that a block with it has."""
        tokens, size, parent = self.tokens(slot), self.geometry.page_size, None
        for start in range(0, len(tokens) - size + 1, size):
            parent = self._hash(parent, tokens[start : start + size])
            self._texts[parent] = tuple(tokens[: start + size])

    def indexed(self) -> list[tuple[int, ...]]:
        """The context 0 and the text of each page with a registered hash; () for the others.

        Raises EngineFailed if no request had such a text, or if blocks and hashes disagree.
        """
        ledger = self._allocator.ledger
        blocks = {block: known for known, block in ledger.hash_to_block.items()}
        if blocks != ledger.block_to_hash or not self._texts.keys() >= ledger.hash_to_block.keys():
            told = f"hashes {ledger.hash_to_block}, blocks {ledger.block_to_hash}"
            raise EngineFailed(f"{told}; texts {self._texts}", clause="PC")
        keys: list[tuple[int, ...]] = [()] * self.geometry.pages
        for block, known in blocks.items():
            keys[block - self._first] = (0, *self._texts[known])
        return keys

    def fork(self, parent: int, child: int) -> bool:
        """Fork the request of a slot, and copy what is not shared; whether there was room."""
        request, name = self.requests[parent], self._name()
        copies: dict[str, tuple[list[int], list[int]]]
        copies = {kind: ([], []) for kind in self.cache.cache_allocators}
        self.cache.pool.try_to_free_sectors()
        if not self.cache.prepare_fork_request(request, [name], copies):
            return False
        self.requests[child] = request.fork(name)
        self.cache.perform_cache_copy(copies)
        return True

    def release(self, slot: int) -> None:
        """End the request of a slot."""
        self.cache.free_blocks(self.requests.pop(slot).request_id)

    def tokens(self, slot: int) -> list[int]:
        """The known tokens of a slot."""
        request = self.requests.get(slot)
        return [] if request is None else request.initial_tokens + request.generated_tokens

    def written(self, slot: int) -> int:
        """How many cells of a slot are written."""
        request = self.requests.get(slot)
        return 0 if request is None else request.current_len()

    def row(self, slot: int) -> list[int]:
        """The pages of a slot, in order of position."""
        request = self.requests.get(slot)
        if request is None:
            return []
        table = self._allocator.block_table.get(request.request_id, [])
        return [block - self._first for block in table]

    def free_pages(self) -> list[int]:
        """The pages of free sectors and the free ones of the others, as often as they are listed.

        Raises EngineFailed if the number of the latter, which is kept apart, disagrees.
        """
        pool, index = self.cache.pool, self._allocator.index
        each = self._allocator.blocks_per_sector
        free = [sector * each + more for sector in pool.free_sectors for more in range(each)]
        trees = pool._free_blocks[index].trees  # noqa: SLF001 - nothing public lists free blocks
        loose = [block for tree in trees.values() for block in tree]
        if pool.count_free_blocks(index) != len(loose):
            stated = pool.count_free_blocks(index)
            raise EngineFailed(
                f"{len(loose)} blocks are free in sectors in use, stated as {stated}", clause="CONS"
            )
        return [block - self._first for block in free + loose]

    def counts(self) -> list[int]:
        """The count of each page: 0 if it is free or only kept for its contents.

        Raises EngineFailed if a page is listed as free more than once.
        """
        ledger, free = self._allocator.ledger, self.free_pages()
        if len(free) != len({*free}):
            raise EngineFailed(f"pages are free more than once: {sorted(free)}", clause="CONS")
        idle = {*free, *self.cached_pages()}
        return [
            0 if page in idle else ledger.shared_ref_counts.get(page + self._first, 1)
            for page in range(self.geometry.pages)
        ]

    def cached_pages(self) -> list[int]:
        """The pages that no request holds and whose contents are kept."""
        return [block - self._first for block in self._allocator.ledger.cached_blocks]

    def complete(self, slot: int, count: int) -> None:
        """Store K and V of the next positions, and register the hashes of what is full then."""
        request = self.requests[slot]
        full = self.cache.count_new_complete_blocks(request, count)
        self.store(slot, count)
        self.cache.mark_complete_blocks(request, full)

    def store(self, slot: int, count: int) -> None:
        """Store K and V of the next positions of a slot."""
        request, tokens = self.requests[slot], self.tokens(slot)
        past = request.current_len()
        new = [content(tuple(tokens[: end + 1])) for end in range(past, past + count)]
        self._update([(request, past, count)], self._torch.tensor(new), padding=False)
        request.position_offset += count

    def contents(self) -> list[list[float]]:
        """What each cell holds, by destination."""
        planes = [plane.reshape(-1, WIDTH) for plane in self._planes()]
        held: list[list[float]] = self._torch.cat(planes, dim=1).tolist()
        return held

    def poison(self, kind: Poison) -> None:
        """Overwrite the cells that no request has written, except in blocks that are kept."""
        cells = self.geometry.pages * self.geometry.page_size
        size = self.geometry.page_size
        live = {page * size + at for page in self.cached_pages() for at in range(size)}
        for slot in self.requests:
            row = self.row(slot)
            live.update(row[at // size] * size + at % size for at in range(self.written(slot)))
        dead = sorted(set(range(cells)) - live)
        if kind is Poison.STALE or not dead or (kind is Poison.LIVE and not live):
            return
        for plane in self._planes():
            flat = plane.reshape(-1, WIDTH)
            flat[dead] = flat[min(live)].clone() if kind is Poison.LIVE else float(kind.value)
            plane.copy_(flat.view(plane.shape))

    def attended(self) -> dict[int, list[int]]:
        """The destinations that the last written position of each slot reads, in order."""
        asked = {slot: one for slot, one in self.requests.items() if one.current_len()}
        if not asked:
            return {}
        kept = self._allocator.cache_tensor.clone()
        cells = self.geometry.pages * self.geometry.page_size
        self._allocator.cache_tensor.fill_(-1)
        for index, plane in enumerate(self._planes()):
            names = self._torch.arange(cells, dtype=self._torch.float32) + index * cells
            plane.copy_(names.view(*plane.shape[:2], 1, 1).expand(plane.shape))
        try:
            queries = [(one, one.current_len() - 1, 1) for one in asked.values()]
            found = self._update(queries, self._torch.zeros(len(asked), NUMBERS), padding=True)
            tables = [self._through_table(one) for one in asked.values()]
        finally:
            self._allocator.cache_tensor.copy_(kept)
        by_table = [list(chain(*parts)) for parts in zip(*tables, strict=True)]
        reads, *others = [
            [int(name) - index * cells if name >= 0 else -1 for name in names]
            for planes in (found, by_table)
            for index, names in enumerate(planes)
        ]
        if any(other != reads for other in others) or not {*reads} <= {*range(cells)}:
            raise EngineFailed(
                f"keys, values and block tables name different cells: {reads} {others}",
                clause="READ",
            )
        cut = iter(reads)
        return {slot: list(islice(cut, one.current_len())) for slot, one in asked.items()}

    def _name(self) -> str:
        self._made += 1
        return f"request {self._made}"

    def _update(
        self, queries: Iterable[tuple[Any, int, int]], new: Any, *, padding: bool
    ) -> list[list[float]]:
        """One pass over (request, past, count): what `update` returns, for each plane.

        new: one row of numbers for each query. padding: store it where padding is stored.
        """
        reads: list[list[int]] = [[]]
        writes: list[list[int]] = [[]]
        kind, lengths = self._allocator.layer_type, [0]
        for request, past, count in queries:
            self.cache.extend_read_and_write_indices(request.request_id, past, count, reads, writes)
            lengths.append(self._allocator.get_seqlen_k(past, count))
        if padding:
            writes = [[self._allocator.write_trash_index] * len(writes[0])]
        found: list[list[float]] = []
        rows = new.view(1, len(new), 1, 2 * LAYERS, WIDTH).permute(3, 0, 2, 1, 4)
        for layer in range(LAYERS):
            options = {
                "read_index": self._torch.tensor(reads),
                "write_index": self._torch.tensor(writes),
                "cu_seq_lens_k": {kind: self._torch.tensor(lengths).cumsum(0)},
                "max_length_k": {kind: max(lengths)},
            }
            key, value = rows[2 * layer], rows[2 * layer + 1]
            both = self.cache.update(key, value, layer, options)
            found += [one[0, 0, :, 0].tolist() for one in both]
        return found

    def _through_table(self, request: Any) -> list[list[float]]:
        """What the kernels that take a block table read for a request, for each plane."""
        past, size = request.current_len() - 1, self.geometry.page_size
        table = self._torch.zeros(1, self.geometry.pages_per_seq, dtype=self._torch.int32)
        self.cache.fill_block_table(request.request_id, past, 1, table)
        pages = table[0, : -(-(past + 1) // size)].long()
        return [
            plane[pages, :, 0, 0].flatten()[: past + 1].tolist()
            for layer in range(LAYERS)
            for plane in self._allocator.get_cache_for_block_table(layer)
        ]

    def _planes(self) -> list[Any]:
        """K and V of each layer as (pages, page_size, 1, WIDTH), in place."""
        views = [self._allocator.get_cache_for_block_table(layer) for layer in range(LAYERS)]
        step = 2 * LAYERS
        return [
            plane[self._first * step :: step][: self.geometry.pages]
            for both in views
            for plane in both
        ]


class Adapter:
    """See `conformance.protocol`. sharing: whether prefixes are shared."""

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, sharing: bool
    ) -> None:
        self._sharing, shares = sharing, ", sharing prefixes" * sharing
        self.profile = Profile(
            name=f"the paged cache of {PACKAGE} {drift.version(PACKAGE)}{shares}",
            geometry=geometry,
            limits=limits,
            cleanup=cleanup,
            actions=OFFERED | ({act.Hit} if sharing else set()),
            unasked=UNASKED if sharing else frozenset(),
            contexts=False,
            policy="any",
            batches="one slot",
            sizes=SIZES,
            guarded=frozenset(Reason) - {Reason.OUT_OF_PAGES},
        )
        self._blocks = Blocks(geometry)
        self._allocated: dict[int, int] = {}

    def apply(self, action: Action) -> Result:  # noqa: C901 - a table
        """Call the cache."""
        blocks, allocated = self._blocks, self._allocated
        match action:
            case act.Reserve(int(slot)):
                blocks.open(slot, ())
                blocks.grow(slot, 0)
                allocated[slot] = 0
            case act.Assign(int(slot), prompt):
                blocks.requests[slot].initial_tokens.extend(prompt)
                blocks.learn(slot)
            case act.Append(int(slot), tokens):
                blocks.requests[slot].generated_tokens.extend(tokens)
                blocks.learn(slot)
            case act.Allocate(batch):
                for slot, positions in by_slot(batch).items():
                    self._make_room(partial(blocks.grow, slot, positions[-1] + 1))
                    allocated[slot] = positions[-1] + 1
            case act.Write(batch):
                write = blocks.complete if self._sharing else blocks.store
                for slot, positions in by_slot(batch).items():
                    write(slot, len(positions))
            case act.Hit(slot, length):
                if not blocks.hit(slot, length):
                    raise refused(Reason.NOT_INDEXED)
                allocated[slot] = length
            case act.Clone(parent, int(child)):
                self._make_room(partial(blocks.fork, parent, child))
                allocated[child] = allocated[parent]
            case act.Free(int(slot)):
                blocks.release(slot)
                del allocated[slot]
            case act.Reset():
                blocks.cache.reset()
                blocks.requests.clear()
                allocated.clear()
        return None

    def _make_room(self, takes: Callable[[], bool]) -> None:
        """Take pages, if need be those that are only kept. Raises Refused if there are too few."""
        if not takes() and not (self._blocks.evict() and takes()):
            raise refused(Reason.OUT_OF_PAGES)

    def observe(self) -> View:
        """Rows, counts, tokens, the tensors and, with prefix sharing, the index."""
        slots = range(self.profile.geometry.slots)
        return View(
            geometry=self.profile.geometry,
            counts=self._blocks.counts(),
            used=[slot in self._blocks.requests for slot in slots],
            rows=[self._blocks.row(slot) for slot in slots],
            allocated=[self._allocated.get(slot, 0) for slot in slots],
            written=[self._blocks.written(slot) for slot in slots],
            tokens=[self._blocks.tokens(slot) for slot in slots],
            contexts=[0 for _ in slots] if self._sharing else None,
            indexed=self._blocks.indexed() if self._sharing else None,
            cells=self._blocks.contents(),
            expected=content,
        )

    def poison(self, kind: Poison) -> None:
        """See `conformance.protocol.Poisonable`."""
        self._blocks.poison(kind)

    def attend(self) -> Mapping[int, Mapping[int, int]]:
        """See `conformance.protocol.Attends`."""
        return {slot: Counter(reads) for slot, reads in self._blocks.attended().items()}


def make(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Adapter:
    """Nothing is registered for prefix sharing."""
    return Adapter(geometry, limits, cleanup, sharing=False)


def make_sharing(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Adapter:
    """Prefix sharing on."""
    return Adapter(geometry, limits, cleanup, sharing=True)
