"""A clone is refused for its choice only if that choice of the same request is live or untaken."""
import sys

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Refused, default_limits

geometry = Geometry(pages=8, page_size=4, slots=4, pages_per_seq=2)
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel()))
try:
    for slot, request in enumerate((7, 8)):
        engine.reserve(slot)
        engine.assign(slot, (5, 6), Params(max_new=2), request=request)
        engine.allocate([(slot, 0), (slot, 1)])
        engine.write([(slot, 0), (slot, 1)])
    child = engine.clone(0, choice=1000)  # a beam search that numbers its beams; 7 has choice 0 alone
except Refused as error:
    print("refused:", error)
    sys.exit(1)
print(child, engine.stats().occupants)
sys.exit(0 if child == 2 and engine.stats().occupants == {(7, 0), (8, 0), (7, 1000)} else 1)
