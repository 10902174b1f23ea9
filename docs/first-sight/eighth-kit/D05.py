"""A plant without a counterexample is not shown to change behaviour if no try was made without it."""

import sys
import tempfile
from pathlib import Path

from conformance.seeded_bugs import find
from conformance.seeded_bugs.scoring.attempts import CLEAN, Attempt, Attempts
from conformance.seeded_bugs.scoring.methods import METHODS
from conformance.seeded_bugs.scoring.score import Plan, row, targets

plant = find("RC2")
plan = Plan(names=("RC2",), methods={"fuzz": METHODS["fuzz"]}, seeds=1, steps=100)
caught = Attempt(caught=True, steps=10, seconds=1.0, clause="COUNT")
with tempfile.TemporaryDirectory() as name:
    alone = Attempts(Path(name) / "alone.jsonl", "stamp")
    alone.add(("RC2", "fuzz", 0), caught)
    unknown = row(plant, plan, alone)
    beside = Attempts(Path(name) / "beside.jsonl", "stamp")
    beside.add(("RC2", "fuzz", 0), caught)
    beside.add((CLEAN, "fuzz", 0), Attempt(caught=False, steps=100, seconds=1.0))
    shown = row(plant, plan, beside)
assert shown["changed"] is True
print(unknown["changed"], targets([unknown])["shown to change behaviour"])
right = unknown["changed"] is None and targets([unknown])["shown to change behaviour"] == ["RC2"]
sys.exit(0 if right else 1)
