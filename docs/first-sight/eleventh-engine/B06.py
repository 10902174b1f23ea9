"""A round must be refused (UNWRITTEN) while allocated cells of a slot in it are not written."""
import sys
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec import ladder
from spec.machines.actions import Allocate, Assign, Enqueue, Reserve, Round
from spec.vocabulary import Geometry, Params, Reason, Refused, default_limits

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
limits = default_limits(geometry)
engine = Engine(Setup(geometry=geometry, limits=limits, model=IntegerModel()))
machine = ladder.machine("scheduling")
params, prompt, cells = Params(max_new=6), (5, 6, 7), ((0, 0), (0, 1), (0, 2))
state = machine.initial(geometry, limits)
for action in (Reserve(0), Assign(0, prompt, params, 1), Allocate(cells), Enqueue(0, 8)):
    state = machine.step(state, action)
want = {refusal.reason for refusal in machine.refusals(state, Round())}
engine.reserve(0)
engine.assign(0, prompt, params, request=1)
engine.allocate(cells)  # the caller forgets to write them
engine.enqueue(0, 8)
try:
    engine.round()
    got = set()
except Refused as error:
    got = set(error.reasons)
print("refused", got, "expected", want)
assert want == {Reason.UNWRITTEN}
sys.exit(got != want)
