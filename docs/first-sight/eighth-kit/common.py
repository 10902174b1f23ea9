"""Helpers of the scripts. Values in the scripts are worked out by hand."""
import sys
import spec
from attrs import evolve
from spec import ladder, view
from spec.machines import actions as act
from spec.vocabulary import *

def geometry(**k):
    return Geometry(**{**dict(pages=8, page_size=2, slots=4, pages_per_seq=4), **k})

def start(g=None, machine=None, cleanup=CleanupMode.INCREMENTAL, capacity=STANDARD, **limits):
    g = g or geometry(); m = machine or ladder.machine("admission", "rollback")
    return m, m.initial(g, evolve(default_limits(g), **limits), cleanup, capacity)

def run(m, s, *actions):
    for a in actions: s = m.step(s, a)
    return s

def reasons(m, s, a):
    return {r.reason.name for r in m.refusals(s, a)}

def seen(what, found, expected):
    """Exit 1 unless what was found is what was worked out by hand."""
    if found != expected:
        print(f"{what}: saw {found}, expected {expected}"); sys.exit(1)

def written(slot, n, first=0):
    b = tuple((slot, p) for p in range(first, n)); return act.Allocate(b), act.Write(b)

class SpecEngine:
    """An engine that is the specification itself; a test overrides `apply`."""
    def __init__(self, profile):
        self.profile = profile; self.m = profile.machine
        self.s = self.m.initial(profile.geometry, profile.limits, profile.cleanup, profile.capacity)
    def apply(self, action):
        self.s = self.m.step(self.s, action)
    def observe(self):
        return view.of(self.m, self.s)
