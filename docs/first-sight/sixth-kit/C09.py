"""Refusals that are found first do not replace those found before, so that wrong reasons are accepted.

By hand, after docs/actions.md: slot 0 is reserved and has no prompt. A Write of (0, 3) is refused
with SLOT_EMPTY (number 4); BATCH_POSITIONS (5) is asked only if nothing of a lower number holds.
A Write of more than prefill_tokens entries for a slot out of range is BATCH_WIDTH (1) alone,
not SLOT_RANGE (2).
"""
from common_b import verdict
from spec import ladder
from spec.machines.actions import Reserve, Write
from spec.vocabulary import Geometry, default_limits

G = Geometry(pages=4, page_size=2, slots=2, pages_per_seq=2)
machine = ladder.machine("scheduling")
state = machine.step(machine.initial(G, default_limits(G)), Reserve(0))
def why(batch):
    return sorted(one.reason.name for one in machine.refusals(state, Write(batch)))
verdict((["SLOT_EMPTY"], ["BATCH_WIDTH"]), (why(((0, 3),)), why(((7, 0),) * 5)))
