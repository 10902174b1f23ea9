"""Padding stands for nothing: a batch names only the tokens that it names."""
import sys
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Refused, default_limits

g = Geometry(pages=8, page_size=4, slots=3, pages_per_seq=2)
engine = Engine(Setup(geometry=g, limits=default_limits(g), model=IntegerModel()))
for slot in (0, 1):
    engine.reserve(slot)
    engine.assign(slot, (5, 6, 7), Params(max_new=2), request=slot)
engine.allocate([(0, 0), (1, 0)])
engine.write([None, (1, 0)])
try:
    engine.write([(0, 0)])  # the next position of slot 0 is still 0
    plan = engine.allocate([None, (1, 1)])
except Refused as error:
    print(error)
    sys.exit(1)
print(plan.kv_lens, plan.num_seqs)
# one sequence, slot 1, of 2 cells; its page is 1, so that position 1 is cell 5
right = int(plan.num_seqs[0]) == 1 and plan.kv_lens.tolist()[0] == 2 and plan.destinations.tolist()[0] == 5
sys.exit(0 if right else 1)
