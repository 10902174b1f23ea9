"""A request has ended and left its slot, and its output is not taken yet; the next one is admitted.

docs/actions.md, Admit: each reserves its pages until none of its choices holds a slot. Each request
here needs ceil((4 + 4) / 4) = 2 pages, and the pool has 3, all of them free again.
"""

import sys

from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, Params, Refused, Request, default_limits

geometry = Geometry(pages=3, page_size=4, slots=2, pages_per_seq=2)
engine = Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel()))
host = Host(engine)
one, two = (Request(id=n, prompt=(n,) * 4, params=Params(max_new=4)) for n in (1, 2))
host.submit(one)
host.submit(two)
first = host.admit()
rounds = host.generate_rounds()
stats = host.stats()
assert first == (one,) and rounds[0] == 3 and stats.free_pages == 3 and stats.outputs == 1
try:
    second = host.admit()
except Refused as error:
    print("not admitted, with 3 free pages:", error)
    sys.exit(1)
print(second, host.state)
sys.exit(second != (two,) or host.state.admitted != (two,))
