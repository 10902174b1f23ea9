"""spec.stats.Stats: "active: slots in use, finished ones included"."""
from common import *
from spec import stats
from spec.machines.actions import *
m, s = start(cleanup=CleanupMode.NONE, machine=ladder.machine("scheduling"))
one = Request(id=1, prompt=(1, 2), params=Params(max_new=1))  # finishes in its prefill, and keeps its slot
two = Request(id=2, prompt=(3,), params=Params(max_new=3))
s = run(m, s, Prefill((one, two)))
seen("slots in use", [q is not None for q in s.sequences], [True, True, False, False])
seen("active", stats.of(s).active, 2)
seen("named active", stats.NAMED["active"].of(s), 2)
