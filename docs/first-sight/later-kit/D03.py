"""diff: a violation by B is the fault of B."""
from common import *
from conformance.lockstep.differential import PairFactory
from conformance.lockstep.run import replay
from functools import partial

class Leaks(SpecEngine):
    """An engine whose Free does nothing."""
    def apply(self, action):
        if not isinstance(action, act.Free): return super().apply(action)

def maker(kind): return lambda g, limits, cleanup: kind(profile(g=g, cleanup=cleanup))
right, leaks = maker(SpecEngine), maker(Leaks)
history = (act.Prefill((Request(id=1, prompt=(5, 6), params=Params(max_new=4)),)), act.Free(0))
# By hand: after Free the slot is unused and its page is free. Leaks shows neither, so whichever of the two engines is
# Leaks is at fault.
for a, b, name in ((leaks, right, "A"), (right, leaks, "B")):
    pairs = PairFactory(a, b)
    g = geometry()
    found = replay(partial(pairs, g, default_limits(g), CleanupMode.INCREMENTAL), history)
    seen("found", found is not None, True)
    seen("at fault", pairs.seen.fault, name)
    seen("the engine to shrink on", pairs.at_fault is leaks, True)
