"""--baseline fails if a grid point takes more cycles for the same work, and the work of a pass is
its KV tokens times its queries. 64 queries and 128 cells in 1,000 cycles are 8.2 pairs a cycle.
With 32 queries in the same cycles each pair takes twice as long: a regression. With 128 queries in
1,500 cycles it takes 3/4: none.
"""
import sys
from conformance.kernels.compile import baseline, grid
from conformance.kernels.compile.loops import Pass
from conformance.kernels.compile.outcome import Compiled

cell = grid.grid()[0]

def run(prefill, decode=Pass(100, 128, 1)):
    return [Compiled(kernel="tpu", cell=cell, verdict="ok", decode=decode, prefill=prefill).as_dict()]

before = run(Pass(1000, 128, 64))
wanted = {  # the passes of this run, and how many regressions there are
    "the same": (run(Pass(1000, 128, 64)), 0),
    "half of the queries in the same cycles": (run(Pass(1000, 128, 32)), 1),
    "twice the queries in 3/2 of the cycles": (run(Pass(1500, 128, 128)), 0),
    "twice the cells in 3/2 of the cycles": (run(Pass(1500, 256, 64)), 0),
    "one more cycle": (run(Pass(1001, 128, 64)), 1),
    "one more cycle of decoding": (run(Pass(1000, 128, 64), Pass(101, 128, 1)), 1),
}
wrong = []
for what, (now, count) in wanted.items():
    found = baseline.regressions(before, now)
    if len(found) != count:
        wrong.append(f"{what}: {len(found)} regressions, should be {count}: {found}")
print("\n".join(wrong) or "as it should be")
sys.exit(bool(wrong))
