"""A truncation to exactly the committed cells is refused: rejected drafts cannot all be cut.

Exit status 1 with the bug, 0 without it. The specification machine takes the same steps.
"""
import sys

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec import ladder, view
from spec.machines import actions as act
from spec.vocabulary import Geometry, Limits, Params, Reason, Refused, Request

GEOMETRY = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
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


begin((1, 2, 3, 4, 5), 8)
engine.propose(0, (11, 12)), engine.pack(), engine.allocate(cells(5, 6)), engine.write(cells(5, 6))
spec(act.Propose(0, (11, 12)), act.Pack(), act.Allocate(cells(5, 6)), act.Write(cells(5, 6)))
assert state.committed[0] == 5
assert should(act.Truncate(0, 5)) == set()  # all drafts are rejected
wrong = []
seen = refusals(engine.truncate, 0, 5)
if seen:
    wrong.append(f"Truncate: {seen}, should be done")
spec(act.Truncate(0, 5))
assert state.proposed[0] == () and state.sequences[0].allocated == 5
held = engine.extract().slots
if (held.proposed[0], held.allocated[0]) != (0, 5):
    wrong.append(f"proposed {held.proposed[0]}, allocated {held.allocated[0]}, should be 0 and 5")
end(wrong)
