"""`kvspec adapter check`: one scripted history on an adapter, with an explanation of each error."""

import argparse
from typing import TYPE_CHECKING, Final

from conformance.cli.contract import Report
from conformance.cli.fuzz import GEOMETRY, main_geometry
from conformance.cli.hang import add_hang_seconds
from conformance.cli.options import add_geometry_alone, add_python
from conformance.files.geometries import geometry_to_text
from conformance.isolation.placement import factory_of
from conformance.verdict import Scope, Verdict

if TYPE_CHECKING:
    from conformance.fuzzing.adapter_check import Checked
    from conformance.history import History

NAME: Final = "adapter"
HELP: Final = "check: one scripted history on an adapter; explains each error"
EXAMPLES: Final = (
    "kvspec adapter check mypackage.adapter:make",
    "kvspec adapter check mypackage.adapter:make --python ~/engine/.venv/bin/python",
    "kvspec adapter check myengine --geometry pages=64,slots=4,page_size=16,pages_per_seq=8",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The adapter, where its engine runs, and the sizes."""
    parser.add_argument("what", choices=("check",), help="the only thing to do with an adapter")
    parser.add_argument(
        "engine", metavar="ENGINE", help="MODULE:FACTORY, or the name of an installed engine"
    )
    add_python(parser)
    add_geometry_alone(parser, default=GEOMETRY)
    add_hang_seconds(parser)


def run(arguments: argparse.Namespace, report: Report) -> Verdict:
    """Take the script, then say what was seen and what fuzzing will not check."""
    from conformance.fuzzing.adapter_check import Checked, check
    from conformance.fuzzing.counterexamples import describe
    from conformance.fuzzing.settings import make, settings_of
    from conformance.lockstep.not_checked import not_checked
    from conformance.lockstep.run import Finding
    from conformance.lockstep.watchdog import Watchdog

    report.scope, report.listing = Scope.SAMPLED, True
    factory = factory_of(arguments.engine, python=arguments.python, in_process=arguments.in_process)
    alone = arguments.geometry is not None
    *_, setting = settings_of(factory, main_geometry(arguments), alone=alone)  # pages run out
    report.geometry, found = setting.geometry, Checked()

    def on_hang(history: "History", message: str) -> None:
        report.fail(describe(Finding(history, "PROG", message)))
        report.abort()

    with report.progress("adapter", total=None), Watchdog(on_hang) as watchdog:
        check(factory, setting, found=found, watchdog=watchdog)
    _say(found, report)
    if found.finding is not None:
        report.fail(
            "\n".join((describe(found.finding), *(f"  hint: {one}" for one in found.hints)))
        )
        return Verdict.FAILS
    for what, why in not_checked(make(factory, *setting)):
        report.skip(what, why=why)
    withheld = found.coverage.mostly_withheld
    if withheld:
        report.skip("what the engine does: it mostly refuses", why="; ".join(withheld))
    if found.missing:
        report.skip("outcomes that the script did not reach", why="; ".join(found.missing))
    return Verdict.UNDECIDED if withheld or found.missing else Verdict.HOLDS


def _say(found: "Checked", report: Report) -> None:
    """A line for each action, and one for the fields."""
    if found.profile is None:
        return
    report.count(steps=sum(found.coverage.actions.values()), shows=list(found.shown))
    at = geometry_to_text(found.profile.geometry)
    report.say(f"{found.profile.name} at {at}: shows {', '.join(found.shown)}")
    for kind in sorted(found.profile.actions, key=lambda kind: kind.__name__):
        name = kind.__name__
        seen = {
            outcome.removeprefix(f"{name}: "): times
            for outcome, times in sorted(found.coverage.outcomes.items())
            if outcome.startswith(f"{name}: ")
        }
        times = ", ".join(f"{outcome} {count}" for outcome, count in seen.items()) or "never sent"
        result = "; its result is compared" if kind in found.compared else ""
        report.say(f"  {name:<12} {times}{result}")
