"""The shortest history of a finding of serve() has no step that the finding does not need."""
from common import *
from conformance.fuzzing.shrinking import shrink
from conformance.lockstep import serving
from conformance.lockstep.run import replay
from conformance.protocol import CALLS, Profile

class Serves(SpecEngine):
    """Right, but serve loses an output once a Reserve was done, however long ago."""
    reserved = False
    def apply(self, action):
        super().apply(action)
        self.reserved = self.reserved or isinstance(action, act.Reserve)
    def serve(self, requests):
        s = self.s
        for request in requests:
            found = self.m.refusals(s, act.Submit(request))
            if found: raise Refused(found)
            s = self.m.effect(s, act.Submit(request))
        right = serving.serve_with(self.m, self.s, tuple(requests))
        self.s = right.state
        return right.outputs[1:] if self.reserved else right.outputs

g = geometry()
make = lambda: Serves(Profile(name="e", geometry=g, limits=default_limits(g), cleanup=CleanupMode.INCREMENTAL, actions=CALLS - {act.Append}))
# Only the Reserve matters: without the others, serving after it goes wrong in the same way.
history = (act.TakeOutputs(), act.Reserve(0), act.Free(0), act.TakeOutputs())
found = replay(make, history)
seen("the finding", found and found.clause, "OUT")
least = shrink(make, found, seconds=20)
seen("the steps that are left", [type(step).__name__ for step in least.history], ["Reserve"])
