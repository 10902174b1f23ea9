"""A request with more choices than `limits.prefill_seqs` never fits, although the slots suffice.

By hand: 3 slots, prefill_seqs 1 (prompts in one prefill). A request of one prompt token, max_new 2
and 3 choices needs 3 slots, one prompt and 3 pages of 4: it fits, so Submit is done.
"""
from attrs import evolve
from common_b import attempt, engine, verdict
from impl.host import Host
from spec import ladder
from spec.machines.actions import Submit
from spec.vocabulary import Geometry, Params, Request, default_limits

G = Geometry(pages=6, page_size=4, slots=3, pages_per_seq=2)
request = Request(id=1, prompt=(1,), params=Params(max_new=2), n_generations=3)
machine = ladder.machine("admission")
state = machine.initial(G, evolve(default_limits(G), prefill_seqs=1))
found = sorted(one.reason.name for one in machine.refusals(state, Submit(request)))
verdict(([], None), (found, attempt(Host(engine(G, prefill_seqs=1)).submit, request)))
