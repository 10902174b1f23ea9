"""A request of one token is served by generate: docs/serving.md, "serves a list of requests until
all are done", and "A request ends after `max_new` tokens". So there is one output, of one token.
"""
import sys

from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2)
host = Host(Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel())))
outputs = host.generate([Request(id=1, prompt=(5, 6, 7), params=Params(max_new=1))])
print(outputs)
sys.exit(list(outputs) != [(1, 0)] or len(outputs[1, 0].tokens) != 1)
