"""The adapter of vLLM's v1 cache manager: `KVCacheManager` over its `BlockPool`, full attention.

    make engine-vllm

Prefix caching is off for `make`, and on for `make_caching` and `make_caching_written`. A request
of vLLM stands for a slot, and its blocks for a row.

vLLM itself must report when no block is free: `allocate_slots` returns None. Every other check is
its scheduler's, and guarded here: that a slot is free or used, the next positions, the width of a
batch, the length of a sequence (vLLM cuts it at `max_model_len` and does not refuse), and that a
request is freed once. vLLM takes one request at a time.

The view has rows from `get_block_ids`, and `ref_cnt` of every block; `observe` fails unless the
free queue holds exactly the blocks whose count is 0, once each. vLLM keeps no lengths or contents;
the clauses that need them are not checked. Its block 0 stands for no block and is never given out,
so page p here is its block p + 1. A reset frees every request and then requests an empty prefix
cache, which vLLM grants only if no block is in use.

With prefix caching vLLM publishes and evicts by itself, and the index that is shown is its map from
hashes to blocks: for each text of a request that it has seen, the block that a hit finds. Several
blocks may have one hash; the others are not shown, and a hash may move to one of them. A context is
a cache salt. A hit is what `get_computed_blocks` finds, cut to the length that is asked for. The
adapter has the lengths, the tokens and the cells, which it writes as the model would. The events
are those of `take_events`, read as a router does that knows nothing else.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final

from conformance.engines import drift
from conformance.engines.texts import Text, Texts
from conformance.protocol import Action, EngineFailed, Profile, Result
from spec.machines import actions as act
from spec.table import Batch, by_slot
from spec.view import View
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    Limits,
    Reason,
    Tokens,
    refused,
)
from spec.vocabulary.events import Event, PageKey

PACKAGE: Final = "vllm-tpu"
REMEDY: Final = "Run `make engine-vllm`: it installs vllm-tpu 0.32.0 in a place of its own."
OFFERED: Final = frozenset({act.Reserve, act.Allocate, act.Free, act.Reset})
_MANAGER: Final = "vllm.v1.core.kv_cache_manager"
_POOL: Final = "vllm.v1.core.block_pool"
_UTILS: Final = "vllm.v1.core.kv_cache_utils"
_INTERFACE: Final = "vllm.v1.kv_cache_interface"
_REQUEST: Final = "vllm.v1.request"
CALLS: Final[Mapping[str, tuple[str, ...]]] = {
    f"{_MANAGER}:KVCacheManager": (
        "kv_cache_config", "max_model_len", "scheduler_block_size", "hash_block_size",
        "max_in_flight_tokens", "enable_caching", "use_eagle", "num_prefill_lookahead",
        "log_stats", "enable_kv_cache_events", "dcp_world_size", "pcp_world_size",
        "metrics_collector", "watermark", "enable_mamba_shared_prefix_checkpoint",
    ),
    f"{_MANAGER}:KVCacheManager.get_computed_blocks": ("self", "request"),
    f"{_MANAGER}:KVCacheManager.allocate_slots": (
        "self", "request", "num_new_tokens", "num_new_computed_tokens", "new_computed_blocks",
        "num_lookahead_tokens", "num_external_computed_tokens", "delay_cache_blocks",
        "num_encoder_tokens", "full_sequence_must_fit", "reserved_blocks", "has_scheduled_reqs",
        "skip_zeroing_group_ids",
    ),
    f"{_MANAGER}:KVCacheManager.truncate_computed_blocks": (
        "self", "blocks", "num_computed_tokens",
    ),
    f"{_MANAGER}:KVCacheManager.cache_blocks": ("self", "request", "num_computed_tokens"),
    f"{_MANAGER}:KVCacheManager.free": ("self", "request"),
    f"{_MANAGER}:KVCacheManager.reset_prefix_cache": ("self",),
    f"{_MANAGER}:KVCacheManager.get_block_ids": ("self", "request_id"),
    f"{_MANAGER}:KVCacheManager.take_events": ("self",),
    f"{_UTILS}:get_request_block_hasher": ("hash_block_size", "caching_hash_fn"),
    f"{_UTILS}:init_none_hash": ("hash_fn",),
    f"{_UTILS}:make_block_hash_with_group_id": ("block_hash", "group_id"),
    f"{_POOL}:BlockHashToBlockMap.get_one_block": ("self", "key"),
    f"{_UTILS}:FreeKVCacheBlockQueue.get_all_free_blocks": ("self",),
    f"{_REQUEST}:Request.append_output_token_ids": ("self", "token_ids"),
}  # fmt: skip
"""The calls, with the parameters of vllm-tpu 0.32.0."""


class Blocks:
    """The cache manager of vLLM and its requests by slot. caching: whether prefixes are kept.

    Raises InvalidInput if vLLM is absent, or its calls have changed.
    """

    def __init__(self, geometry: Geometry, *, caching: bool) -> None:
        drift.require_installed(
            PACKAGE, _MANAGER, allowed="vllm-tpu 0.32.0, installed", remedy=REMEDY
        )
        drift.require(PACKAGE, CALLS, remedy=REMEDY)
        manager, utils, interface, self._request = (
            import_module(name) for name in (_MANAGER, _UTILS, _INTERFACE, _REQUEST)
        )
        hashing = import_module("vllm.utils.hashing").sha256
        utils.init_none_hash(hashing)
        self._named = utils.make_block_hash_with_group_id
        self._hasher = utils.get_request_block_hasher(geometry.page_size, hashing)
        self._params = import_module("vllm").SamplingParams(max_tokens=geometry.max_len)
        dtype = import_module("torch").float32
        spec = interface.FullAttentionSpec(
            block_size=geometry.page_size, num_kv_heads=1, head_size=1, dtype=dtype
        )
        group = interface.KVCacheGroupSpec(["layer"], spec)
        self.manager = manager.KVCacheManager(
            interface.KVCacheConfig(geometry.pages + 1, [], [group]),
            max_model_len=geometry.max_len,
            scheduler_block_size=geometry.page_size,
            hash_block_size=geometry.page_size,
            enable_caching=caching,
            enable_kv_cache_events=caching,
        )
        self.requests: dict[int, Any] = {}
        self._made = 0

    def open(self, tokens: Tokens, *, salt: int = 0) -> Any:
        """Open a request with a unique name. salt: what tells its texts from those of others."""
        self._made += 1
        return self._request.Request(
            f"request {self._made}",
            list(tokens),
            self._params,
            None,
            cache_salt=str(salt) if salt else None,
            block_hasher=self._hasher,
        )

    def names(self, slot: int) -> list[Any]:
        """The name of each full block of tokens of a request, by which the pool finds a block."""
        return [self._named(one, 0) for one in self.requests[slot].block_hashes]

    def found(self, name: Any) -> int | None:
        """The page that a hit of this name finds; None if there is none."""
        block = self.manager.block_pool.cached_block_hash_to_block.get_one_block(name)
        return None if block is None else block.block_id - 1

    def reset(self) -> None:
        """End every request, and empty the prefix cache."""
        for slot in tuple(self.requests):
            self.release(slot)
        if not self.manager.reset_prefix_cache():
            raise EngineFailed("blocks are in use though every request was freed")

    def row(self, slot: int) -> tuple[int, ...]:
        """The pages of a request, in order of position."""
        request = self.requests.get(slot)
        if request is None:
            return ()
        return tuple(block - 1 for block in self.manager.get_block_ids(request.request_id)[0])

    def free_pages(self) -> list[int]:
        """The pages in the queue of free blocks, as often as they occur in it."""
        queue = self.manager.block_pool.free_block_queue.get_all_free_blocks()
        return [block.block_id - 1 for block in queue]

    def counts(self) -> tuple[int, ...]:
        """`ref_cnt` of each page; raises if the free queue disagrees."""
        counts = tuple(block.ref_cnt for block in self.manager.block_pool.blocks[1:])
        idle = [page for page, count in enumerate(counts) if count == 0]
        free, stated = sorted(self.free_pages()), self.manager.block_pool.get_num_free_blocks()
        if free != idle or stated != len(idle):
            raise EngineFailed(f"free queue {free}, reported as {stated}; counts of 0: {idle}")
        return counts

    def release(self, slot: int) -> None:
        """End a request."""
        self.manager.free(self.requests.pop(slot))


class Told:
    """What the events of vLLM tell: the key of each hash, and how often it is stored."""

    def __init__(self, page_size: int) -> None:
        self._size = page_size
        self._keys, self._stored = dict[Any, PageKey](), Counter[PageKey]()

    def read(self, told: Iterable[Any]) -> Iterator[Event]:
        """The same events in the words of `conformance.protocol.Emits`."""
        for one in told:
            match type(one).__name__:
                case "BlockStored":
                    yield from self._read_stored(one)
                case "BlockRemoved":
                    yield from (self._removed(self._known(name)) for name in one.block_hashes)
                case "AllBlocksCleared":
                    left = sorted(self._stored.elements(), key=len, reverse=True)
                    yield from map(self._removed, left)
                case other:
                    raise EngineFailed(f"an event of an unknown kind: {other}", clause="EVT")

    def _read_stored(self, one: Any) -> Iterator[Event]:
        size, tokens = self._size, one.token_ids
        salts = one.extra_keys[0] or (0,)
        parent = one.parent_block_hash
        key = (int(salts[0]),) if parent is None else self._known(parent)
        for place, name in enumerate(one.block_hashes):
            key = self._keys[name] = (*key, *tokens[place * size : (place + 1) * size])
            self._stored[key] += 1
            yield "stored", key

    def _removed(self, key: PageKey) -> Event:
        self._stored[key] -= 1
        return "removed", key

    def _known(self, name: Any) -> PageKey:
        if name not in self._keys:
            wrong = f"an event names the block {name!r}, of which none told before"
            raise EngineFailed(wrong, clause="EVT")
        return self._keys[name]


class Adapter:
    """See `conformance.protocol`."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        self.profile = Profile(
            name=f"vLLM v1 core, {PACKAGE} {drift.version(PACKAGE)}",
            geometry=geometry,
            limits=limits,
            cleanup=cleanup,
            actions=OFFERED,
            policy="any",
            batches="one slot",
            guarded=frozenset(Reason) - {Reason.OUT_OF_PAGES},
        )
        self._blocks = Blocks(geometry, caching=False)

    def apply(self, action: Action) -> Result:
        """Call the manager."""
        requests = self._blocks.requests
        match action:
            case act.Reserve(int(slot)):
                requests[slot] = self._blocks.open((0,) * self.profile.geometry.max_len)
            case act.Allocate(batch):
                for slot, positions in by_slot(batch).items():
                    if self._blocks.manager.allocate_slots(requests[slot], len(positions)) is None:
                        raise refused(Reason.OUT_OF_PAGES)
                    requests[slot].num_computed_tokens = positions[-1] + 1
            case act.Free(int(slot)):
                self._blocks.release(slot)
            case act.Reset():
                self._blocks.reset()
        return None

    def observe(self) -> View:
        """Rows and counts."""
        slots = range(self.profile.geometry.slots)
        return View(
            geometry=self.profile.geometry,
            counts=self._blocks.counts(),
            used=[slot in self._blocks.requests for slot in slots],
            rows=[self._blocks.row(slot) for slot in slots],
        )


