"""What a fuzzing run says about itself."""

import time
from functools import partial

import pytest
from spec_engine import SpecEngine, small

from conformance import fuzz, machine
from conformance.protocol import Action, Result
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, Limits

SLOW = 0.002
"""Seconds: several times what the draws of a step and its judging take."""


class Slow(SpecEngine):
    """Takes its time where it is told to."""

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, where: str
    ) -> None:
        super().__init__(geometry, limits, cleanup)
        self._where = where

    def apply(self, action: Action) -> Result:
        """Late, or not."""
        time.sleep(SLOW * (self._where == "apply"))
        return super().apply(action)

    def observe(self) -> View:
        """Late, or not."""
        time.sleep(SLOW * (self._where == "observe"))
        return super().observe()


def late(drawn: int) -> int:
    """The same draw, late."""
    time.sleep(SLOW)
    return drawn


@pytest.mark.parametrize(
    ("where", "most"),
    [("apply", "engine"), ("observe", "engine"), ("move", "kit"), ("draw", "draws")],
)
def test_the_shares_of_the_time_are_told_apart(
    where: str, most: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes long has the largest share, and the shares add up."""
    monkeypatch.setattr(fuzz, "EXAMPLES", 2)
    if where == "move":
        monkeypatch.setattr(machine, "spread", late)
    if where == "draw":
        monkeypatch.setattr(machine, "DRAWS", machine.DRAWS.map(late))
    report = fuzz.Run()
    fuzz.run(
        partial(Slow, where=where),
        small(),
        start_seed=0,
        seconds=60,
        steps=1,
        report=report,
        update=lambda *_: None,
        ceiling=False,
    )

    shares = report.shares
    assert most == max(shares, key=lambda part: shares[part])
    assert pytest.approx(1.0) == sum(shares.values())
    assert 0.0 < min(shares.values())
