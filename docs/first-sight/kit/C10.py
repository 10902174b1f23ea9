from common import *
# Cleanup "end": slot 0 is reserved and has not finished, so slot 1, which finishes in its prefill, is kept.
m, s = start(cleanup=CleanupMode.END)
s = run(m, s, act.Reserve(0), act.Prefill((Request(id=1, prompt=(1, 2), params=Params(max_new=1)),)))
seen("slots in use", [q is not None for q in s.sequences], [True, True, False, False])
