"""A second write of drafts must begin at the committed cells, and not where the first ended.

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
three = (11, 12, 13)
engine.propose(0, three), engine.pack(), engine.allocate(cells(5, 6, 7)), engine.write(cells(5))
spec(act.Propose(0, three), act.Pack(), act.Allocate(cells(5, 6, 7)), act.Write(cells(5)))
wrong = []
right = should(act.Write(cells(5)))  # it is written
assert right == {Reason.BATCH_POSITIONS}
seen = refusals(engine.write, cells(5))
if seen != right:
    wrong.append(f"Write again: {seen or 'done'}, should be {right}")
assert should(act.Write(cells(6, 7))) == set()
seen = refusals(engine.write, cells(6, 7))
if seen:
    wrong.append(f"Write of the others: {seen}, should be done")
spec(act.Write(cells(6, 7)))
assert (state.sequences[0].written, state.committed[0]) == (8, 5)
held = engine.extract().slots
if (held.written[0], held.committed[0]) != (8, 5):
    wrong.append(f"written {held.written[0]}, committed {held.committed[0]}, should be 8 and 5")
end(wrong)
