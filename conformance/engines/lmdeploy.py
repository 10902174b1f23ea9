"""The adapter of the block manager of lmdeploy's PyTorch engine: `DefaultBlockManager`.

    make engine-lmdeploy

Prefix caching is off for the kit, and on for `conformance.harnesses.prefix_caching`, which drives
`Scheduler`. A sequence of lmdeploy stands for a slot, and its block table for a row.

lmdeploy itself must report when no block is free: `can_allocate` returns False, and then
`allocate` must succeed if it returned True. Every other check is its scheduler's, and guarded here:
that a slot is free or used, the next positions, the width of a batch, the length of a sequence, and
that a sequence is freed once. lmdeploy takes one sequence at a time.

`prealloc_size` is what a sequence takes ahead. The engine asks for 16 tokens, and the adapter for
`AHEAD`: 16 would fill every row of the kit at once. lmdeploy has no longest row, so the adapter
stops at `max_len` as the engine stops at `max_session_len`.

The view has rows from `get_block_table`, the count of the logical block that stands for each
physical one, and `num_all_ids`. `observe` fails unless both free lists hold exactly the blocks
whose count is 0, once each. Release 0.18.0 has no fork and copies no block: sequences share blocks
through the prefix cache alone. `truncate` is not driven: it cuts blocks, and no call of lmdeploy
shortens the text of a sequence. Windows and swapping are not driven.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from sys import modules
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from conformance.engines import drift, parents
from conformance.protocol import Action, EngineFailed, Profile, Result
from spec.machines import actions as act
from spec.table import by_slot
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, InvalidInput, Limits, Reason, Tokens, refused

PACKAGE: Final = "lmdeploy"
REMEDY: Final = "Run `make engine-lmdeploy`: it installs lmdeploy 0.18.0 in a place of its own."
OFFERED: Final = frozenset({act.Reserve, act.Allocate, act.Free})
AHEAD: Final = 3
"""The tokens for which a sequence takes blocks ahead."""
PARENTS: Final = (
    "lmdeploy", "lmdeploy.pytorch.disagg", "lmdeploy.pytorch.engine", "lmdeploy.pytorch.paging",
    "lmdeploy.vl",
)  # fmt: skip
"""The packages whose own imports would load CUDA kernels and the server."""
AGENT: Final = "lmdeploy.pytorch.engine.model_agent"
"""The module that runs the model. A sequence imports it for an annotation alone."""
_EVICTION: Final = "lmdeploy.pytorch.paging.eviction_helper.recompute_eviction_helper"
_MANAGER: Final = "lmdeploy.pytorch.paging.block_manager"
_SCHEDULER: Final = "lmdeploy.pytorch.paging.scheduler"
_SEQUENCE: Final = "lmdeploy.pytorch.strategies.ar.sequence"
_MESSAGES: Final = "lmdeploy.pytorch.messages"
CALLS: Final[Mapping[str, Sequence[str]]] = {
    f"{_MANAGER}:DefaultBlockManager": ("num_gpu_blocks", "num_cpu_blocks", "num_gpu_reserved"),
    f"{_MANAGER}:DefaultBlockManager.can_allocate": ("self", "msg", "prealloc_size"),
    f"{_MANAGER}:DefaultBlockManager.allocate": ("self", "data", "prealloc_size"),
    f"{_MANAGER}:DefaultBlockManager.free": ("self", "msg"),
    f"{_MANAGER}:DefaultBlockManager.get_block_table": ("self", "msg"),
    f"{_MESSAGES}:SchedulerSession": ("session_id", "seq_meta", "lifecycle"),
    f"{_MESSAGES}:SchedulerSession.add_sequence": (
        "self", "token_ids", "sampling_param", "adapter_name", "multimodals", "input_embeddings",
        "migration_request", "resp_cache", "preserve_cache",
    ),
    f"{_EVICTION}:RecomputeEvictionHelper.try_make_capacity_for": (
        "self", "seq", "evictable_seqs", "prealloc_size",
    ),
    f"{_SEQUENCE}:SchedulerSequenceDefault.update_token_ids": (
        "self", "token_ids", "multimodals", "embeddings", "model_meta", "mode", "routed_experts",
        "kwargs",
    ),
    f"{_SEQUENCE}:SchedulerSequenceDefault.set_step": ("self", "step"),
    f"{_SCHEDULER}:Scheduler": ("scheduler_config", "cache_config", "seq_meta", "kv_connector"),
    f"{_SCHEDULER}:Scheduler.add_session": ("self", "session_id"),
    f"{_SCHEDULER}:Scheduler.schedule": (
        "self", "is_prefill", "prealloc_size", "allow_long_prefill", "prefer_long_prefill",
    ),
    f"{_SCHEDULER}:Scheduler.activate_seqs": ("self", "running"),
    f"{_SCHEDULER}:Scheduler.reserve_long_context_chunk": (
        "self", "seq", "chunk_size", "prealloc_size", "is_last_chunk",
    ),
    f"{_SCHEDULER}:Scheduler.schedule_running": (
        "self", "running", "num_required_tokens", "prealloc_size",
    ),
    f"{_SCHEDULER}:Scheduler.end_session": ("self", "session_id"),
}  # fmt: skip
"""The calls, with the parameters of lmdeploy 0.18.0."""


@cache
def library() -> SimpleNamespace:
    """The modules of the installed lmdeploy. Raises InvalidInput if it is missing or has drifted.

    Its GPU libraries are neither needed nor imported.
    """
    if modules.get(PACKAGE) is None:
        parents.register(_installed_root(), PARENTS)
        modules[AGENT] = agent = ModuleType(AGENT)
        agent.__dict__["BatchedOutputs"] = object
    drift.require(PACKAGE, CALLS, remedy=REMEDY)
    return SimpleNamespace(
        config=import_module("lmdeploy.pytorch.config"),
        manager=import_module(_MANAGER),
        messages=import_module(_MESSAGES),
        scheduler=import_module(_SCHEDULER),
        sequence=import_module(_SEQUENCE),
    )


def _installed_root() -> Path:
    try:
        found = find_spec(PACKAGE)
    except ValueError:  # a module stands in its place, without a spec
        found = None
    if found is None or not found.submodule_search_locations:
        raise InvalidInput(
            PACKAGE, seen="not installed", allowed="lmdeploy 0.18.0, installed", remedy=REMEDY
        )
    return Path(found.submodule_search_locations[0])


def free_pages(allocator: Any) -> list[int]:
    """The physical blocks in the free list. Raises EngineFailed if the logical list is wrong."""
    logical, refs = _free(allocator), _refs(allocator)
    if sorted(logical) != [block for block, count in enumerate(refs) if count == 0]:
        raise EngineFailed(f"free logical blocks {logical}; counts: {refs}")
    return _free(allocator.get_phy_allocator("gpu"))


def counts(allocator: Any, pages: int) -> list[int]:
    """The count of each physical block: that of the logical block which stands for it."""
    found = [0] * pages
    for page, count in zip(_physical(allocator).tolist(), _refs(allocator), strict=True):
        found[page] += count
    return found


def _free(allocator: Any) -> list[int]:
    blocks, count = attrgetter("_free_blocks", "_free_count")(allocator)
    free: list[int] = blocks[len(blocks) - count :].tolist()
    return free


def _refs(allocator: Any) -> list[int]:
    refs: list[int] = attrgetter("_log_mem.ref_count")(allocator).tolist()
    return refs


def _physical(allocator: Any) -> Any:
    """The physical block of each logical one."""
    return attrgetter("_log_mem.phy_map")(allocator)


class Adapter:
    """See `conformance.protocol`."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        self.profile = Profile(
            name=f"lmdeploy, {PACKAGE} {drift.version(PACKAGE)}",
            geometry=geometry,
            limits=limits,
            cleanup=cleanup,
            actions=OFFERED,
            policy="any",
            batches="one slot",
            lookahead=AHEAD,
            guarded=frozenset(Reason) - {Reason.OUT_OF_PAGES},
        )
        self._lmdeploy = library()
        self.manager = self._lmdeploy.manager.DefaultBlockManager(geometry.pages, 0)
        meta = self._lmdeploy.messages.SequenceMeta(geometry.page_size)
        self._session = self._lmdeploy.messages.SchedulerSession(0, meta, None)
        self._live: dict[int, Any] = {}

    def apply(self, action: Action) -> Result:
        """Call the manager."""
        match action:
            case act.Reserve(int(slot)):
                made = self._lmdeploy.sequence.SchedulerSequenceDefault(slot, self._session)
                self._live[slot] = made
            case act.Allocate(batch):
                for slot, positions in by_slot(batch).items():
                    self._extend(self._live[slot], len(positions))
            case act.Free(int(slot)):
                self.manager.free(self._live.pop(slot))
        return None

    def observe(self) -> View:
        """Rows, counts and lengths."""
        sizes, allocator = self.profile.geometry, self.manager.allocator
        found = counts(allocator, sizes.pages)
        free = sorted(free_pages(allocator))
        if free != [page for page, count in enumerate(found) if count == 0]:
            raise EngineFailed(f"free physical blocks {free}; counts: {found}")
        live = [self._live.get(slot) for slot in range(sizes.slots)]
        return View(
            geometry=sizes,
            counts=found,
            used=[one is not None for one in live],
            rows=[() if one is None else self.manager.get_block_table(one) for one in live],
            allocated=[0 if one is None else one.num_all_ids for one in live],
        )

    def _extend(self, one: Any, more: int) -> None:
        ahead = min(more + AHEAD, self.profile.geometry.max_len - one.num_all_ids)
        if not self.manager.can_allocate(one, ahead):
            raise refused(Reason.OUT_OF_PAGES)
        self.manager.allocate(one, ahead)
        one.update_token_ids([0] * more)


