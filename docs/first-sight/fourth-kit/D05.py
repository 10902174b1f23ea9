"""A step that violates two known clauses counts for both of them.

The allocator of docs/adapters.md with a release that keeps the last block: after a Free that block has
count 1 and no row names it. docs/clauses.md shows this very state: it violates CONS ("no row names it,
so it is not live") and RC. docs/adapters.md, "In your tests": if a step violates several clauses, all of
these fail, and an entry of the list that no longer fails is a failure. With CONS and RC on the list, the
run must have found both to fail; else RC is reported as mended.
"""

from common_d import compare
from conformance.fuzzing import campaign
from conformance.protocol import Profile
from spec.machines.actions import Allocate, Free, Reserve
from spec.table import by_slot
from spec.view import View
from spec.vocabulary import Geometry, Reason, refused

sizes = Geometry(pages=8, slots=2, page_size=2, pages_per_seq=4)


class Leaky:
    """A block pool whose release keeps the last block."""

    def __init__(self, geometry, limits, cleanup):
        self.free, self.tables, self.lengths = list(range(geometry.pages)), {}, {}
        self.profile = Profile(
            name="leaky", geometry=geometry, limits=limits, cleanup=cleanup, policy="any",
            actions={Reserve, Allocate, Free}, batches="one slot",
            guarded=set(Reason) - {Reason.OUT_OF_PAGES},
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
                self.free += self.tables.pop(slot)[:-1]
                del self.lengths[slot]

    def observe(self):
        geometry = self.profile.geometry
        slots = range(geometry.slots)
        return View(
            geometry=geometry, used=[slot in self.tables for slot in slots],
            rows=[self.tables.get(slot, []) for slot in slots],
            counts=[page not in self.free for page in range(geometry.pages)],
            allocated=[self.lengths.get(slot, 0) for slot in slots],
        )


report = campaign.Run()
options = campaign.Options(
    geometry=sizes, alone=True, seconds=20, steps=300, ceiling=False, known=frozenset({"CONS", "RC"})
)
campaign.run(Leaky, options, report=report, update=lambda *_: None)
compare(
    "the clauses that fail in the run, and a finding that ends it",
    (["CONS", "RC"], None), (sorted(report.known), report.finding),
)
