"""All tries are made, and one of them decided nothing: the score is undecided (3)."""
import tempfile
from pathlib import Path
from common import *
from conformance.cli import plant
from conformance.cli.contract import Report
from conformance.seeded_bugs.scoring.attempts import CLEAN, Attempt, Attempts
from conformance.seeded_bugs.scoring.methods import METHODS
from conformance.seeded_bugs.scoring.score import Plan

plan = Plan(names=(CLEAN, "RC2"), methods={"fuzz": METHODS["fuzz"]}, seeds=1, steps=9000)
attempts = Attempts(Path(tempfile.mkdtemp()) / "p.jsonl", "stamp")
attempts.add((CLEAN, "fuzz", 0), Attempt(caught=False, steps=9000, seconds=5.0))
attempts.add(("RC2", "fuzz", 0), Attempt(caught=False, steps=0, seconds=0.0, error="the process that tried it ended with status -9"))
report = Report(command="plant", seed=0, quiet=True)
verdict = plant._judge(plant._count(plan, attempts, report), report)
seen("tries left, and exit status", (report.counts["tries_left"], verdict.exit_status), (0, 3))
