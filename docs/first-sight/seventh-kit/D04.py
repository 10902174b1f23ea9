"""An engine that may refuse more must grant again what it has granted after the same actions from
the initial state, and a history is there again when everything is freed. Here slot 1 is granted
after 70 sequences, all freed, and then refused in the same place: ATOMIC."""
import sys
from conformance.lockstep.run import replay
from conformance.protocol import Profile
from spec import ladder, view
from spec.machines.actions import Free, Reserve
from spec.vocabulary import CleanupMode, Geometry, Reason, default_limits, refused

MACHINE = ladder.machine("pages")
G = Geometry(pages=4, page_size=2, slots=2, pages_per_seq=2)


class Engine:
    def __init__(self):
        self.state = MACHINE.initial(G, default_limits(G), CleanupMode.INCREMENTAL)
        self.profile = Profile(
            name="leaks", geometry=G, limits=default_limits(G), cleanup=CleanupMode.INCREMENTAL,
            actions={Reserve, Free}, refuses="may_refuse_more")
        self.given = 0

    def apply(self, action):
        if action == Reserve(1):
            self.given += 1
            if self.given > 1:
                raise refused(Reason.NO_FREE_SLOT)
        self.state = MACHINE.step(self.state, action)

    def observe(self):
        return view.of(MACHINE, self.state)


def fails(before):
    history = (Reserve(0), Free(0)) * before + (Reserve(1), Free(1), Reserve(1))
    finding = replay(Engine, history)
    print(before, finding and (finding.clause, finding.message))
    return finding is not None and finding.clause == "ATOMIC"


assert fails(2)  # the same leak after few sequences
sys.exit(int(not fails(70)))