class Prefixes:
    """The scheduler with prefix caching on, for `harnesses.prefix_caching`; nothing is taken ahead.

    A sequence that lacks a block in decoding waits here with its blocks. lmdeploy would preempt it,
    and admit it again by another call: see docs/findings/lmdeploy-resumed.md. Two sequences with
    equal text write one block, which cannot be avoided here, and the harness says so: see
    docs/findings/lmdeploy-written-again.md.
    """

    drops = False  # a step that was planned is always run

    def __init__(self, geometry: Geometry) -> None:
        self.geometry, found = geometry, library()
        self._decode = found.messages.UpdateTokenMode.DECODE
        self._cache = found.config.CacheConfig(
            max_batches=geometry.slots,
            block_size=geometry.page_size,
            num_cpu_blocks=0,
            num_gpu_blocks=geometry.pages,
            enable_prefix_caching=True,
        )
        self._scheduler = found.scheduler.Scheduler(
            found.config.SchedulerConfig(geometry.slots, max_session_len=geometry.max_len),
            self._cache,
            found.messages.SequenceMeta(
                geometry.page_size, strategy=found.sequence.ARSequenceStrategy()
            ),
        )
        self._live: dict[int, Any] = {}

    def start(self, slot: int, tokens: Tokens, count: int) -> tuple[int, int] | None:
        """Schedule a prompt. A prefill is cut after about `count` tokens, at a whole page."""
        self._cache.max_prefill_token_num = self._whole(count)
        one = self._scheduler.add_session(slot).add_sequence(list(tokens))
        running = self._scheduler.schedule(is_prefill=True).running
        if not running:
            self._scheduler.end_session(slot)
            return None
        self._scheduler.activate_seqs(running)
        self._live[slot] = one
        return one.num_history_ids, one.kv_token_limit or len(tokens)

    def grow(self, slot: int, tokens: Tokens, count: int) -> int | None:
        """Reserve the next chunk of a prompt, or the cell of a drawn token."""
        one = self._live[slot]
        if one.num_history_ids < one.input_end_pos:
            left = one.input_end_pos - one.num_history_ids
            more = min(left, self._whole(count - one.num_history_ids))
            reserve = self._scheduler.reserve_long_context_chunk
            if not reserve(one, more, is_last_chunk=more == left):
                return None
            return int(one.num_history_ids + more)
        if one.num_valid_ids < len(tokens):
            one.update_token_ids([tokens[-1]], mode=self._decode)
        if not self._scheduler.eviction_helper.try_make_capacity_for(one, [], 0):
            return None
        (valid,) = self._scheduler.schedule_running([one], num_required_tokens=0, prealloc_size=0)
        if not valid:
            raise EngineFailed("a sequence is preempted though there is room")
        return count

    def computed(self, slot: int, tokens: Tokens) -> None:
        """Advance the history of the sequence."""
        self._live[slot].set_step(len(tokens))

    def end(self, slot: int, _tokens: Tokens) -> None:
        """End the session; published blocks stay in the trie until they are evicted."""
        del self._live[slot]
        self._scheduler.end_session(slot)

    def row(self, slot: int) -> tuple[int, ...]:
        """The block table of its sequence."""
        return tuple(map(int, self._scheduler.block_manager.get_block_table(self._live[slot])))

    def spare(self) -> list[int]:
        """The free list, and the blocks that the trie alone holds."""
        found, kept = self._counted(), self._kept()
        idle = [page for page in kept if found[page] == 1]
        return free_pages(self._scheduler.block_manager.allocator) + idle

    def counts(self) -> tuple[int, ...]:
        """The count of each block, without that of the trie."""
        kept = self._kept()
        return tuple(count - (page in kept) for page, count in enumerate(self._counted()))

    def _whole(self, count: int) -> int:
        """Tokens in whole pages: lmdeploy cuts a prompt after 8,192, which is a number of pages."""
        return self.geometry.page_size * self.geometry.pages_for(count)

    def _counted(self) -> list[int]:
        return counts(self._scheduler.block_manager.allocator, self.geometry.pages)

    def _kept(self) -> set[int]:
        """The blocks that the trie holds."""
        nodes = list(attrgetter("_roots")(self._scheduler.block_trie).values())
        for node in nodes:
            nodes.extend(node.children.values())
        physical = _physical(self._scheduler.block_manager.allocator)
        return {int(physical[node.block_id]) for node in nodes if node.block_id >= 0}


def make(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Adapter:
    """Prefix caching off."""
    return Adapter(geometry, limits, cleanup)


def prefixes(geometry: Geometry) -> Prefixes:
    """Prefix caching on."""
    return Prefixes(geometry)
