"""`generate` stalls since the caller holds the only slot; it frees it, and `generate([])` goes on.

The docstring of Stalled: the requests keep waiting.
"""

import sys

from impl.engine import Engine
from impl.host import Host, Stalled
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Request, default_limits

geometry = Geometry(pages=4, page_size=4, slots=1, pages_per_seq=2)
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel()))
host = Host(engine)
slot = engine.reserve()
request = Request(id=1, prompt=(5, 6), params=Params(max_new=2))
try:
    host.generate([request])
    sys.exit("not stalled")
except Stalled as error:
    print(error)
waiting = host.state.waiting
engine.free(slot)
outputs = host.generate([])
print(waiting, outputs)
sys.exit(waiting != (request,) or {key: len(o.tokens) for key, o in outputs.items()} != {(1, 0): 2})
