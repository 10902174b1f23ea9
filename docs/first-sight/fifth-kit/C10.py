"""Append is accepted beside Submit and Admit.

docs/adapters.md: "Append goes with no action of the queue (Enqueue, Pack, Purge, Prefill, Round,
Generate, Submit, Admit)", since the caller then has the queue. So `machine_for` raises InvalidInput
for a set with Append and Submit and Admit, as for one with Append and Round, and `not_beside` names
all eight for Append. Without Append the same set has a machine.
"""

from common_c import judge, rejected

from spec import ladder
from spec.machines.actions import Admit, Allocate, Append, Free, Reserve, Round, Submit, Write

base = {Reserve, Allocate, Write, Free}


def refused(*more):
    return rejected(lambda: ladder.machine_for(frozenset(base | set(more))))


names = sorted(kind.__name__ for kind in ladder.not_beside(frozenset({Append})))
queue = ["Admit", "Enqueue", "Generate", "Pack", "Prefill", "Purge", "Round", "Submit"]
judge(
    ("Append beside Round is rejected", True, refused(Append, Round)),
    ("Append beside Submit and Admit is rejected", True, refused(Append, Submit, Admit)),
    ("Submit and Admit alone are rejected", False, refused(Submit, Admit)),
    ("what goes not with Append", queue, names),
)
