"""The adapter of mini-sglang: its cache manager and its radix tree.

    make engine-mini-sglang

`CacheManager` of the scheduler, over `RadixPrefixCache`, on the CPU. A row of the page table is a
slot. What the manager reads of a request are the fields of `Req`: its tokens, its row, how many
cells are computed, how many are planned, and its handle in the tree.

The scheduler asks `available_size` whether there is room, and the adapter asks it too and refuses:
that the manager then finds the pages is its own affair. Every other check is the scheduler's, and
guarded here: ids of slots, the next positions, the width of a batch, the length of a row, and that
a slot is freed once.

mini-sglang publishes with `cache_req` after the pass that ends a prompt, and when a sequence ends.
`make` does both, and shows a known finding: docs/findings/mini-sglang-freed-row.md. `make_ended`
publishes when a sequence ends and not before, which avoids the finding; all else is as before.

The view has rows from the page table (a page whose cells are not in order makes `observe` fail),
and the paths of the tree as its index. The count of a page of the tree is `ref_count` of its node;
that of a free page is 0, and of any other page 1. A page that is free twice, or free and in the
tree, makes `observe` fail. A hit of a part of what is found is the hit of a shorter prompt. The
adapter has the tokens and writes the cells, as the model would. mini-sglang has no contexts.

The scheduler runs each pass that it has planned. So no sequence ends there between the two; here it
may, and the adapter gives its planned pages back by the call that the manager makes for a tail.

Its packages are not imported, since they would load CUDA kernels, the server and the tokenizers:
only these modules are. Pinned memory, which only a GPU has, is replaced by other memory.

Not driven: the estimates of the scheduler, which may admit more than there is room for; overlapped
passes; frees that are put off to the end of a batch; kernels, and several devices.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from sys import modules
from types import SimpleNamespace
from typing import Any, Final

from conformance.engines import drift, parents
from conformance.engines.texts import Text, Texts
from conformance.protocol import Action, EngineFailed, Profile, Result
from spec.machines import actions as act
from spec.table import Batch, by_slot
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, InvalidInput, Limits, Reason, refused

PACKAGE: Final = "minisgl"
REMEDY: Final = "Run `make engine-mini-sglang`: it installs a commit of it in a place of its own."
OFFERED: Final = frozenset(
    {act.Reserve, act.Assign, act.Append, act.Allocate, act.Write, act.Hit, act.Free}
)
PARENTS: Final = ("minisgl.kernel", "minisgl.scheduler", "minisgl.utils")
"""The packages whose own imports would load CUDA kernels, the server and the tokenizers."""
_CACHE: Final = "minisgl.scheduler.cache"
_CORE: Final = "minisgl.core"
_KERNEL: Final = "minisgl.kernel.radix"
_PENDING: Final = "minisgl.scheduler.utils"
_TREE: Final = "minisgl.kvcache.radix_cache"
CALLS: Final[Mapping[str, Sequence[str]]] = {
    f"{_CACHE}:CacheManager": ("num_pages", "page_size", "page_table", "type"),
    f"{_CACHE}:CacheManager.allocate_paged": ("self", "reqs"),
    f"{_CACHE}:CacheManager.cache_req": ("self", "req", "finished"),
    f"{_CACHE}:CacheManager.lock": ("self", "handle"),
    f"{_CACHE}:CacheManager.match_req": ("self", "req"),
    f"{_CORE}:Context": ("page_size",),
    f"{_CORE}:Req": (
        "input_ids", "table_idx", "cached_len", "output_len", "uid", "sampling_params",
        "cache_handle",
    ),
    f"{_KERNEL}:fast_compare_key": ("x", "y"),
    f"{_PENDING}:PendingReq": ("uid", "input_ids", "sampling_params", "chunked_req"),
    f"{_TREE}:RadixPrefixCache.match_prefix": ("self", "input_ids"),
}  # fmt: skip
"""The calls, with the parameters of commit 20fcd7f."""


class Unpinned:
    """A module of tensors that pins no memory."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        """Everything else is as it is."""
        return getattr(self._torch, name)

    def empty(self, *sizes: Any, pin_memory: bool = False, **options: Any) -> Any:
        """Memory that is not pinned."""
        del pin_memory
        return self._torch.empty(*sizes, **options)


@cache
def library() -> SimpleNamespace:
    """The modules of the installed mini-sglang. Raises InvalidInput if it is missing or drifted."""
    if modules.get(PACKAGE) is None:
        _stand_in(_installed_root())
    drift.require(PACKAGE, CALLS, remedy=REMEDY)
    found, torch = import_module(_CACHE), import_module("torch")
    found.__dict__["torch"] = Unpinned(torch)
    ints = torch.zeros(1, dtype=torch.int32)
    import_module(_KERNEL).fast_compare_key(ints, ints)  # is compiled at its first call
    return SimpleNamespace(
        cache=found, core=import_module(_CORE), pending=import_module(_PENDING), torch=torch
    )


def _installed_root() -> Path:
    try:
        found = find_spec(PACKAGE)
    except ValueError:  # a module stands in its place, without a spec
        found = None
    if found is None or not found.submodule_search_locations:
        raise InvalidInput(
            PACKAGE, seen="not installed", allowed="mini-sglang, installed", remedy=REMEDY
        )
    return Path(next(iter(found.submodule_search_locations)))


def _stand_in(root: Path) -> None:
    """Register empty packages, with the names that the modules take from them."""
    parents.register(root, PARENTS)
    misc, registry = (import_module(f"{PACKAGE}.utils.{name}") for name in ("misc", "registry"))
    modules[f"{PACKAGE}.utils"].__dict__.update(
        align_down=misc.align_down, div_ceil=misc.div_ceil, Registry=registry.Registry
    )
    compare = import_module(_KERNEL).fast_compare_key
    modules[f"{PACKAGE}.kernel"].__dict__["fast_compare_key"] = compare


class Pages:
    """A cache manager, its page table, and the handles of its requests by slot."""

    def __init__(self, geometry: Geometry) -> None:
        self._library, self._geometry = library(), geometry
        self._torch, core = self._library.torch, self._library.core
        core.__dict__["_GLOBAL_CTX"] = core.Context(page_size=geometry.page_size)
        self.table = self._torch.zeros(geometry.slots, geometry.max_len, dtype=self._torch.int32)
        self.manager = self._library.cache.CacheManager(
            geometry.pages, geometry.page_size, self.table, "radix"
        )
        self._handles: dict[int, Any] = {}

    def open(self, slot: int) -> None:
        """Begin a row, for a prompt of which nothing is found."""
        tree = self.manager.prefix_cache
        self._handles[slot] = tree.match_prefix(self._tensor(())).cuda_handle

    def allocate(self, slot: int, start: int, end: int) -> bool:
        """Take pages for the cells from `start` on; whether there is room."""
        pages, size = self._geometry.pages_for, self._geometry.page_size
        if (pages(end) - pages(start)) * size > self.manager.available_size:
            return False
        self.manager.allocate_paged([self._request(slot, (), start, end)])
        return True

    def hit(self, slot: int, prompt: Sequence[int]) -> int:
        """Find a prompt, and put what is found in the row; how many cells that are."""
        asked = self._library.pending.PendingReq(slot, self._tensor(prompt), None)
        handle = self.manager.match_req(asked).cuda_handle
        self.manager.lock(handle)
        self._handles[slot] = handle
        if handle.cached_len:
            self.table[slot, : handle.cached_len] = handle.get_matched_indices()
        return int(handle.cached_len)

    def publish(self, slot: int, text: Text) -> None:
        """Enter what is written in the tree; the sequence goes on."""
        request = self._request(slot, text.tokens, text.written, text.allocated)
        self.manager.cache_req(request, finished=False)
        self._handles[slot] = request.cache_handle

    def end(self, slot: int, text: Text) -> None:
        """Enter what is written in the tree, and let go of the row, planned pages too."""
        row, size = self.row(slot, text.allocated), self._geometry.page_size
        planned = [page * size for page in row[self._geometry.pages_for(text.written) :]]
        request = self._request(slot, text.tokens, text.written, text.allocated)
        self.manager.cache_req(request, finished=True)
        cells = [cell + offset for cell in planned for offset in range(size)]
        attrgetter("_free")(self.manager)(self._tensor(cells))
        del self._handles[slot]

    def row(self, slot: int, allocated: int) -> list[int]:
        """The pages of a row. Raises EngineFailed unless the cells of each are in order."""
        size = self._geometry.page_size
        cells = self.table[slot, : self._geometry.pages_for(allocated) * size].tolist()
        row = [cell // size for cell in cells[::size]]
        if cells != [page * size + offset for page in row for offset in range(size)]:
            raise EngineFailed(f"row {slot} has the cells {cells}: no whole pages", clause="ROW")
        return row

    def nodes(self) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """The pages of the tree: all tokens up to the end of each, the page, and its count."""
        size, left = self._geometry.page_size, [((), self.manager.prefix_cache.root_node)]
        for path, node in left:
            for child in node.children.values():
                tokens, cells = attrgetter("_key", "_value")(child)
                whole = (*path, *tokens.tolist())
                left.append((whole, child))
                for start, cell in enumerate(cells[::size].tolist()):
                    end = len(path) + (start + 1) * size
                    yield whole[:end], cell // size, child.ref_count

    def counts(self) -> list[int]:
        """The count of each page. Raises EngineFailed if a page can be given out twice."""
        free = [cell // self._geometry.page_size for cell in self.manager.free_slots.tolist()]
        found = {page: count for _, page, count in self.nodes()}
        if len({*free, *found}) != len(free) + sum(1 for _ in self.nodes()):
            raise EngineFailed(f"free pages {free}, pages of the tree {[*found]}", clause="CONS")
        found.update(dict.fromkeys(free, 0))
        return [found.get(page, 1) for page in range(self._geometry.pages)]

    def _request(self, slot: int, tokens: Sequence[int], cached: int, planned: int) -> Any:
        """What the manager reads of a request."""
        return SimpleNamespace(
            input_ids=self._tensor(tokens),
            table_idx=slot,
            cached_len=cached,
            device_len=planned,
            cache_handle=self._handles[slot],
        )

    def _tensor(self, numbers: Sequence[int]) -> Any:
        return self._torch.tensor(numbers, dtype=self._torch.int32)


class Adapter:
    """See `conformance.protocol`. ended: whether a sequence is published only when it ends."""

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, ended: bool
    ) -> None:
        self._pages, self._texts, self._ended = Pages(geometry), Texts(geometry), ended
        self._prompts: dict[int, int] = {}
        self.profile = Profile(
            name=f"mini-sglang, {PACKAGE} {drift.version(PACKAGE)}",
            geometry=geometry,
            limits=limits,
            cleanup=cleanup,
            actions=OFFERED,
            unasked={act.Publish, act.Evict} | (set() if ended else {act.Merge}),
            contexts=False,
            policy="any",
            batches="one slot",
            guarded=frozenset(Reason) - {Reason.OUT_OF_PAGES},
        )

    def apply(self, action: Action) -> Result:
        """Call the cache manager."""
        held = self._texts.held
        match action:
            case act.Reserve(int(slot)):
                held[slot] = Text(0)
                self._pages.open(slot)
            case act.Assign(slot=int(slot), prompt=tokens):
                held[slot].tokens += tokens
                self._prompts[slot] = len(tokens)
            case act.Append(int(slot), tokens):
                held[slot].tokens += tokens
            case act.Allocate(batch):
                for slot, positions in by_slot(batch).items():
                    self._allocate(slot, positions[-1] + 1)
            case act.Write(batch):
                self._write(batch)
            case act.Hit(slot, length):
                if self._pages.hit(slot, held[slot].tokens[: length + 1]) != length:
                    raise refused(Reason.NOT_INDEXED)
                self._texts.hit(slot, length)
            case act.Free(int(slot)):
                self._pages.end(slot, held.pop(slot))
        return None

    def observe(self) -> View:
        """Rows, counts and the tree of the manager, with the texts and cells of the adapter."""
        geometry = self.profile.geometry
        keys = {page: (0, *tokens) for tokens, page, _ in self._pages.nodes()}
        return View(
            geometry=geometry,
            counts=self._pages.counts(),
            rows=[
                self._row(slot) if slot in self._texts.held else ()
                for slot in range(geometry.slots)
            ],
            indexed=[keys.get(page, ()) for page in range(geometry.pages)],
            **self._texts.shown(),
        )

    def _row(self, slot: int) -> list[int]:
        return self._pages.row(slot, self._texts.held[slot].allocated)

    def _allocate(self, slot: int, end: int) -> None:
        text = self._texts.held[slot]
        if not self._pages.allocate(slot, text.allocated, end):
            raise refused(Reason.OUT_OF_PAGES)
        text.allocated = end

    def _write(self, batch: Batch) -> None:
        """Run a pass, and publish after the one that ends a prompt, as the scheduler does."""
        held = self._texts.held
        before = {slot: held[slot].written for slot in by_slot(batch)}
        self._texts.write(batch, self._row)
        for slot, start in before.items():
            if not self._ended and start < self._prompts[slot] <= held[slot].written:
                self._pages.publish(slot, held[slot])


def make(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Adapter:
    """A sequence is published when its prompt is computed, and when it ends."""
    return Adapter(geometry, limits, cleanup, ended=False)


def make_ended(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> Adapter:
    """A sequence is published when it ends."""
    return Adapter(geometry, limits, cleanup, ended=True)
