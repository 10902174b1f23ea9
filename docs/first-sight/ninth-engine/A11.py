"""Two greedy choices of one request have the same tokens, since each reads the whole prompt.

The prompt ends inside a page of 12 cells, at its 10th; the second choice has a copy of that page.
"""
import sys

from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

geometry = Geometry(pages=4, page_size=12, slots=2, pages_per_seq=2)
host = Host(Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel())))
request = Request(id=1, prompt=tuple(range(1, 11)), params=Params(max_new=4), n_generations=2)
outputs = host.generate([request])
first, second = outputs[1, 0].tokens, outputs[1, 1].tokens
print(first, second)
sys.exit(0 if first == second else 1)
