"""Refused calls that leave something behind, which no view shows until much later."""

from functools import partial
from typing import Final

import pytest
from spec_engine import SpecEngine, small

from conformance.fuzzing import settings
from conformance.fuzzing.state_machine import Campaign, Session
from conformance.lockstep.lockstep import Violation
from conformance.protocol import Action, Result
from spec.machines.actions import Allocate, Free, Reserve, Reset
from spec.vocabulary import CleanupMode, Geometry, Limits, Reason, Refused

MANY: Final = 22
"""How many refused calls it takes."""


class Leaky(SpecEngine):
    """The specification, but after MANY calls that lacked a page, a freed slot loses one.

    Only a reset forgets the calls.
    """

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.hidden = 0

    def apply(self, action: Action) -> Result:
        """Count, and lose a page that nobody has."""
        try:
            result = super().apply(action)
        except Refused as refused:
            self.hidden += Reason.OUT_OF_PAGES in refused.reasons
            raise
        if isinstance(action, Reset):
            self.hidden = 0
        counts = list(self.state.counts)
        if isinstance(action, Free) and self.hidden >= MANY and 0 in counts:
            counts[counts.index(0)] = 1
            self.state = self.state._replace(counts=tuple(counts))
        return result


def test_a_refused_action_is_taken_again_and_again() -> None:
    """What that leaves behind shows with the next action that it spoils."""
    made = partial(settings.make, Leaky, small(pages=1), CleanupMode.NONE)
    session = Session(Campaign(make=made), "lifecycle")
    retry = session.rules["retry"]
    for step in (Reserve(0), Reserve(1), Allocate(((0, 0),)), Allocate(((1, 0),))):
        session.take(step)

    assert Allocate(((1, 0),)) == session.refused
    session.take(retry(session, 11))
    assert MANY <= session.campaign.coverage.outcomes["Allocate: OUT_OF_PAGES"]
    with pytest.raises(Violation, match="CONS"):
        session.take(Free(0))
