"""A wrong `serve` is a finding of OUT, also where it is wrong on a new engine; shrinking keeps it.

docs/adapters.md: `serve`: "the outputs and the view must be those of `Submit`, `Admit`, `Generate`
and `TakeOutputs`: OUT". The engine below is the specification itself, and its `serve` leaves out
the last output. So it goes wrong at the end of each history, of the empty one too, since the kit
serves two requests more. That is a finding (exit status 1), whose smallest history violates OUT; it
is no mistake of the adapter (an engine that is not new, exit status 2).
"""

import sys

from conformance.engines.ours import ACTIONS
from conformance.fuzzing.shrinking import shrink
from conformance.lockstep import serving
from conformance.lockstep.run import replay
from conformance.protocol import Profile
from spec import ladder, view
from spec.machines.actions import Reserve
from spec.vocabulary import CleanupMode, Geometry, InvalidInput, Refused, default_limits

GEOMETRY = Geometry(pages=8, page_size=4, slots=3, pages_per_seq=2)
LIMITS = default_limits(GEOMETRY)
MACHINE = ladder.machine_for(ACTIONS)


class Adapter:
    def __init__(self):
        self.profile = Profile(name="spec", geometry=GEOMETRY, limits=LIMITS,
                               cleanup=CleanupMode.INCREMENTAL, actions=ACTIONS)
        self.state = MACHINE.initial(GEOMETRY, LIMITS, CleanupMode.INCREMENTAL)

    def apply(self, action):
        refusals = MACHINE.refusals(self.state, action)
        if refusals:
            raise Refused(refusals)
        self.state = MACHINE.effect(self.state, action)

    def observe(self):
        return view.of(MACHINE, self.state)

    def serve(self, requests):
        _, reasons = serving._submitted(MACHINE, self.state, tuple(requests))
        if reasons:
            for request in requests:
                refusals = MACHINE.refusals(self.state, serving.Submit(request))
                if refusals:
                    raise Refused(refusals)
                before, self.state = self.state, MACHINE.effect(self.state, serving.Submit(request))
        done = serving.serve_with(MACHINE, self.state, tuple(requests))
        self.state = done.state
        return done.outputs[:-1]


class Whole(Adapter):
    """Lists that are refused change nothing."""

    def serve(self, requests):
        before = self.state
        try:
            return super().serve(requests)
        except Refused:
            self.state = before
            raise


finding = replay(Whole, (Reserve(0),))
print(finding and (finding.history, finding.clause, finding.message[:80]))
try:
    seen = shrink(Whole, finding, seconds=3.0).clause
except InvalidInput as error:
    seen = type(error).__name__, str(error)
print(seen)
sys.exit(0 if finding.clause == "OUT" and seen == "OUT" else 1)
