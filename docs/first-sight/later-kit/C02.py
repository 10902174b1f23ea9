"""END: at the end of the prefill or round after which no sequence is unfinished."""
from common import *
m, s = start(cleanup=CleanupMode.END)
s = run(m, s, act.Prefill((Request(id=7, prompt=(5, 6, 7), params=Params(max_new=1), n_generations=2),)))
# By hand: max_new is 1, so both choices finish in the prefill. No sequence is unfinished after it: both are freed.
seen("slots in use", [slot for slot, one in enumerate(s.sequences) if one], [])
seen("counts", s.counts, (0,) * 8)
seen("outputs", [(o.request, o.choice) for o in s.outputs], [(7, 0), (7, 1)])
