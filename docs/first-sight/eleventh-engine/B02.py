"""Enqueue into a full queue must be refused with QUEUE_FULL; what it accepts must be queued."""
import sys
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec import ladder, view
from spec.machines.actions import Enqueue, Prefill
from spec.vocabulary import Geometry, Params, Reason, Refused, Request, default_limits

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
limits = default_limits(geometry)  # a queue of 4
engine = Engine(Setup(geometry=geometry, limits=limits, model=IntegerModel()))
machine = ladder.machine("scheduling")
request = Request(id=1, prompt=(5, 6), params=Params(max_new=12))
state = machine.step(machine.initial(geometry, limits), Prefill((request,)))
engine.prefill([request])
wrong = False
for token in (11, 12, 13, 14):
    want = {refusal.reason for refusal in machine.refusals(state, Enqueue(0, token))}
    try:
        engine.enqueue(0, token)
        got = set()
    except Refused as error:
        got = set(error.reasons)
    if not want:
        state = machine.step(state, Enqueue(0, token))
    print(token, "refused", got, "expected", want)
    wrong |= got != want
assert want == {Reason.QUEUE_FULL} or wrong
known, right = int(engine.extract().slots.known[0]), len(view.of(machine, state).tokens[0])
print("known tokens", known, "expected", right)
sys.exit(wrong or known != right)
