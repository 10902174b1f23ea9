"""Pages of 3: a clone of 3 cells shares one page; a clone of 4 shares one and copies the other."""
import sys
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, default_limits

g = Geometry(pages=8, page_size=3, slots=2, pages_per_seq=3)
found = []
for cells in (3, 4):
    engine = Engine(Setup(geometry=g, limits=default_limits(g), model=IntegerModel()))
    engine.reserve(0)
    engine.assign(0, (5, 6, 7, 8), Params(max_new=3), request=1)
    batch = [(0, position) for position in range(cells)]
    engine.allocate(batch)
    engine.write(batch)
    engine.clone(0, choice=1)
    found.append(engine.stats().pages_in_use)
print(found)
sys.exit(0 if found == [1, 3] else 1)
