"""What the layer above an engine keeps: texts and lengths that the engine does not have.

The specification stands in for that layer. The calls that it never makes are guarded by the profile
of the engine.
"""

from conformance.protocol import Action
from spec import ladder
from spec.state import State
from spec.vocabulary import CleanupMode, Geometry, Limits


class Caller:
    """The state of the layer above an engine."""

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        self._machine = ladder.machine(ladder.SERVING)
        self._state = self._machine.initial(geometry, limits, cleanup)

    @property
    def state(self) -> State:
        """The caller's state; its page numbers are not the engine's."""
        return self._state

    def note(self, action: Action) -> None:
        """Record an action that the engine has done, unless the engine should have refused it."""
        if not self._machine.refusals(self._state, action):
            self._state = self._machine.effect(self._state, action)
