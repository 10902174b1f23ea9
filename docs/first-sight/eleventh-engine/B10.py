"""Outputs that are not taken leave too little room, and sequences end by a stop sequence."""
import os
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # no search for a TPU, which takes a minute
import sys
from attrs import evolve
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec import ladder
from spec.machines import naive
from spec.machines.actions import Prefill, Round
from spec.vocabulary import Geometry, Params, Refused, Request, default_limits

geometry = Geometry(pages=16, page_size=4, slots=3, pages_per_seq=4)
limits = evolve(default_limits(geometry), outputs=3)
machine = ladder.machine("scheduling")
first = Request(id=1, prompt=(4, 4), params=Params(max_new=1))
others = []
for n in (2, 3, 4):  # each ends with its second token, which is a stop
    tokens, _ = naive.generate((n, 7), Params(max_new=2))
    assert tokens[0] != tokens[1]
    others.append(Request(id=n, prompt=(n, 7), params=Params(max_new=6, stops=((tokens[1],),))))
works = [[first], others[:2], others[2:]]

state = machine.initial(geometry, limits)
for work in works:
    state = machine.step(state, Prefill(tuple(work)))
right = {refusal.reason for refusal in machine.refusals(state, Round())}
engine = Engine(Setup(geometry=geometry, limits=limits, model=IntegerModel()))
for work in works:
    engine.prefill(work)
done, reason = engine.generate()
print("rounds", done, reason, "right: 0", right)
wrong = done != 0 or {reason} != right

found = {}  # with the outputs taken between the calls, as a server does that is late
for _ in range(4):
    found |= {one.request: (one.tokens, one.reason) for one in engine.take_outputs()}
    engine.generate()
want = {one.id: naive.generate(one.prompt, one.params) for one in (first, *others)}
print("outputs of", sorted(found), "right:", sorted(want))
sys.exit(wrong or found != want)
