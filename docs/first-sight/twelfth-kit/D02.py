"""A right engine in a process of its own, whose view has one pool of cells that it keeps and changes.

By hand: after Reserve, Assign, Allocate and Write of the tokens 5 and 6, slot 0 reads the contents of
the prefixes (5) and (5, 6), and nothing is violated. The first of the two engines shows a
new list each time, the second one always the same.
"""
import sys
import tempfile
from pathlib import Path

from conformance.isolation.remote import RemoteFactory
from conformance.lockstep.lockstep import Lockstep, Violation
from spec.machines.actions import Allocate, Assign, Reserve, Write
from spec.vocabulary import CleanupMode, Geometry, Params, default_limits

ADAPTER = '''
from attrs import evolve
from conformance.protocol import Profile
from spec import view
from spec.machines.actions import Allocate, Assign, Free, Reserve, Write
from spec.vocabulary import CleanupMode


class Kept:
    """Its cells are a list of numbers: the tokens of the prefix in base 100; 0 was never written."""

    keeps = True

    def __init__(self, geometry, limits, cleanup):
        self.profile = Profile(
            name="kept", geometry=geometry, limits=limits, cleanup=cleanup,
            actions={Reserve, Assign, Allocate, Write, Free},
        )
        self.machine = self.profile.machine
        self.state = self.machine.initial(geometry, limits, cleanup, self.profile.capacity)
        self.pool = [0] * (geometry.pages * geometry.page_size)

    def apply(self, action):
        self.state = self.machine.step(self.state, action)
        size = self.profile.geometry.page_size
        for sequence in self.state.sequences:
            for position in range(sequence.written if sequence else 0):
                cell = sequence.row[position // size] * size + position % size
                self.pool[cell] = self.expected(sequence.tokens[: position + 1])

    def expected(self, prefix):
        number = 0
        for token in prefix:
            number = 100 * number + token
        return number

    def observe(self):
        shown = view.of(self.machine, self.state)
        cells = self.pool if self.keeps else list(self.pool)
        return evolve(shown, cells=cells, expected=self.expected)


def make(geometry, limits, cleanup):
    """The first cleanup mode: an engine that shows a new list each time; another: the same one."""
    engine = Kept(geometry, limits, cleanup)
    engine.keeps = cleanup is not tuple(CleanupMode)[0]
    return engine
'''

BATCH = ((0, 0), (0, 1))
STEPS = (Reserve(0), Assign(0, (5, 6), Params(max_new=1), 1), Allocate(BATCH), Write(BATCH))
wrong = 0
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "kept_pool.py").write_text(ADAPTER)
    sys.path.insert(0, folder)
    factory = RemoteFactory("kept_pool:make", python=None)
    sizes = Geometry(pages=4, page_size=2, slots=2, pages_per_seq=2)
    for name, keeps in (("a new list each time", False), ("the same list each time", True)):
        engine = Lockstep(factory(sizes, default_limits(sizes), tuple(CleanupMode)[keeps]))
        try:
            for step in STEPS:
                refused = engine.do(step)
                assert not refused, (step, refused)
            seen = engine.seen.read(0)
        except Violation as found:
            seen = str(found).splitlines()[0]
        print(f"{name}: slot 0 reads", seen)
        wrong += seen != (5, 506)
sys.stdout.flush()
sys.exit(1 if wrong else 0)
