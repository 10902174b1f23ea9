"""A clean engine to interrupt and to vary: the specification as an engine, without jax."""

from typing import Final

TOY: Final = '''\
"""The specification as an engine."""
from conformance.rungs.registry import legal_results
from conformance.protocol import Profile
from spec import ladder, view

MACHINE = ladder.machine(ladder.SERVING)


class Engine:
    def __init__(self, geometry, limits, cleanup):
        self.profile = Profile(name="toy", geometry=geometry, limits=limits, cleanup=cleanup,
                               actions=MACHINE.calls)
        self.state = MACHINE.initial(geometry, limits, cleanup)

    def apply(self, action):
        before = self.state
        self.state = MACHINE.step(before, action)
        return next(iter(legal_results(MACHINE, before, action, self.state)), None)

    def observe(self):
        return view.of(MACHINE, self.state)


make = Engine
'''
