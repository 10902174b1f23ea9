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


# For the kit: recordings.
import json, tempfile
from pathlib import Path


def profile(machine_actions=None, g=None, cleanup=CleanupMode.INCREMENTAL, **more):
    """A profile of an engine; by default it offers all actions of `admission` and `rollback`."""
    from conformance.protocol import Profile
    g = g or geometry()
    offered = machine_actions or ladder.machine("admission", "rollback").calls
    return Profile(name="test", geometry=g, limits=default_limits(g), cleanup=cleanup, actions=offered, **more)


def validated(header, *lines):
    """The outcome of validating a recording with these lines."""
    from conformance.recordings.validate import validate
    head = {"kvspec": "recording", "version": 2, **header}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in (head, *lines)))
        return validate(path)


SIZES = {"geometry": {"pages": 2, "page_size": 2, "slots": 2, "pages_per_seq": 2}}


def engine(g=None, **limits):
    """The engine with the exact model, on the CPU."""
    import os
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from impl.engine import Engine
    from impl.models.integer import IntegerModel
    from impl.setup import Setup
    g = g or geometry()
    return Engine(Setup(geometry=g, limits=evolve(default_limits(g), **limits), model=IntegerModel()))


def refused_for(call, *arguments, **named):
    """The names of the reasons for which a call is refused; none if it is done."""
    try:
        call(*arguments, **named)
    except Refused as error:
        return {reason.name for reason in error.reasons}
    return set()
