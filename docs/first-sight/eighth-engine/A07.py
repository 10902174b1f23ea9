"""One request is served, and the host is reset with PHYSICAL.

"PHYSICAL also zeroes the pool" (docs/actions.md, Reset; docstring of Engine.reset). So no byte of K
and V of the request is left in the state that the engine extracts.
"""
import sys

from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, ResetMode, default_limits

G = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
engine = Engine(Setup(geometry=G, limits=default_limits(G), model=IntegerModel()))
host = Host(engine)
host.generate([Request(id=1, prompt=(5, 6, 7, 8, 9), params=Params(max_new=3))])
assert any(pool.any() for pool in engine.extract().pages.cache)
host.reset(ResetMode.PHYSICAL)
left = sum(int((pool != 0).sum()) for pool in engine.extract().pages.cache)
print("numbers left:", left)
sys.exit(0 if left == 0 else 1)
