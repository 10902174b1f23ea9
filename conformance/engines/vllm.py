"""The adapter of vLLM's v1 cache manager: `KVCacheManager` over its `BlockPool`, full attention.

    make engine-vllm

Prefix caching is off for the kit, and on for `conformance.harnesses.prefix_caching`. A request of
vLLM stands for a slot, and its blocks for a row.

vLLM itself must report when no block is free: `allocate_slots` returns None. Every other check is
its scheduler's, and guarded here: that a slot is free or used, the next positions, the width of a
batch, the length of a sequence (vLLM cuts it at `max_model_len` and does not refuse), and that a
request is freed once. vLLM takes one request at a time.

The view has rows from `get_block_ids`, and `ref_cnt` of every block; `observe` fails unless the
free queue holds exactly the blocks whose count is 0, once each. vLLM keeps no lengths or contents;
the clauses that need them are not checked. Its block 0 stands for no block and is never given out,
so page p here is its block p + 1. A reset frees every request and then requests an empty prefix
cache, which vLLM grants only if no block is in use.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from conformance.engines import drift
from conformance.protocol import Action, EngineFailed, Profile, Result
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

PACKAGE: Final = "vllm-tpu"
REMEDY: Final = "Run `make engine-vllm`: it installs vllm-tpu 0.32.0 in a place of its own."
OFFERED: Final = frozenset({act.Reserve, act.Allocate, act.Free, act.Reset})
_MANAGER: Final = "vllm.v1.core.kv_cache_manager"
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
    f"{_MANAGER}:KVCacheManager.free": ("self", "request"),
    f"{_MANAGER}:KVCacheManager.reset_prefix_cache": ("self",),
    f"{_MANAGER}:KVCacheManager.get_block_ids": ("self", "request_id"),
    f"{_UTILS}:get_request_block_hasher": ("hash_block_size", "caching_hash_fn"),
    f"{_UTILS}:init_none_hash": ("hash_fn",),
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
        )
        self.requests: dict[int, Any] = {}
        self._made = 0

    def open(self, tokens: Tokens) -> Any:
        """Open a request with a unique name."""
        self._made += 1
        return self._request.Request(
            f"request {self._made}", list(tokens), self._params, None, block_hasher=self._hasher
        )

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
                for slot in tuple(requests):
                    self._blocks.release(slot)
                if not self._blocks.manager.reset_prefix_cache():
                    raise EngineFailed("blocks are in use though every request was freed")
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


class Prefixes:
    """The calls of the scheduler with prefix caching on, for `harnesses.prefix_caching`.

    A block that `allocate_slots` has filled can be hit at once, before the model has run; the model
    then writes it earlier in the same pass. drops: let a request end between the two.
    """

    def __init__(self, geometry: Geometry, *, drops: bool) -> None:
        self.geometry, self.drops = geometry, drops
        self._blocks = Blocks(geometry, caching=True)

    def start(self, slot: int, tokens: Tokens, count: int) -> tuple[int, int] | None:
        """Look the prompt up, and allocate cells for the part that is not hit."""
        request = self._blocks.open(tokens)
        found, hit, _ = self._blocks.manager.get_computed_blocks(request)
        given = max(count, hit + 1)
        if self._blocks.manager.allocate_slots(request, given - hit, hit, found) is None:
            return None
        self._blocks.requests[slot] = request
        return hit, given

    def grow(self, slot: int, tokens: Tokens, count: int) -> int | None:
        """The next part of a prompt, or one more token."""
        request = self._blocks.requests[slot]
        request.append_output_token_ids(list(tokens[request.num_tokens :]))
        more = count - request.num_computed_tokens
        return count if self._blocks.manager.allocate_slots(request, more) is not None else None

    def computed(self, slot: int, tokens: Tokens) -> None:
        """Update the request alone."""
        self._blocks.requests[slot].num_computed_tokens = len(tokens)

    def end(self, slot: int, _tokens: Tokens) -> None:
        """Free the request; its blocks stay cached until they are reused."""
        self._blocks.release(slot)

    def row(self, slot: int) -> tuple[int, ...]:
        """The blocks of its request."""
        return self._blocks.row(slot)

    def spare(self) -> list[int]:
        """The free queue, where cached blocks wait too."""
        return self._blocks.free_pages()

    def counts(self) -> tuple[int, ...]:
        """`ref_cnt` of each block."""
        return self._blocks.counts()


def make(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Adapter:
    """Prefix caching off."""
    return Adapter(geometry, limits, cleanup)


def prefixes(geometry: Geometry) -> Prefixes:
    """Prefix caching on; allocated cells are computed before their request ends."""
    return Prefixes(geometry, drops=False)


def prefixes_dropped(geometry: Geometry) -> Prefixes:
    """Prefix caching on; a request may end between allocation and computation."""
    return Prefixes(geometry, drops=True)
