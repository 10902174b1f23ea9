"""Pages of two. Three known tokens are written (pages 0 and 1), and five drafts get the cells 3 to
7: two more pages, four in all. Then all drafts are rejected.

Truncate: "Pages without a cell are released". Three cells stay, so two pages are in use.
"""
import sys

from attrs import evolve

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, default_limits

G = Geometry(pages=6, page_size=2, slots=2, pages_per_seq=5)
LIMITS = evolve(default_limits(G), queue=8, round_tokens=8)
engine = Engine(Setup(geometry=G, limits=LIMITS, model=IntegerModel()))
engine.reserve(0)
engine.assign(0, (1, 2, 3), Params(max_new=7), request=1)
cells = [(0, at) for at in range(8)]
engine.allocate(cells[:3])
engine.write(cells[:3])
engine.propose(0, (4, 5, 6, 7, 8))
assert len(engine.pack()) == 5
engine.allocate(cells[3:])
engine.write(cells[3:])
assert engine.stats().pages_in_use == 4
engine.truncate(0, 3)
stats = engine.stats()
print(stats)
sys.exit(0 if (stats.pages_in_use, stats.free_pages) == (2, 4) else 1)