class CachingAdapter:
    """See `conformance.protocol`. Prefix caching is on; the adapter keeps texts and cells.

    early: whether a block is published when it is allocated, as the scheduler of vLLM does, and not
    when it is written, as after a transfer. A block that some request still has to write is then
    not shown in the index: the model writes it before any hit of it is read.
    """

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, early: bool
    ) -> None:
        self.profile = Profile(
            name=f"vLLM v1 core with prefix caching, {PACKAGE} {drift.version(PACKAGE)}",
            geometry=geometry,
            limits=limits,
            cleanup=cleanup,
            actions=OFFERED | {act.Assign, act.Append, act.Write, act.Hit},
            unasked={act.Publish, act.Evict},
            policy="any",
            batches="one slot",
            guarded=frozenset(Reason) - {Reason.OUT_OF_PAGES},
        )
        self._blocks = Blocks(geometry, caching=True)
        self._texts, self._early = Texts(geometry), early
        self._told = Told(geometry.page_size)
        if not early:
            self.events = self._events
        self._keys: dict[Any, tuple[int, ...]] = {}

    def apply(self, action: Action) -> Result:
        """Call the manager."""
        texts, requests = self._texts, self._blocks.requests
        match action:
            case act.Reserve(int(slot), context):
                texts.held[slot] = Text(context)
                requests[slot] = self._blocks.open((), salt=context)
            case act.Assign(slot=int(slot), prompt=tokens) | act.Append(int(slot), tokens):
                self._append(slot, tokens)
            case act.Allocate(batch):
                self._allocate(batch)
            case act.Write(batch):
                self._write(batch)
            case act.Hit(slot, length):
                self._hit(slot, length)
            case act.Free(int(slot)):
                self._blocks.release(slot)
                del texts.held[slot]
            case act.Reset():
                self._blocks.reset()
                texts.reset()
        return None

    def observe(self) -> View:
        """Rows, counts and the index of the manager, with the texts and cells of the adapter."""
        geometry, unwritten = self.profile.geometry, self._unwritten()
        found = {self._blocks.found(name): key for name, key in self._keys.items()}
        index = [found.get(page, ()) for page in range(geometry.pages)]
        return View(
            geometry=geometry,
            counts=self._blocks.counts(),
            rows=[self._blocks.row(slot) for slot in range(geometry.slots)],
            indexed=[() if page in unwritten else key for page, key in enumerate(index)],
            **self._texts.shown(),
        )

    def _events(self) -> tuple[Event, ...]:
        """Those of the manager since the last call."""
        return tuple(self._told.read(self._blocks.manager.take_events()))

    def _append(self, slot: int, tokens: Tokens) -> None:
        self._texts.held[slot].tokens += tokens
        self._blocks.requests[slot].append_output_token_ids(list(tokens))
        for pages, name in enumerate(self._blocks.names(slot), start=1):
            self._keys[name] = self._texts.key(slot, pages)

    def _allocate(self, batch: Batch) -> None:
        for slot, positions in by_slot(batch).items():
            request, more, text = (
                self._blocks.requests[slot],
                len(positions),
                self._texts.held[slot],
            )
            given = self._blocks.manager.allocate_slots(
                request, more, delay_cache_blocks=not self._early
            )
            if given is None:
                raise refused(Reason.OUT_OF_PAGES)
            text.allocated += more
            request.num_computed_tokens = text.allocated

    def _write(self, batch: Batch) -> None:
        self._texts.write(batch, self._blocks.row)
        for slot in by_slot(batch) if not self._early else ():
            written = self._texts.held[slot].written
            self._blocks.manager.cache_blocks(self._blocks.requests[slot], written)

    def _hit(self, slot: int, length: int) -> None:
        """Take so much of what the manager finds; it may find less, or no room for it."""
        request, manager = self._blocks.requests[slot], self._blocks.manager
        found, cells, _ = manager.get_computed_blocks(request)
        if cells < length:
            raise refused(Reason.NOT_INDEXED)
        blocks = manager.truncate_computed_blocks(found, length)
        if manager.allocate_slots(request, 0, length, blocks, delay_cache_blocks=True) is None:
            raise refused(Reason.OUT_OF_PAGES)
        request.num_computed_tokens = length
        self._texts.hit(slot, length)

    def _unwritten(self) -> set[int]:
        """The pages of which a sequence has not written every cell."""
        size = self.profile.geometry.page_size
        return {
            page
            for slot, text in self._texts.held.items()
            for page in self._blocks.row(slot)[text.written // size :]
        }


def make(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Adapter:
    """Prefix caching off."""
    return Adapter(geometry, limits, cleanup)


def make_caching(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> CachingAdapter:
    """Prefix caching on; a block is published when it is allocated, as by the scheduler."""
    return CachingAdapter(geometry, limits, cleanup, early=True)


def make_caching_written(
    geometry: Geometry, limits: Limits, cleanup: CleanupMode
) -> CachingAdapter:
    """Prefix caching on; a block is published when it is written."""
    return CachingAdapter(geometry, limits, cleanup, early=False)
