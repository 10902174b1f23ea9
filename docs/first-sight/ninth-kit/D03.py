"""`diff` of an engine that takes whole batches with one that takes one slot at a time.

Both are the specification, so that no difference is legal or not. 2 pages, 2 slots; slot 0 has one
page; a batch asks for one more page of slot 0 and two of slot 1: three pages, one is free. B is sent
it slot by slot. So must A be, as one profile stands for both ("the calls that both can take"): slot 0
gets its page, slot 1 is refused. Then slot 0 writes its two pages, which both do.
"""
from common import *
from attrs import evolve
from conformance.lockstep.differential import PairFactory
from conformance.lockstep.lockstep import Lockstep
from conformance.protocol import Profile

ACTIONS = frozenset({act.Reserve, act.Allocate, act.Free})

def factory(batches):
    def make(geometry, limits, cleanup):
        return SpecEngine(Profile(name=batches, geometry=geometry, limits=limits, cleanup=cleanup,
                                  actions=ACTIONS, batches=batches))
    return make

g = geometry(pages=2, page_size=1, slots=2, pages_per_seq=2)
pairs = PairFactory(factory("several slots"), factory("one slot"))
pair = pairs(g, default_limits(g), CleanupMode.INCREMENTAL)
lockstep = Lockstep(pair)
for action in (act.Reserve(0), act.Reserve(1), act.Allocate(((0, 0),)),
               act.Allocate(((0, 1), (1, 0), (1, 1))), act.Free(0), act.Allocate(((1, 0),)),
               act.Allocate(((1, 1),))):
    lockstep.do(action)
pair.settle()
seen("differences of two equal engines", dict(pairs.seen.counts), {})
