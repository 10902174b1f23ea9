"""A kept finding still fails, and then the run ends at a mistake of the adapter: 1, and it is told.

The engine does nothing on Free (cleanup `end`: the kept history Reserve(0), Free(0) fails), and its
adapter returns a text from Reserve in its other engines. docs: "a failure that was already recorded
takes precedence over all of these: 1". Without a kept finding the same run ends with 2.
"""
import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

from conformance.cli.main import main
from conformance.files import histories
from conformance.files.geometries import parse_geometry
from conformance.files.histories import Recorded
from spec.machines.actions import Free, Reserve
from spec.vocabulary import CleanupMode, default_limits

SIZES = "pages=4,slots=2,page_size=2,pages_per_seq=2"
ADAPTER = '''
from conformance.protocol import Profile
from spec import view
from spec.machines.actions import Allocate, Assign, Free, Reserve, Write
from spec.vocabulary import CleanupMode


class Adapter:
    def __init__(self, geometry, limits, cleanup):
        self.profile = Profile(
            name="two faults", geometry=geometry, limits=limits, cleanup=cleanup,
            actions={Reserve, Assign, Allocate, Write, Free},
        )
        self.machine = self.profile.machine
        self.state = self.machine.initial(geometry, limits, cleanup, self.profile.capacity)

    def apply(self, action):
        after = self.machine.step(self.state, action)
        if self.profile.cleanup is CleanupMode.END:
            self.state = self.state if isinstance(action, Free) else after
            return None
        self.state = after
        return "slot 0" if isinstance(action, Reserve) else None

    def observe(self):
        return view.of(self.machine, self.state)
'''


def fuzz(folder):
    said = io.StringIO()
    words = f"fuzz --engine two_faults:Adapter --in-process --seconds 1 --geometry {SIZES} --quiet"
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main([*words.split(), "--corpus", str(folder)])
    print("status", status, *(line for line in said.getvalue().splitlines() if "FAILS" in line or "fuzz" in line))
    return status, "FAILS: " in said.getvalue()


with tempfile.TemporaryDirectory() as place:
    os.chdir(place)
    sys.path.insert(0, place)
    Path("two_faults.py").write_text(ADAPTER)
    kept, empty = Path(place, "kept"), Path(place, "empty")
    kept.mkdir()
    sizes = parse_geometry(SIZES)
    (kept / "free.jsonl").write_text(
        histories.dump(
            Recorded(
                engine="two_faults:Adapter", geometry=sizes, limits=default_limits(sizes),
                cleanup=CleanupMode.END, history=(Reserve(0), Free(0)), plant=None, clause="DET",
                message="used[0] is True, should be False", python=None, in_process=True,
            )
        )
    )
    found = [fuzz(kept), fuzz(empty)]
sys.stdout.flush()
sys.exit(0 if found == [(1, True), (2, False)] else 1)
