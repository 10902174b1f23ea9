"""A draft is refused that leaves room to draw exactly one token.

By hand: prompt of 2 tokens, max_new 3, so a row of 5 tokens ends the request. A prefill draws the
first generated token. With one draft 2 tokens would follow the prompt, which is below max_new 3, so
Propose is done; with two drafts 3 would, so it is refused as TOO_LONG.
"""
from common_b import attempt, engine, verdict
from spec import ladder
from spec.machines.actions import Prefill, Propose
from spec.vocabulary import Geometry, Params, Request, default_limits

G = Geometry(pages=4, page_size=4, slots=1, pages_per_seq=2)
request = Request(id=1, prompt=(1, 2), params=Params(max_new=3))
machine = ladder.machine("scheduling", "rollback")
from attrs import evolve
limits = evolve(default_limits(G), queue=8)
state = machine.step(machine.initial(G, limits), Prefill((request,)))
def why(tokens):
    return sorted(one.reason.name for one in machine.refusals(state, Propose(0, tokens)))
ours = engine(G, queue=8)
ours.prefill([request])
two = attempt(ours.propose, 0, (7, 8))
one = attempt(ours.propose, 0, (7,))
verdict(([], ["TOO_LONG"], None, ("Refused", ("TOO_LONG",))), (why((7,)), why((7, 8)), one, two))
