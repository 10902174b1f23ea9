from common import *
from conformance.lockstep.differential import Differences, Pair
from conformance.lockstep.lockstep import Violation
from conformance.protocol import Profile
# Slot 0 is in use, so both must refuse Reserve(0). A does; B takes it and says it was done: a finding against B.
g = geometry()
p = Profile(name="x", geometry=g, limits=default_limits(g), cleanup=CleanupMode.INCREMENTAL, actions={act.Reserve, act.Free})
class Accepts(SpecEngine):
    def apply(self, action):
        try: super().apply(action)
        except Refused: pass
seen_ = Differences()
pair = Pair(SpecEngine(p), Accepts(p), seen_)
pair.apply(act.Reserve(0))
try: pair.apply(act.Reserve(0)); said = "done"
except Violation as v: said = v.clause + " " + seen_.fault
except Refused: said = "refused, and nothing found"
seen("Reserve(0) again", said, "ATOMIC B")
