"""4 sequences need 2 more tokens each, and a round takes 1: 8 rounds of at most 20, then QUEUE_EMPTY."""
import sys
from attrs import evolve
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Reason, Request, default_limits

G = Geometry(pages=16, page_size=2, slots=4, pages_per_seq=2)
limits = evolve(default_limits(G), round_tokens=1, rounds=20)
engine = Engine(Setup(geometry=G, limits=limits, model=IntegerModel()))
engine.prefill([Request(id=n, prompt=(5,), params=Params(max_new=3)) for n in range(4)])
seen = engine.generate()
right = seen == (8, Reason.QUEUE_EMPTY)
print("right" if right else "WRONG", seen)
sys.exit(0 if right else 1)
