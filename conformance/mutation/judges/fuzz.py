"""A run of `kvspec fuzz` with its defaults."""

from typing import Final

from conformance.engines import ours
from conformance.fuzzing import campaign
from conformance.lockstep.watchdog import Patience, Watchdog
from conformance.seeded_bugs.scoring.methods import GEOMETRY

SECONDS: Final = 60.0


def judge(watchdog: Watchdog, *, seconds: float = SECONDS) -> str | None:
    """Its compiled programs are not judged: they hold every mutant."""
    options = campaign.Options(
        geometry=GEOMETRY, seconds=seconds, programs=False, patience=Patience(first=120.0)
    )
    report = campaign.Run()
    campaign.run(
        ours.make, options, report=report, update=lambda _done, _note: None, watchdog=watchdog
    )
    return report.finding.clause if report.finding else None
