"""A clone that needs a copy is made although no page is free, over a page in use.

Exit status 1 with the bug, 0 without it. The specification machine takes the same steps.
"""
import sys

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec import ladder, view
from spec.machines import actions as act
from spec.vocabulary import Geometry, Limits, Params, Reason, Refused, Request

GEOMETRY = Geometry(pages=2, page_size=4, slots=3, pages_per_seq=2)
LIMITS = Limits(queue=6, prefill_tokens=16, prefill_seqs=2, round_tokens=3, rounds=8, stops=2, stop_len=4, outputs=4)
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


begin((1, 2, 3, 4, 5, 6), 2)  # both pages of the pool; the last one is partial
right = should(act.Clone(0, None, 1))
assert right == {Reason.OUT_OF_PAGES}
wrong = []
seen = refusals(engine.clone, 0, choice=1)
if seen != right:
    wrong.append(f"Clone: {seen or 'done'}, should be {right}")
counts, rows = view.of(MACHINE, state).counts, state.sequences[0].row
held = engine.extract().pages
assert (counts, rows) == ((1, 1), (0, 1))
if tuple(held.counts.tolist()) != counts:
    wrong.append(f"counts {held.counts.tolist()}, should be {counts}")
end(wrong)
