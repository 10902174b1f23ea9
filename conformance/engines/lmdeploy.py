"""The adapters of the block manager of lmdeploy's PyTorch engine: `DefaultBlockManager`.

    make engine-lmdeploy

With `make` prefix caching is off. With `make_caching` and `make_caching_written` it is on, and the
`BlockTrie` of a `Scheduler` is driven too. A sequence of lmdeploy stands for a slot, and its block
table for a row.

lmdeploy itself must report when no block is free: `can_allocate` returns False, and then
`allocate` must succeed if it returned True. Every other check is its scheduler's, and guarded here:
that a slot is free or used, the next positions, the width of a batch, the length of a sequence, and
that a sequence is freed once. lmdeploy takes one sequence at a time.

`prealloc_size` is what a sequence takes ahead. The engine asks for 16 tokens, and the adapter for
`AHEAD`: 16 would fill every row of the kit at once. lmdeploy has no longest row, so the adapter
stops at `max_len` as the engine stops at `max_session_len`. With prefix caching the adapter asks
for cells past the known tokens in this way, and for nothing else ahead.

The view has rows from `get_block_table`, the count of the logical block that stands for each
physical one, and `num_all_ids`. `observe` fails unless both free lists hold exactly the blocks
whose count is 0, once each.

With prefix caching a call of `Scheduler` is made in its parts: those of an admission, which matches
and then allocates, are two actions here. The view has the texts and the number of computed tokens
of the sequences, and the paths of the trie as its index. The name of an adapter of weights stands
for a context. A hit of a part of what is found is the hit of a shorter prompt. The cells of the
view belong to the adapter, which writes them in the blocks of the row.

lmdeploy publishes blocks when it allocates them, before they are computed: so does `make_caching`.
A block that a sequence has to compute, and that does not hold its text yet, is not shown in the
index: a pass computes it before another one reads it. The scheduler runs each pass that it has
planned, so a sequence with such a block is not freed: the adapter refuses. Fuzzing fails there, see
docs/findings/lmdeploy-written-again.md. `make_caching_written` publishes after the pass, which
avoids the finding; all else is as before.

Release 0.18.0 has no fork and copies no block: sequences share blocks through the prefix cache
alone. `truncate` is not driven: it cuts blocks, and no call of lmdeploy shortens the text of a
sequence. Preemption, windows, swapping, checkpoints of states and images are not driven.
"""

from collections.abc import Iterable, Mapping, Sequence
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
from spec.cells import POISON
from spec.machines import actions as act
from spec.table import by_slot
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, InvalidInput, Limits, Reason, refused

PACKAGE: Final = "lmdeploy"
REMEDY: Final = "Run `make engine-lmdeploy`: it installs lmdeploy 0.18.0 in a place of its own."
OFFERED: Final = frozenset({act.Reserve, act.Allocate, act.Free})
CACHING: Final = OFFERED | {act.Assign, act.Append, act.Write, act.Hit}
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
_TRIE: Final = "lmdeploy.pytorch.paging.block_trie.trie"
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
    f"{_SCHEDULER}:Scheduler.end_session": ("self", "session_id"),
    f"{_TRIE}:BlockTrie.match": ("self", "seq"),
    f"{_TRIE}:BlockTrie.allocate": ("self", "seq"),
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


