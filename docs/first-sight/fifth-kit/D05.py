"""An engine in a process of its own raises MemoryError when no block is free, and changes nothing.

docs/adapters.md, "Whose mistake": "an exception out of the engine's code where the specification
refuses too, and nothing changed" is "a mistake of the adapter: a refusal that it does not translate",
so status 2 and nothing in the corpus. `extend` checks before it changes anything, and every request
that it cannot serve is OUT_OF_PAGES in the specification. Where the engine runs makes no difference.
"""

import sys
import tempfile

sys.path.insert(0, __file__.rpartition("/")[0])
from common_d import Blocks, conclude, kvspec

from conformance.protocol import Profile
from spec.machines.actions import Allocate, Free, Reserve
from spec.table import by_slot
from spec.view import View
from spec.vocabulary import Reason


class Adapter:
    """The adapter of docs/adapters.md, without the translation of MemoryError."""

    def __init__(self, geometry, limits, cleanup):
        self.pool = Blocks(geometry.pages, geometry.page_size)
        self.profile = Profile(
            name="block pool", geometry=geometry, limits=limits, cleanup=cleanup, policy="any",
            actions={Reserve, Allocate, Free}, batches="one slot",
            guarded=set(Reason) - {Reason.OUT_OF_PAGES})  # fmt: skip

    def apply(self, action):
        match action:
            case Reserve(slot):
                self.pool.open(slot)
            case Allocate(batch):
                for slot, positions in by_slot(batch).items():
                    self.pool.extend(slot, len(positions))
            case Free(slot):
                self.pool.release(slot)

    def observe(self):
        pool, sizes = self.pool, self.profile.geometry
        slots, pages = range(sizes.slots), range(sizes.pages)
        return View(
            geometry=sizes, used=[slot in pool.tables for slot in slots],
            rows=[pool.tables.get(slot, []) for slot in slots],
            counts=[page not in pool.free for page in pages],
            allocated=[pool.lengths.get(slot, 0) for slot in slots])  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        here = kvspec("adapter", "check", "D05:Adapter", "--in-process", folder=folder)
        apart = kvspec("adapter", "check", "D05:Adapter", folder=folder)
    print(here.stderr[-400:], apart.stderr[-400:], apart.stdout[-400:], sep="\n---\n")
    conclude((2, 2), (here.returncode, apart.returncode))
