"""The caller that an allocator is written for: what it never asks, and what it alone knows.

An allocator checks some things and leaves the others to the layer above. That layer is stood in for
by the specification: a call that the layer above would not make is refused here, before the engine
sees it, and the texts and lengths that only the layer above knows are kept here. What the engine
checks itself, and what nobody checks, is not refused here: there the engine answers for itself.
"""

from collections.abc import Collection

from conformance.protocol import Action
from spec import ladder
from spec.state import State
from spec.vocabulary import CleanupMode, Geometry, Limits, Reason, refused

Answer = tuple[type, Reason]
"""A class of action, and a reason for refusing it."""


class Caller:
    """The state above an engine. own: what the engine must refuse itself."""

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, own: Collection[Answer]
    ) -> None:
        self._machine = ladder.machine(ladder.SERVING)
        self._state = self._machine.initial(geometry, limits, cleanup)
        self._own = own

    @property
    def state(self) -> State:
        """What the caller knows; its page numbers are not the engine's."""
        return self._state

    def ask(self, action: Action) -> None:
        """Raise Refused for what this caller never does; what the engine must refuse passes."""
        found = self._machine.refusals(self._state, action)
        careful = [one for one in found if (type(action), one.reason) not in self._own]
        if careful:
            raise refused(careful)

    def note(self, action: Action) -> None:
        """The engine has done it; what it should have refused leaves no note."""
        if not self._machine.refusals(self._state, action):
            self._state = self._machine.effect(self._state, action)
