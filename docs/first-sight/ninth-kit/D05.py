"""The target "median under 5 s" where fuzzing missed two plants of three.

docs/plants.md: the median over all plants is under 5 seconds. A missed plant has no finite time, so the
median of (1 s, never, never) is never: the target is missed, by the two.
"""
import tempfile
from pathlib import Path
from common import seen
from conformance.seeded_bugs import find
from conformance.seeded_bugs.scoring import score
from conformance.seeded_bugs.scoring.attempts import Attempt, Attempts
from conformance.seeded_bugs.scoring.methods import METHODS

names = ("CW5", "RC2", "RC1")
with tempfile.TemporaryDirectory() as folder:
    attempts = Attempts(Path(folder, "p.jsonl"), "stamp")
    plan = score.Plan(names=names, methods={"fuzz": METHODS["fuzz"]}, seeds=1, steps=100)
    for name in names:
        caught = name == "CW5"
        attempts.add((name, "fuzz", 0), Attempt(caught=caught, steps=9, seconds=1.0, clause="RC" if caught else None))
    rows = [score.row(find(name), plan, attempts) for name in names]
missed = score.targets(rows)
seen("caught", [row["caught"] for row in rows], [True, False, False])
(line,) = [name for name in missed if "median" in name]
seen(f"the plants that miss '{line}'", sorted(missed[line]), ["RC1", "RC2"])
