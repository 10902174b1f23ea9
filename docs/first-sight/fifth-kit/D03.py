"""Whether a run must reach `Clone: OUT_OF_PAGES` for an engine with lazy copies and a lookahead.

docs/adapters.md: "A clone takes pages ahead of its own, with lazy copies too", so a clone can lack
pages. Here the parent's two cells take page 0, and its lookahead of four takes page 1; the clone shares
page 0 and needs a page ahead, of which none of the two is free (the specification says so below). A
run holds only if each action was "refused for each reason that its guards in the specification have",
but for what "cannot come about", so this refusal must be required.
"""

from common_d import conclude
from conformance.protocol import Profile
from conformance.rungs.coverage import offered_by
from spec import ladder
from spec.machines.actions import Allocate, Assign, Clone, Free, Reserve, Write
from spec.vocabulary import Capacity, CleanupMode, Geometry, Params, default_limits

sizes = Geometry(pages=2, page_size=4, slots=2, pages_per_seq=2)
limits = default_limits(sizes)
profile = Profile(
    name="lazy", geometry=sizes, limits=limits, cleanup=CleanupMode.NONE, copy="lazy", lookahead=4,
    actions={Reserve, Assign, Allocate, Write, Clone, Free},
)

machine = ladder.machine("lifecycle")
state = machine.initial(sizes, limits, CleanupMode.NONE, Capacity(copy="lazy", lookahead=4))
for action in (
    Reserve(0), Assign(0, (5, 6), Params(max_new=1), 1), Allocate(((0, 0), (0, 1))),
    Write(((0, 0), (0, 1))),
):
    state = machine.step(state, action)
print("row", state.sequences[0].row)
(refusal,) = machine.refusals(state, Clone(parent=0, child=1, choice=1))
print("the specification:", refusal)
assert refusal.reason.name == "OUT_OF_PAGES"

words = offered_by(
    profile, [sizes], poisonable=False, cleanups=[CleanupMode.NONE], limits=lambda _: limits
)
conclude(True, "Clone: OUT_OF_PAGES" in words)
