"""A transition is right only if the observable part of the successor is as expected, and drafts are
observed (`proposed` in docs/recordings.md). Slot 0 knows (5, 6) and is given the drafts (7, 8): an
engine that keeps (7, 9) is wrong, and so is one that knows (5, 4). What lies past the drafts is
padding and counts for nothing.
"""
import sys
import jax, jax.numpy as jnp, numpy as np
from conformance.exploration.instances import instance
from conformance.refinement.contents import encode, setup_of
from conformance.refinement.transition import agrees
from spec.machines.actions import Assign, Propose, Reserve
from spec.vocabulary import Geometry, Params

chosen = instance("rollback", Geometry(pages=4, page_size=2, slots=2, pages_per_seq=3))
setup, machine = setup_of(chosen), chosen.machine
state = chosen.initial()
for action in (Reserve(0), Assign(0, (5, 6), Params(max_new=4), 1)):
    state = machine.step(state, action)
before = encode(setup, state)
right = encode(setup, machine.step(state, Propose(0, (7, 8))))
copied = lambda state: jax.tree.map(np.array, state)
assert right.slots.tokens[0, :4].tolist() == [5, 6, 7, 8] and right.slots.proposed[0] == 2
done, wrong = jnp.zeros(3, jnp.int32), []
compared = jax.jit(lambda *given: agrees(setup, *given))

def judged(position=None, token=0):
    after = copied(right)
    if position is not None:
        after.slots.tokens[0, position] = token
    return bool(compared(before, after, done, right, jnp.uint32(0)))

for what, given, wanted in (
    ("the right successor", (), True),
    ("known tokens (5, 4)", (1, 4), False),
    ("drafts (9, 8)", (2, 9), False),
    ("drafts (7, 9)", (3, 9), False),
    ("padding", (4, 9), True),
):
    if judged(*given) != wanted:
        wrong.append(f"{what}: {'right' if not wanted else 'wrong'}, should be the opposite")
print("\n".join(wrong) or "as it should be")
sys.exit(bool(wrong))
