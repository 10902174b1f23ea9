from common import *
from conformance.protocol import Profile
from conformance.recordings.format import Header, Line
from conformance.vectors.build import Vector
from conformance.vectors.play import play
# The engine refuses Reserve(0) while slot 0 is in use, and yet takes slot 1. The refusal is the last line, line 3.
g = geometry(); h = Header(geometry=g, limits=default_limits(g), policy="lowest", shows=("used",))
v = Vector("v", h, (Line(act.Reserve(0), None, None, {"used": {0: True}}), Line(act.Reserve(0), frozenset({Reason.SLOT_USED}), None, {})), frozenset())
p = Profile(name="x", geometry=g, limits=h.limits, cleanup=h.cleanup, actions={act.Reserve, act.Free})
class Leaks(SpecEngine):
    def apply(self, action):
        try: super().apply(action)
        except Refused: self.s = self.m.step(self.s, act.Reserve(1)); raise
seen("a right engine", play(SpecEngine(p), v), None)
found = play(Leaks(p), v)
seen("a refusal that takes a slot", found and (found.line, found.what), (3, "used[1]"))
