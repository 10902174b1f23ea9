"""A round whose sequence begins several pages is refused although pages are plenty.

Exit status 1 with the bug, 0 without it. The specification machine takes the same steps.
"""
import sys

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec import ladder, view
from spec.machines import actions as act
from spec.vocabulary import Geometry, Limits, Params, Reason, Refused, Request

GEOMETRY = Geometry(pages=8, page_size=2, slots=1, pages_per_seq=8)
LIMITS = Limits(queue=8, prefill_tokens=16, prefill_seqs=2, round_tokens=8, rounds=8, stops=2, stop_len=4, outputs=4)
MACHINE = ladder.machine("rollback", "scheduling")
engine = Engine(Setup(geometry=GEOMETRY, limits=LIMITS, model=IntegerModel()))
state = MACHINE.initial(GEOMETRY, LIMITS)


def refusals(call, *args, **named):
    """Why the engine refuses the call; empty if it is done."""
    try:
        call(*args, **named)
    except Refused as error:
        return set(error.reasons)
    return set()


def should(action):
    """Why the specification refuses the action."""
    return {refusal.reason for refusal in MACHINE.refusals(state, action)}


def cells(*positions):
    return tuple((0, position) for position in positions)


def end(wrong):
    print("\n".join(wrong) or "as specified")
    sys.exit(1 if wrong else 0)


def spec(*steps):
    global state
    for step in steps:
        state = MACHINE.step(state, step)


def begin(prompt, max_new):
    """Slot 0 gets this prompt, with all its cells written."""
    params, every = Params(max_new=max_new), cells(*range(len(prompt)))
    engine.reserve(0), engine.assign(0, prompt, params, request=1)
    engine.allocate(every), engine.write(every)
    spec(act.Reserve(0), act.Assign(0, prompt, params, 1), act.Allocate(every), act.Write(every))


request = Request(id=1, prompt=(1,), params=Params(max_new=12))
engine.prefill([request])
spec(act.Prefill((request,)))
for token in (7, 8, 9, 10):  # with the drawn token five are queued, at positions 1 to 5
    engine.enqueue(0, token)
    spec(act.Enqueue(0, token))
assert should(act.Round()) == set()  # positions 2 and 4 begin a page; seven pages are free
wrong = []
seen = refusals(engine.round)
if seen:
    wrong.append(f"Round: {seen}, should be done")
spec(act.Round())
assert (state.sequences[0].allocated, state.sequences[0].row) == (6, (0, 1, 2))
held = engine.extract()
if held.slots.allocated[0] != 6 or held.pages.rows[0].tolist()[:3] != [0, 1, 2]:
    wrong.append(f"allocated {held.slots.allocated[0]}, should be 6; row {held.pages.rows[0].tolist()}")
end(wrong)
