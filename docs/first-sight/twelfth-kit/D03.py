"""An engine that keeps what it has compiled by its sizes, so that a second cleanup mode is ignored.

Engines of one geometry clean up as the first of them does. At the three usual settings the sizes are
all different, so that nothing shows; the first further setting is the main geometry with another
cleanup, since "an engine may take one for the other". By hand: of two requests of one prefill the one
with max_new 1 has finished at once; with the cleanup END it keeps its slot while the other goes on.
"""
import sys

from conformance.fuzzing.settings import further_of, settings_of
from conformance.lockstep.lockstep import Lockstep, Violation
from conformance.protocol import Profile
from common import SpecEngine
from spec.machines.actions import Free, Prefill, Round, TakeOutputs
from spec.vocabulary import CleanupMode, Geometry, Params, Request

MAIN = Geometry(pages=16, slots=4, page_size=4, pages_per_seq=4)
ACTIONS = {Prefill, Round, Free, TakeOutputs}
compiled = {}


def right(geometry, limits, cleanup):
    return SpecEngine(
        Profile(name="kept", geometry=geometry, limits=limits, cleanup=cleanup, actions=ACTIONS)
    )


def kept(geometry, limits, cleanup):
    engine = right(geometry, limits, cleanup)
    engine.s = engine.s._replace(cleanup=compiled.setdefault(geometry, cleanup))
    return engine


def violated(factory, setting):
    requests = tuple(Request(id=n, prompt=(n,), params=Params(max_new=n)) for n in (1, 2))
    engine = Lockstep(factory(setting.geometry, setting.limits, setting.cleanup))
    try:
        engine.do(Prefill(requests))
    except Violation as found:
        return str(found).splitlines()[0]
    return None


usual = settings_of(right, MAIN)
every = [*usual, *further_of(right, MAIN, known=usual, seed=0, leave_out=print)]
at_main = {one.cleanup.name for one in every if one.geometry == MAIN}
print(len(every), "settings, the cleanups at the main geometry:", *sorted(at_main))
blamed = [found for one in every if (found := violated(kept, one))]
print("the engine that takes one cleanup for another:", blamed or "nothing is found")
assert not any(violated(right, one) for one in every)
sys.exit(0 if at_main == {"INCREMENTAL", "END"} and blamed else 1)
