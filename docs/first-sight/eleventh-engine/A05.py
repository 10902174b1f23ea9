"""A truncation below the known tokens makes the number of drafts negative.

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


prompt, params, every = (1, 2, 3, 4, 5, 6), Params(max_new=8), cells(*range(6))
engine.reserve(0), engine.assign(0, prompt, params, request=1)
engine.allocate(every), engine.truncate(0, 4)  # two of the cells are given back, unwritten
spec(act.Reserve(0), act.Assign(0, prompt, params, 1), act.Allocate(every), act.Truncate(0, 4))
assert state.sequences[0].tokens == prompt and state.proposed[0] == ()  # known tokens stay
wrong = []
engine.allocate(cells(4, 5))
spec(act.Allocate(cells(4, 5)))
assert should(act.Write(every)) == set()
seen = refusals(engine.write, every)
if seen:
    wrong.append(f"Write: {seen}, should be done")
spec(act.Write(every))
assert should(act.Propose(0, (11,))) == set()
seen = refusals(engine.propose, 0, (11,))
if seen:
    wrong.append(f"Propose: {seen}, should be done")
known = tuple(engine.extract().slots.tokens[0, :6].tolist())
if known != prompt:
    wrong.append(f"known tokens {known}, should be {prompt}")
end(wrong)
