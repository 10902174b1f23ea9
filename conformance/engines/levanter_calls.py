"""Levanter's calls in plain terms: lists in, Levanter's own trees out, failures as `Refused`.

Nothing of JAX or Levanter is imported before `library()` is called.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from sys import modules
from typing import Any, Final

from conformance.engines import drift, parents
from spec.vocabulary import INVALID, Geometry, InvalidInput, Limits, Reason, Refusal, refused

REMEDY: Final = "Run make engine-levanter or make engine-levanter-2025; each installs one release."
PACKAGES: Final = ("marin-levanter", "levanter")
"""The distribution: its name now, and its name in 2025."""
TABLES: Final = "levanter.inference.jit_scheduler"
PAGES: Final = "levanter.inference.page_table"
CACHE: Final = "levanter.layers.kv_cache"
CALLS: Final[Mapping[str, Sequence[str]]] = {
    f"{TABLES}:SequenceTable.{name}": parameters.split()
    for name, parameters in {
        "init": "max_seqs pages_per_seq page_size",
        "reserve_slot": "self slot_id",
        "allocate_for_seq": "self page_table token_slot_ids token_pos_ids",
        "clone_pages_from": "self page_table src_seq_id dst_seq_id",
        "free_pages": "self page_table seq_id",
        "free_pages_for_finished": "self page_table finished_mask",
    }.items()
} | {
    f"{TABLES}:TokenQueue.init": ("max_queued_tokens",),
    f"{TABLES}:TokenQueue.enqueue_tokens": (
        "self", "new_tokens", "new_slot_ids", "new_pos_ids", "num_new_tokens",
    ),
    f"{TABLES}:TokenQueue.pack_next_sequence": ("self", "max_tokens"),
    f"{TABLES}:TokenQueue.purge_queue_of_slot": ("self", "slot_id"),
    f"{PAGES}:PageTable.init": ("max_pages", "max_seqs", "page_size", "max_pages_per_seq"),
    f"{CACHE}:KvPageCache.init": ("spec", "kv_heads", "head_size", "dtype"),
    f"{CACHE}:KvPageCache.update": ("self", "batch_info", "new_k", "new_v"),
    f"{CACHE}:KvPageCache.copy_page": ("self", "src_page", "dst_page"),
}  # fmt: skip
"""Every call of the adapter, with its parameters."""

Held = tuple[Any, Any, Any, Any]
"""SequenceTable, PageTable, TokenQueue, KvPageCache."""


@cache
def library() -> "Library":
    """The installed Levanter. Raises InvalidInput if it is missing or has drifted."""
    if "levanter" not in modules:
        # The packages' own imports would load the trainer.
        parents.register(installed_root(), ("levanter", "levanter.inference", "levanter.layers"))
    package = next((name for name in PACKAGES if drift.installed(name)), PACKAGES[0])
    drift.require(package, CALLS, remedy=REMEDY)
    return Library(drift.version(package))


def installed_root() -> Path:
    """The folder of the package, without an import. Raises InvalidInput if it is missing."""
    found = find_spec("levanter")
    if found is None or not found.submodule_search_locations:
        raise InvalidInput(
            "levanter", seen="not installed", allowed="an installed Levanter", remedy=REMEDY
        )
    return Path(found.submodule_search_locations[0])


class Library:
    """The calls, each compiled once per set of sizes. version: of the distribution."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._jax, self._np = import_module("jax"), import_module("jax.numpy")
        self._hax = import_module("haliax")
        self._tables, self._pages = import_module(TABLES), import_module(PAGES)
        self._cache = import_module(CACHE)
        self.invalid: int = import_module("levanter.inference.utils").INVALID
        self._jax.config.update("jax_cpu_enable_async_dispatch", val=False)
        jit = import_module("equinox").filter_jit
        self._update = jit(lambda kv, *rest: kv.update(*rest))
        self._copy_page = jit(lambda kv, *rest: kv.copy_page(*rest))
        self._enqueue = jit(lambda queue, *rest: queue.enqueue_tokens(*rest))
        self._pack = jit(lambda queue, most: queue.pack_next_sequence(most))
        self._purge = jit(lambda queue, slot: queue.purge_queue_of_slot(slot))

    @cache  # noqa: B019 - there is one library
    def _blank(self, geometry: Geometry, queue: int) -> Held:
        sizes = geometry
        pages = self._pages.PageTable.init(
            sizes.pages, sizes.slots, sizes.page_size, sizes.pages_per_seq
        )
        axis = self._hax.Axis
        return (
            self._tables.SequenceTable.init(sizes.slots, sizes.pages_per_seq, sizes.page_size),
            pages,
            self._tables.TokenQueue.init(queue),
            self._cache.KvPageCache.init(
                pages.spec(), axis("kv_head", 1), axis("embed", 2), dtype=self._np.int32
            ),
        )

    def initial(self, geometry: Geometry, limits: Limits) -> Held:
        """Everything empty. A cell has one head of two words each for K and V."""
        held: Held = self.copied(self._blank(geometry, limits.queue))
        return held

    def copied(self, tree: Any) -> Any:
        """A copy that survives a call that donates its input."""
        return self._jax.tree.map(self._np.copy, tree)

    def reserve(self, table: Any, slot: int | None) -> tuple[Any, int]:
        """The table and the slot; refused if none is free or the named slot is used."""
        after, got = self._tables.SequenceTable.reserve_slot(self.copied(table), slot)
        if int(got) == self.invalid:
            reason = Reason.NO_FREE_SLOT if slot is None else Reason.SLOT_USED
            raise refused([Refusal(reason, slot, "a free slot")])
        return after, int(got)

    def allocate(
        self, held: Held, entries: Sequence[tuple[int, int]], width: int
    ) -> tuple[Any, Any, Any]:
        """Table, pages and batch info; refused if pages run out. entries: padded to width."""
        slots, positions = zip(*entries, strict=True) if entries else ((), ())
        ids = [
            self._named([*part, *[self.invalid] * (width - len(part))])
            for part in (slots, positions)
        ]
        table, pages, info = self._unless_full(partial(held[0].allocate_for_seq, held[1], *ids))
        return table, pages, info

    def clone(self, table: Any, pages: Any, parent: int, child: int) -> tuple[Any, Any]:
        """Table and pages; refused if pages run out. Donates both inputs, even if refused."""
        after: tuple[Any, Any] = self._unless_full(
            partial(table.clone_pages_from, pages, self._scalar(parent), self._scalar(child))
        )
        return after

    def free(self, table: Any, pages: Any, slot: int) -> tuple[Any, Any]:
        """Table and pages without a slot."""
        after: tuple[Any, Any] = table.free_pages(pages, self._scalar(slot))
        return after

    def free_by_mask(self, table: Any, pages: Any, mask: Sequence[bool]) -> tuple[Any, Any]:
        """Table and pages without the slots of a mask."""
        after: tuple[Any, Any] = table.free_pages_for_finished(pages, self._np.array(mask))
        return after

    def write(self, kv: Any, info: Any, words: Sequence[Sequence[int]], width: int) -> Any:
        """The cache with K and V of a batch; words: K, V, K, V of each of its tokens."""
        rows = [*words, *[(0, 0, 0, 0)] * (width - len(words))]
        both = self._np.array(rows, self._np.uint32).view(self._np.int32).reshape(width, 2, 2)
        keys, values = (
            self._hax.named(both[:, None, :, index], ("position", "kv_head", "embed"))
            for index in range(2)
        )
        return self._update(kv, info, keys, values)

    def copy_page(self, kv: Any, source: int, target: int) -> Any:
        """The cache with one page copied to another."""
        return self._copy_page(kv, self._scalar(source), self._scalar(target))

    def enqueue(self, queue: Any, token: int, slot: int, position: int) -> Any:
        """The queue with one more token."""
        return self._enqueue(queue, *(self._named([one]) for one in (token, slot, position)), 1)

    def pack(self, queue: Any, most: int) -> tuple[Any, list[list[int]]]:
        """The queue, and the packed tokens, slots and positions."""
        after, packed = self._pack(queue, most)
        count = int(packed.num_tokens)
        parts = (packed.tokens, packed.slot_ids, packed.pos_ids)
        return after, [part.array.tolist()[:count] for part in parts]

    def purge(self, queue: Any, slot: int) -> Any:
        """The queue without a slot's tokens."""
        return self._purge(queue, self._scalar(slot))

    def row(self, pages: Sequence[int]) -> tuple[int, ...]:
        """A row with kvspec's own sentinel for missing pages."""
        return tuple(INVALID if page == self.invalid else page for page in pages)

    def cells(self, kv: Any) -> tuple[tuple[int, ...], ...]:
        """The words of every cell, by destination."""
        words = self._np.asarray(kv.kv_pages.array).view(self._np.uint32)
        return tuple(map(tuple, words.reshape(-1, 2, 2).transpose(0, 2, 1).reshape(-1, 4).tolist()))

    def _unless_full(self, call: Any) -> Any:
        try:
            return call()
        except (RuntimeError, ValueError) as error:  # which of them depends on the release of JAX
            if "Out of free pages" not in str(error):
                raise
            raise refused([Refusal(Reason.OUT_OF_PAGES, "no free page", "a free page")]) from error

    def _named(self, values: Sequence[int]) -> Any:
        return self._hax.named(self._np.array(values, self._np.int32), "position")

    def _scalar(self, value: int) -> Any:
        return self._np.array(value, self._np.int32)
