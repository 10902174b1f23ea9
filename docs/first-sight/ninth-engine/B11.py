"""No round of admitted requests is refused for lack of pages.

By hand: each request has 1 + 19 = 20 positions, 5 pages of 4. Two of them reserve all 10 pages, so
the third waits, though it has a slot, and all three are served with 19 tokens each.
"""
import sys

from impl.engine import Engine
from impl.host import Host, Stalled
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

geometry = Geometry(pages=10, page_size=4, slots=3, pages_per_seq=5)
setup = Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel())
requests = [Request(id=n, prompt=(n,), params=Params(max_new=19)) for n in (1, 2, 3)]
assert [one.pages_needed(geometry) for one in requests] == [5, 5, 5]
try:
    outputs = Host(Engine(setup)).generate(requests)
except Stalled as error:
    print(error)
    sys.exit(1)
seen = {key: len(output.tokens) for key, output in outputs.items()}
print(seen)
sys.exit(seen != {(1, 0): 19, (2, 0): 19, (3, 0): 19})
