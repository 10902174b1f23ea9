"""Helpers of the scripts: the verdict of a script, scripted engines, and commands."""

import os
import subprocess
import sys
from pathlib import Path

from conformance.protocol import Profile
from spec.view import View
from spec.vocabulary import INVALID, CleanupMode, Geometry, default_limits

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[2]
os.environ["PYTHONPATH"] = f"{HOME}{os.pathsep}{HERE}"  # of processes that scripts start


def compare(what, expected, seen):
    """Print both, and end the script: 0 if they are equal, 1 if not."""
    right = expected == seen
    print(f"{what}\n  expected: {expected}\n  seen:     {seen}\n  {'right' if right else 'WRONG'}")
    sys.exit(0 if right else 1)


def profile(geometry, **declared):
    """A profile of an engine with default limits."""
    given = {"name": "scripted", "limits": default_limits(geometry), "cleanup": CleanupMode.INCREMENTAL}
    return Profile(geometry=geometry, **{**given, **declared})


class Scripted:
    """An engine that shows given views, one after each action, the first at the start."""

    def __init__(self, profile, views):
        self.profile, self._views, self._at = profile, list(views), 0

    def apply(self, action):
        self._at += 1

    def observe(self):
        return self._views[self._at]


def view(geometry, rows, **shown):
    """A view: rows by slot, None where it is unused; counts follow from the rows."""
    counts = [sum(page in (row or ()) for row in rows) for page in range(geometry.pages)]
    full = [(*(row or ()), *[INVALID] * (geometry.pages_per_seq - len(row or ()))) for row in rows]
    return View(geometry=geometry, used=[row is not None for row in rows], rows=full, counts=counts, **shown)


def kvspec(*words, folder, timeout=100):
    """Run a command in a folder; its exit status and its output."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "kvspec"), *map(str, words)], cwd=folder,
        capture_output=True, text=True, timeout=timeout, check=False,
    )
    return done.returncode, done.stdout + done.stderr
