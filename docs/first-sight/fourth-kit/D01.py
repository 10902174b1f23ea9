"""A page that is freed and taken again within one Generate may be any page of an engine with "any".

Pages of 2 cells. Request 1 (prompt 1, max_new 2) has page 0, request 2 (prompt 2, max_new 6) page 1.
Round 1 of Generate fills slot 0's page, finishes request 1 and frees page 0; slot 1 takes page 2 for
position 2. Round 3 takes a page for position 4: the specification the lowest free one, 0; this engine
takes page 3, which is free too. docs/recordings.md and docs/adapters.md: with the policy "any" an engine
may take any free page, so the history is right.
"""

from common_d import Scripted, compare, profile, view
from attrs import evolve
from conformance.lockstep.run import replay
from spec.machines.actions import Generate, Prefill
from spec.vocabulary import Geometry, Params, Request, default_limits

sizes = Geometry(pages=5, page_size=2, slots=2, pages_per_seq=4)
declared = profile(
    sizes, actions={Prefill, Generate}, policy="any", limits=evolve(default_limits(sizes), rounds=3)
)
views = [
    view(sizes, [None, None]),
    view(sizes, [(0,), (1,)]),
    view(sizes, [None, (1, 2, 3)]),
]
requests = (
    Request(id=1, prompt=(5,), params=Params(max_new=2)),
    Request(id=2, prompt=(6, 7), params=Params(max_new=6)),
)
found = replay(
    lambda: Scripted(declared, views), (Prefill(requests), Generate()), serve=False
)
compare("the finding of a right history", None, found and f"{found.clause}: {found.message}")
