"""generate returns every output that finishes meanwhile or was not taken yet.

A server drives the rounds itself until its request has finished, and then calls generate([]). By
hand: one choice of max_new 2 and no stops, so (1, 0) with 2 tokens, and nothing left to take.
"""
import sys

from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=3)
setup = Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel())
host = Host(Engine(setup))
host.submit(Request(id=1, prompt=(3, 1, 4), params=Params(max_new=2)))
host.admit()
host.generate_rounds()
seen = {key: len(output.tokens) for key, output in host.generate([]).items()}
print(seen)
sys.exit(seen != {(1, 0): 2} or host.stats().outputs != 0)
