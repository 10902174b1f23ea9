"""WIN rejects a right step in which two sequences with released pages end together.

By hand: window 3, pages of 2; two requests of 5 prompt tokens and max_new 1 finish in a prefill and
stay (cleanup NONE). The query at 5 sees 3, 4, 5, so Release(slot, 3) releases page 0 of each. Then
FreeFinished frees both. No sequence that goes on released anything in this step: no violation.
"""
from common_b import verdict
from spec import clauses, ladder, view
from spec.machines.actions import FreeFinished, Prefill, Release
from spec.vocabulary import CleanupMode, Geometry, Params, Request, default_limits

G = Geometry(pages=8, page_size=2, slots=2, pages_per_seq=6, window=3)
machine = ladder.machine("scheduling", "window")
state = machine.initial(G, default_limits(G), CleanupMode.NONE)
requests = tuple(Request(id=i, prompt=(1, 2, 3, 4, 5), params=Params(max_new=1)) for i in (1, 2))
for action in (Prefill(requests), Release(0, 3), Release(1, 3)):
    state = machine.step(state, action)
after = machine.step(state, FreeFinished())
found = list(clauses.step_violations(view.of(machine, state), view.of(machine, after)))
verdict(((1, 1), (0, 0), []), (state.first_page, after.first_page, found))