def checked_counts(allocator: Any, pages: int) -> list[int]:
    """The same. Raises EngineFailed if the physical list of free blocks is wrong."""
    found, free = counts(allocator, pages), sorted(free_pages(allocator))
    if free != [page for page, count in enumerate(found) if count == 0]:
        raise EngineFailed(f"free physical blocks {free}; counts: {found}")
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
        sizes = self.profile.geometry
        live = [self._live.get(slot) for slot in range(sizes.slots)]
        return View(
            geometry=sizes,
            counts=checked_counts(self.manager.allocator, sizes.pages),
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


class CachingAdapter:
    """See `conformance.protocol`. early: whether a block is published when it is allocated."""

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, early: bool
    ) -> None:
        self.profile = Profile(
            name=f"lmdeploy with prefix caching, {PACKAGE} {drift.version(PACKAGE)}",
            geometry=geometry,
            limits=limits,
            cleanup=cleanup,
            actions=CACHING,
            unasked={act.Publish, act.Merge, act.Evict},
            refuses="may_refuse_more" if early else "exact",
            policy="any",
            batches="one slot",
            guarded=frozenset(Reason) - {Reason.OUT_OF_PAGES},
        )
        self._early, self._scheduler = early, _scheduler(geometry)
        self._manager, self._trie = self._scheduler.block_manager, self._scheduler.block_trie
        self._live: dict[int, Any] = {}
        self._allocated: dict[int, int] = {}
        self._cells: list[object] = [POISON] * (geometry.pages * geometry.page_size)

    def apply(self, action: Action) -> Result:
        """Call the parts of the scheduler."""
        match action:
            case act.Reserve(int(slot), context):
                self._open(slot, str(context) if context else None, ())
            case act.Assign(slot=int(slot), prompt=tokens) | act.Append(int(slot), tokens):
                self._live[slot].update_token_ids(list(tokens))
            case act.Allocate(batch):
                for slot, positions in by_slot(batch).items():
                    self._allocate(slot, positions[-1] + 1)
            case act.Write(batch):
                for slot, positions in by_slot(batch).items():
                    self._write(slot, positions[-1] + 1)
            case act.Hit(slot, length):
                self._hit(slot, length)
            case act.Free(int(slot)):
                self._free(slot)
        return None

    def observe(self) -> View:
        """Rows, counts without those of the trie, texts, the paths of the trie and the cells."""
        sizes = self.profile.geometry
        live = [self._live.get(slot) for slot in range(sizes.slots)]
        paths, unwritten = self._paths(), self._unwritten(self._live)
        found = checked_counts(self._manager.allocator, sizes.pages)
        return View(
            geometry=sizes,
            counts=[count - (page in paths) for page, count in enumerate(found)],
            used=[one is not None for one in live],
            rows=[self._row(slot) if one else () for slot, one in enumerate(live)],
            tokens=[one.all_ids.tolist() if one else () for one in live],
            allocated=[self._allocated.get(slot, 0) for slot in range(sizes.slots)],
            written=[one.num_history_ids if one else 0 for one in live],
            contexts=[int(one.adapter_name or 0) if one else 0 for one in live],
            indexed=[
                paths.get(page, ()) if page not in unwritten else () for page in range(sizes.pages)
            ],
            cells=tuple(self._cells),
        )

    def _open(self, slot: int, adapter: str | None, tokens: Sequence[int]) -> Any:
        session = self._scheduler.add_session(slot)
        self._live[slot] = session.add_sequence(list(tokens), adapter_name=adapter)
        return self._live[slot]

    def _allocate(self, slot: int, end: int) -> None:
        """Take blocks for the first `end` cells, as for a part of a prompt or to decode."""
        one = self._live[slot]
        before, ahead = one.kv_token_limit, max(0, end - one.num_all_ids)
        one.kv_token_limit = None if ahead else end
        if not self._scheduler.eviction_helper.try_make_capacity_for(one, (), ahead):
            one.kv_token_limit = before
            raise refused(Reason.OUT_OF_PAGES)
        self._manager.allocate(one, ahead)
        self._allocated[slot] = end
        if self._early:
            self._trie.allocate(one)

    def _write(self, slot: int, end: int) -> None:
        """Run a pass over the tokens of a slot up to `end`."""
        one, size, row = self._live[slot], self.profile.geometry.page_size, self._row(slot)
        text = tuple(one.all_ids.tolist())
        for position in range(one.num_history_ids, end):
            cell = row[position // size] * size + position % size
            self._cells[cell] = text[: position + 1]
        one.set_step(end)
        if not self._early:
            one.kv_token_limit = end
            self._trie.allocate(one)

    def _hit(self, slot: int, length: int) -> None:
        """Match a prompt that ends one token past `length`; the other tokens follow it."""
        one = self._live[slot]
        name, text = one.adapter_name, one.all_ids.tolist()
        self._scheduler.end_session(slot)
        one = self._open(slot, name, text[: length + 1])
        self._trie.match(one)
        if one.num_history_ids != length:
            self._scheduler.end_session(slot)
            self._open(slot, name, text)
            raise refused(Reason.NOT_INDEXED)
        one.update_token_ids(text[length + 1 :])
        self._allocated[slot] = length

    def _free(self, slot: int) -> None:
        """End a sequence, unless a pass is planned that computes a published block of it."""
        if not self._unwritten((slot,)).isdisjoint(self._paths()):
            raise refused(Reason.UNWRITTEN)
        del self._live[slot]
        self._allocated.pop(slot, None)
        self._scheduler.end_session(slot)

    def _row(self, slot: int) -> list[int]:
        row: list[int] = self._manager.get_block_table(self._live[slot]).tolist()
        return row

    def _unwritten(self, slots: Iterable[int]) -> set[int]:
        """The pages that one of these slots has to compute, and that do not hold its text yet."""
        size, found = self.profile.geometry.page_size, set[int]()
        for slot in slots:
            text, written = self._live[slot].all_ids.tolist(), self._live[slot].num_history_ids
            for place, page in enumerate(self._row(slot)[written // size :], written // size):
                end = (place + 1) * size
                if self._cells[page * size + size - 1] != tuple(text[:end]):
                    found.add(page)
        return found

    def _paths(self) -> dict[int, tuple[int, ...]]:
        """The pages of the trie, each with the context of its root and the tokens of its path."""
        physical = _physical(self._manager.allocator)
        roots = attrgetter("_roots")(self._trie)
        nodes: list[tuple[tuple[int, ...], Any]] = [
            ((int(name or 0),), root) for name, root in roots.items()
        ]
        paths = {}
        for key, node in nodes:
            for child in node.children.values():
                longer = (*key, *child.token_ids.tolist())
                paths[int(physical[child.block_id])] = longer
                nodes.append((longer, child))
        return paths


def _scheduler(geometry: Geometry) -> Any:
    """A scheduler with prefix caching."""
    found = library()
    return found.scheduler.Scheduler(
        found.config.SchedulerConfig(geometry.slots, max_session_len=geometry.max_len),
        found.config.CacheConfig(
            max_batches=geometry.slots,
            block_size=geometry.page_size,
            num_cpu_blocks=0,
            num_gpu_blocks=geometry.pages,
            enable_prefix_caching=True,
        ),
        found.messages.SequenceMeta(
            geometry.page_size, strategy=found.sequence.ARSequenceStrategy()
        ),
    )


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
