"""A commit of some drafts leaves the others proposed, and queued for the next Pack (docs/actions.md).

Queue after Propose: the drawn token at 3, then 5, 6, 7 at 4, 5, 6. Two tokens leave with each Pack.
"""
import sys
from attrs import evolve

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

geometry = Geometry(pages=6, page_size=4, slots=2, pages_per_seq=3)
limits = evolve(default_limits(geometry), round_tokens=2)
engine = Engine(Setup(geometry=geometry, limits=limits, model=IntegerModel()))
engine.prefill([Request(id=1, prompt=(1, 2, 3), params=Params(max_new=8))])
engine.propose(0, (5, 6, 7))
first = engine.pack()
assert [entry[1:] for entry in first] == [(0, 3), (0, 4)], first
engine.allocate([(0, 3), (0, 4)])
engine.write([(0, 3), (0, 4)])
engine.commit(0, 5)  # the draft 5 is accepted; 6 and 7 are still to be verified
rest = engine.pack()
print("left in the queue:", rest)
sys.exit(0 if rest == ((6, 0, 5), (7, 0, 6)) else 1)
