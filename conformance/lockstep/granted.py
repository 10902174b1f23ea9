"""What an engine that may refuse more has granted: it must grant that again.

Such an engine refuses legal actions by a rule of its own, such as a watermark. A leak looks the
same: the pages that it has lost are refused, and its counts may show them as free. But a rule gives
the same answer in the same place, and an engine from which everything was freed is where it began.
Source: docs/sources.md, "Refusals".
"""

from typing import Final

from conformance.protocol import Action
from spec.state import State

LONGEST: Final = 128
"""The most actions after the initial state that are remembered, so that memory stays bounded."""

_Path = dict[Action, "_Path"]


class Granted:
    """The actions that an engine has done, along each path from the initial state.

    initial: the initial state of the specification. A history is there again when everything is
    freed; from there the same actions lead to the same state, by the same pages or by others.
    """

    def __init__(self, initial: State) -> None:
        self._initial = initial
        self._start: _Path = {}
        self._here: _Path | None = self._start
        self.steps = 0

    def add(self, action: Action, after: State) -> None:
        """The engine has done this action. after: the state that follows."""
        if self._here is not None:
            room = self.steps < LONGEST
            self._here = self._here.setdefault(action, {}) if room else None
        self.steps += 1
        if after == self._initial:
            self._here, self.steps = self._start, 0

    def __contains__(self, action: Action) -> bool:
        """Whether the engine has done this action after the same actions from the initial state."""
        return self._here is not None and action in self._here
