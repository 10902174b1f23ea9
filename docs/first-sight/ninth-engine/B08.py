"""A request that fits the pool exactly is admitted and served.

By hand: a prompt of 5 and max_new 3 are 8 positions, 2 pages of 4. The full page of the prompt is
shared, and each of 3 choices has one further page: 1 + 3 * (2 - 1) = 4 pages, the whole pool. So
generate returns (1, 0), (1, 1) and (1, 2) with 3 tokens each.
"""
import sys

from impl.engine import Engine
from impl.host import Host, Stalled
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

geometry = Geometry(pages=4, page_size=4, slots=3, pages_per_seq=2)
setup = Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel())
params = Params(max_new=3, temperature=1.0, seed=5)
request = Request(id=1, prompt=(1, 2, 3, 4, 5), params=params, n_generations=3)
assert request.pages_needed(geometry) == 4
try:
    outputs = Host(Engine(setup)).generate([request])
except Stalled as error:
    print(error)
    sys.exit(1)
seen = {key: len(output.tokens) for key, output in outputs.items()}
print(seen)
sys.exit(seen != {(1, 0): 3, (1, 1): 3, (1, 2): 3})
