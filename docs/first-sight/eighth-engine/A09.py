"""Four requests on four slots, two tokens in a round, cleanup END.

END: finished sequences are freed "at the end of the prefill or round after which no sequence is
unfinished". All four have finished when generate returns, so no slot and no page is in use.
"""
import sys

from attrs import evolve

from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import CleanupMode, Geometry, Params, Request, default_limits

G = Geometry(pages=8, page_size=4, slots=4, pages_per_seq=2)
LIMITS = evolve(default_limits(G), round_tokens=2)
host = Host(Engine(Setup(geometry=G, limits=LIMITS, model=IntegerModel(), cleanup=CleanupMode.END)))
params = Params(max_new=3)
outputs = host.generate([Request(id=n, prompt=(n, 7), params=params) for n in range(1, 5)])
assert sorted(outputs) == [(1, 0), (2, 0), (3, 0), (4, 0)]
stats = host.stats()
print(stats)
sys.exit(0 if (stats.active, stats.pages_in_use) == (0, 0) else 1)
