"""A round is refused because of a slot that has no token in it.

docs/actions.md, Round, UNWRITTEN: "a slot with a packed token has allocated cells that are not
written". Slot 0 decodes (its first drawn token is queued at position 3); slot 1 has a prompt whose
five cells are allocated and not written, and no queued token. So the round is done: it takes the
token of slot 0 alone, and its allocated cells rise from 3 to 4.
"""

from common_c import apply, engine, go, ladder, report, start, why

from spec.machines.actions import Allocate, Assign, Prefill, Reserve, Round
from spec.vocabulary import Geometry, Params, Request

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2)
five = tuple((1, position) for position in range(5))
actions = (
    Prefill((Request(id=1, prompt=(1, 2, 3), params=Params(max_new=4)),)),
    Reserve(1),
    Assign(1, (4, 5, 6, 7, 8), Params(max_new=2), request=2),
    Allocate(five),
)
machine = ladder.machine("admission", "rollback")
state = go(machine, start(machine, geometry), *actions)
refused = why(machine, state, Round())
after = state if refused else machine.step(state, Round())

made = engine(geometry)
for action in actions:
    made.apply(action)
result = apply(made, Round())
report(
    ("refusals of the specification", [], refused),
    ("allocated by the specification", 4, after.sequences[0].allocated),
    ("result of the engine", None, result),
    ("allocated by the engine", 4, made.observe().allocated[0]),
)
