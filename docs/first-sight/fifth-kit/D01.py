"""`served_difference` compares what `serve` returned with the outputs of the single actions.

docs/adapters.md: `serve` "returns all outputs when nothing is left to do"; "the outputs and the view
must be those of Submit, Admit, Generate and TakeOutputs: OUT", and docs/clauses.md has OUT as "none
is lost or doubled". The engine here is the specification itself, but its `serve` returns the output
of the first request twice. So the history that ends with serving must be a finding of OUT.
"""

from common_d import conclude
from conformance.lockstep.run import replay
from conformance.lockstep.serving import serve_with
from conformance.protocol import Profile
from spec import view
from spec.machines.actions import Admit, Generate, Submit, TakeOutputs
from spec.vocabulary import CleanupMode, Geometry, Params, Request, default_limits


class Server:
    """The specification as an engine; `serve` returns its first output twice."""

    def __init__(self, geometry, limits, cleanup):
        self.profile = Profile(
            name="server", geometry=geometry, limits=limits, cleanup=cleanup,
            actions={Submit, Admit, Generate, TakeOutputs},
        )
        self.machine = self.profile.machine
        self.state = self.machine.initial(geometry, limits, cleanup, self.profile.capacity)

    def apply(self, action):
        assert not self.machine.refusals(self.state, action)
        self.state = self.machine.effect(self.state, action)

    def observe(self):
        return view.of(self.machine, self.state)

    def serve(self, requests):
        served = serve_with(self.machine, self.state, tuple(requests))
        self.state = served.state
        return [*served.outputs, served.outputs[0]]


sizes = Geometry(pages=16, page_size=4, slots=4, pages_per_seq=4)
found = replay(
    lambda: Server(sizes, default_limits(sizes), CleanupMode.INCREMENTAL),
    [Submit(Request(id=7, prompt=(5, 6), params=Params(max_new=2)))],
)
conclude("OUT", None if found is None else found.clause)
