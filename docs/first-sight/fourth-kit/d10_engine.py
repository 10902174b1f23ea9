"""An allocator that gives hardly anything: the specification's own, with one rule more.

Of the legal Allocates it does only that of the first cell of slot 0, while no other slot is in use. It
refuses the others for lack of pages, and it refuses rightly what the specification refuses.
"""

from attrs import evolve

from conformance.protocol import Profile
from spec import ladder, view
from spec.machines.actions import Allocate, Free, Reserve
from spec.vocabulary import Reason, refused


class Adapter:
    def __init__(self, geometry, limits, cleanup):
        self.profile = Profile(
            name="miser", geometry=geometry, limits=limits, cleanup=cleanup,
            actions={Reserve, Allocate, Free}, refuses="may_refuse_more",
            guarded={(Allocate, Reason.TOO_LONG)},
        )
        self.machine = self.profile.machine
        self.state = self.machine.initial(geometry, limits, cleanup, self.profile.capacity)

    def apply(self, action):
        found = self.machine.refusals(self.state, action)
        if found:
            raise refused(next(iter(found)).reason)
        if isinstance(action, Allocate) and not self._gives(action):
            raise refused(Reason.OUT_OF_PAGES)
        self.state = self.machine.effect(self.state, action)

    def _gives(self, action):
        """Whether it is the first cell of slot 0 alone, and no other slot is in use."""
        used = [slot for slot, one in enumerate(self.state.sequences) if one is not None]
        return tuple(filter(None, action.batch)) == ((0, 0),) and used == [0]

    def observe(self):
        shown = view.of(self.machine, self.state)
        return evolve(shown, tokens=None, written=None, committed=None, cells=None)
