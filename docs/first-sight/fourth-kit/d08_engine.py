"""The allocator of docs/adapters.md; its adapter hides `counts` while the pool is full."""

from conformance.protocol import Profile
from spec.machines.actions import Allocate, Free, Reserve
from spec.table import by_slot
from spec.view import View
from spec.vocabulary import Reason, refused


class Adapter:
    def __init__(self, geometry, limits, cleanup):
        self.free, self.tables, self.lengths = list(range(geometry.pages)), {}, {}
        self.profile = Profile(
            name="hides", geometry=geometry, limits=limits, cleanup=cleanup, policy="any",
            actions={Reserve, Allocate, Free}, guarded=set(Reason) - {Reason.OUT_OF_PAGES},
        )

    def apply(self, action):
        size = self.profile.geometry.page_size
        match action:
            case Reserve(slot):
                self.tables[slot], self.lengths[slot] = [], 0
            case Allocate(batch):
                for slot, positions in by_slot(batch).items():
                    missing = -(-(self.lengths[slot] + len(positions)) // size) - len(self.tables[slot])
                    if missing > len(self.free):
                        raise refused(Reason.OUT_OF_PAGES)
                    self.tables[slot] += [self.free.pop() for _ in range(missing)]
                    self.lengths[slot] += len(positions)
            case Free(slot):
                self.free += self.tables.pop(slot)
                del self.lengths[slot]

    def observe(self):
        geometry = self.profile.geometry
        slots = range(geometry.slots)
        counts = [page not in self.free for page in range(geometry.pages)]
        return View(
            geometry=geometry, used=[slot in self.tables for slot in slots],
            rows=[self.tables.get(slot, []) for slot in slots],
            counts=counts if self.free else None,
            allocated=[self.lengths.get(slot, 0) for slot in slots],
        )
