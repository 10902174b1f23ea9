"""A finding of replay that is being shrunk is kept, if a shorter history hangs meanwhile.

`cli.replay`: "What was found before is what is being shrunk: it is kept as it stands." A replay has
found a violation of RC after two steps. While it is shrunk, a candidate of one step does not return
from compiled code, so that the watchdog ends the process. The report must name the finding: RC,
after 2 steps. It is no PROG, and not after 1 step.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from conformance.cli import replay
from conformance.cli.contract import Report
from conformance.cli.options import input_file
from conformance.fuzzing import shrinking
from conformance.lockstep import run as lockstep_run
from conformance.lockstep import watchdog
from conformance.traffic import replay as traffic
from spec.machines.actions import Admit, Generate

hooks = []


class FakeWatchdog:
    def __init__(self, on_hang):
        hooks.append(on_hang)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Ended(BaseException):
    pass


def abort():
    raise Ended


def found(engine, requests, *, tally, **_):
    tally.finding = lockstep_run.Finding((Admit(), Generate()), "RC", "counts[0] is 2, should be 1")


def shrink(make, finding, **_):
    hooks[-1]((Generate(),), "a step does not return from compiled code")


watchdog.Watchdog = FakeWatchdog
shrinking.shrink = shrink
traffic.replay = found
lockstep_run.opened = lambda make: SimpleNamespace(
    observe=lambda: SimpleNamespace(counts=(0,), cells=None))
replay.factory_of = lambda *_, **__: None
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    Path("t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n"
                             "2023-11-16 10:00:00.0000000,16,1\n")
    report = Report(command="replay", seed=0, quiet=True, abort=abort)
    replay.partial = lambda *_: None
    given = argparse.Namespace(
        trace=input_file("t.csv"), format="azure", limit=None, slots=2, page_size=16,
        corpus="corpus", engine=replay.ENGINE, python=None, in_process=False, hang_seconds=180.0)
    try:
        replay.run(given, report)
    except Ended:
        pass
    os.chdir("/")
print(report.failures)
sys.exit(0 if len(report.failures) == 1 and report.failures[0].startswith("RC:")
         and "after 2 steps" in report.failures[0] else 1)
