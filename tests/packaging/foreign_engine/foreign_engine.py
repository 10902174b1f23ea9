"""An allocator of blocks from another project, in a package of its own, and its adapter.

If FOREIGN_BUG is set to any text, a release keeps the last block.
"""

import os

from conformance.protocol import Action, Profile
from spec.machines.actions import Allocate, Free, Reserve
from spec.table import by_slot
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, Limits, Reason, refused


class Full(Exception):
    """No block is free."""


class Blocks:
    """A stack of free blocks, and the length of each sequence."""

    def __init__(self, blocks: int, size: int) -> None:
        self.size, self.free = size, list(range(blocks))
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def open(self, name: int) -> None:
        """Begin a sequence."""
        self.tables[name], self.lengths[name] = [], 0

    def grow(self, name: int, more: int) -> None:
        """Cover this many more positions of a sequence."""
        missing = -(-(self.lengths[name] + more) // self.size) - len(self.tables[name])
        if missing > len(self.free):
            raise Full
        self.tables[name] += [self.free.pop() for _ in range(missing)]
        self.lengths[name] += more

    def close(self, name: int) -> None:
        """End a sequence."""
        del self.lengths[name]
        table = self.tables.pop(name)
        self.free += table[:-1] if os.environ.get("FOREIGN_BUG") else table


class Adapter:
    """The adapter of the allocator; see `conformance.protocol`."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        self.pool = Blocks(geometry.pages, geometry.page_size)
        self.profile = Profile(
            name="blocks", geometry=geometry, limits=limits, cleanup=cleanup, policy="any",
            actions={Reserve, Allocate, Free}, batches="one slot",
            guarded=set(Reason) - {Reason.OUT_OF_PAGES})  # fmt: skip

    def apply(self, action: Action) -> None:
        """Translate an action to a call, and a refusal of the allocator to Refused."""
        match action:
            case Reserve(int(slot)):
                self.pool.open(slot)
            case Allocate(batch):
                for slot, positions in by_slot(batch).items():
                    try:
                        self.pool.grow(slot, len(positions))
                    except Full:
                        raise refused(Reason.OUT_OF_PAGES) from None
            case Free(int(slot)):
                self.pool.close(slot)

    def observe(self) -> View:
        """The rows and lengths of all sequences."""
        pool, sizes = self.pool, self.profile.geometry
        slots, pages = range(sizes.slots), range(sizes.pages)
        return View(
            geometry=sizes, used=[slot in pool.tables for slot in slots],
            rows=[pool.tables.get(slot, []) for slot in slots],
            counts=[page not in pool.free for page in pages],
            allocated=[pool.lengths.get(slot, 0) for slot in slots])  # fmt: skip
