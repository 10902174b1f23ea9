"""A clean engine to interrupt and to vary: the specification as an engine, without jax."""

from typing import Final

TOY: Final = '''\
"""The specification as an engine."""
from typing import get_args

from conformance.lockstep.comparer import expected_result
from conformance.protocol import Action, Profile
from spec import table, view
from spec.machines import admission
from spec.machines.actions import Allocate


class Engine:
    def __init__(self, geometry, limits, cleanup):
        self.profile = Profile(name="toy", geometry=geometry, limits=limits, cleanup=cleanup,
                               actions=frozenset(get_args(Action)))
        self.state = admission.initial(geometry, limits, cleanup)

    def apply(self, action):
        before = self.state
        self.state = admission.step(before, action)
        if isinstance(action, Allocate):
            after = self.state.scheduling
            return table.plan(after.sequences, action.batch, after.geometry.page_size)
        return expected_result(before, action)

    def observe(self):
        return view.of(self.state.scheduling)


make = Engine
'''
