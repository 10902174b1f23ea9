"""An engine that raises where the specification refuses, after it has changed, is a finding.

docs/adapters.md: "an exception out of the engine's code, on an action that is legal, or with a
change of the view | a finding of ATOMIC, with the traceback". The pool has 1 page of 2 cells. Three
cells of one slot need 2 pages, so the specification refuses with OUT_OF_PAGES. The engine below
takes page after page: it takes page 0, and raises IndexError for the second. Its row has changed,
so this is a finding of ATOMIC (and not a mistake of the adapter), in a process of its own too.
"""

import os
import sys
import tempfile

ENGINE = '''
from conformance.protocol import Profile
from spec.machines.actions import Allocate, Free, Reserve
from spec.table import by_slot
from spec.view import View
from spec.vocabulary import INVALID, Reason, refused


class BlockPool:
    def __init__(self, blocks, size):
        self.size, self.free = size, list(range(blocks))
        self.tables, self.lengths = {}, {}

    def open(self, name):
        self.tables[name], self.lengths[name] = [], 0

    def extend(self, name, more):
        length = self.lengths[name] + more
        while len(self.tables[name]) * self.size < length:
            self.tables[name].append(self.free.pop())
        self.lengths[name] += more

    def release(self, name):
        self.free += self.tables.pop(name)
        del self.lengths[name]


class Adapter:
    def __init__(self, geometry, limits, cleanup):
        self.pool = BlockPool(geometry.pages, geometry.page_size)
        self.profile = Profile(
            name="block pool", geometry=geometry, limits=limits, cleanup=cleanup, policy="any",
            actions={Reserve, Allocate, Free}, batches="one slot",
            guarded=set(Reason) - {Reason.OUT_OF_PAGES})

    def apply(self, action):
        match action:
            case Reserve(slot):
                self.pool.open(slot)
            case Allocate(batch):
                for slot, positions in by_slot(batch).items():
                    try:
                        self.pool.extend(slot, len(positions))
                    except MemoryError:
                        raise refused(Reason.OUT_OF_PAGES)
            case Free(slot):
                self.pool.release(slot)

    def observe(self):
        slots = range(self.profile.geometry.slots)
        return View(
            geometry=self.profile.geometry,
            used=[slot in self.pool.tables for slot in slots],
            rows=[self.pool.tables.get(slot, []) for slot in slots],
            allocated=[self.pool.lengths.get(slot, 0) for slot in slots],
            counts=[0 if page in self.pool.free else 1
                    for page in range(self.profile.geometry.pages)])
'''


def main():
    from functools import partial

    from conformance.isolation.placement import factory_of
    from conformance.lockstep.run import replay
    from spec.machines.actions import Allocate, Reserve
    from spec.vocabulary import CleanupMode, Geometry, InvalidInput, default_limits

    geometry = Geometry(pages=1, page_size=2, slots=1, pages_per_seq=4)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "blockpool.py"), "w") as file:
            file.write(ENGINE)
        sys.path.append(folder)
        factory = factory_of("blockpool:Adapter", python=None)
        make = partial(factory, geometry, default_limits(geometry), CleanupMode.INCREMENTAL)
        try:
            found = replay(make, (Reserve(0), Allocate(((0, 0), (0, 1), (0, 2)))))
            seen = found and found.clause, found and found.message
        except InvalidInput as error:
            seen = type(error).__name__, str(error)
    print(seen)
    sys.exit(0 if seen[0] == "ATOMIC" else 1)


main()
