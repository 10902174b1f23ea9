"""The layer above an allocator, played by the specification.

An allocator checks some things and leaves the others to the layer above it. The specification
stands in for that layer: a call that the layer would not make is refused here, before the engine
sees it, and the texts and lengths that only the layer knows are kept here. A mistake that the
engine checks, or that nobody checks, is not refused here: there the engine answers for itself.
"""

from collections.abc import Collection

from conformance.protocol import Action
from spec import ladder
from spec.state import State
from spec.vocabulary import CleanupMode, Geometry, Limits, Reason, refused

Answer = tuple[type, Reason]
"""A class of action, and a reason for refusing it."""


class Caller:
    """The state of the layer above an engine. own: the refusals that are the engine's duty."""

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, own: Collection[Answer]
    ) -> None:
        self._machine = ladder.machine(ladder.SERVING)
        self._state = self._machine.initial(geometry, limits, cleanup)
        self._own = own

    @property
    def state(self) -> State:
        """The caller's state; its page numbers are not the engine's."""
        return self._state

    def ask(self, action: Action) -> None:
        """Raise Refused for a call that this caller never makes; the engine's own refusals pass."""
        found = self._machine.refusals(self._state, action)
        careful = [one for one in found if (type(action), one.reason) not in self._own]
        if careful:
            raise refused(careful)

    def note(self, action: Action) -> None:
        """Record an action that the engine has done, unless the engine should have refused it."""
        if not self._machine.refusals(self._state, action):
            self._state = self._machine.effect(self._state, action)
