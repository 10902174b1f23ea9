"""Machine.initial: InvalidInput "also for limits too small for the geometry". With fewer outputs than slots a request
of as many choices as slots passes Submit ("a request that can never fit is refused when it is submitted",
scheduling.md), and its prefill, which needs room for one output of each choice, is never done."""
from common import *
from spec.machines.actions import *
try:
    m, s = start(geometry(pages=16, slots=4), ladder.machine("admission"), round_tokens=2, outputs=2)
except InvalidInput:
    sys.exit(0)
r = Request(id=1, prompt=(1, 2, 3), params=Params(max_new=2), n_generations=3)  # 3 choices on 4 slots: 7 pages at most
never = reasons(m, s, Submit(r))
waits = reasons(m, run(m, s, Submit(r)), Admit()) if not never else set()
print(f"limits of 2 outputs for 4 slots accepted; Submit in an empty engine: {never}, then Admit: {waits}, for ever"); sys.exit(1)
