"""`--hang-seconds` of rerun is the time limit of one step: one of two seconds violates 0.5."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from conformance.files import histories
from conformance.files.histories import Recorded
from spec.machines.actions import Reserve
from spec.vocabulary import CleanupMode, Geometry, default_limits

ADAPTER = '''
import time
from conformance.protocol import Profile
from spec import ladder, view
from spec.machines.actions import Reserve

class Adapter:
    def __init__(self, geometry, limits, cleanup):
        self.profile = Profile(name="slow", geometry=geometry, limits=limits, cleanup=cleanup,
                               actions={Reserve})
        self.machine = self.profile.machine
        self.state = self.machine.initial(geometry, limits, cleanup)
    def apply(self, action):
        time.sleep(2)
        self.state = self.machine.step(self.state, action)
    def observe(self):
        return view.of(self.machine, self.state)
'''

geometry = Geometry(pages=4, page_size=2, slots=2, pages_per_seq=2)
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "slow_adapter.py").write_text(ADAPTER)
    text = histories.dump(
        Recorded(
            engine="slow_adapter:Adapter",
            geometry=geometry,
            limits=default_limits(geometry),
            cleanup=CleanupMode.INCREMENTAL,
            history=(Reserve(slot=0),),
        )
    )
    (folder / "slow.jsonl").write_text(text)
    words = ["rerun", "slow.jsonl", "--engine", "slow_adapter:Adapter", "--in-process"]
    status = [
        subprocess.run(
            [sys.executable, "-m", "conformance.cli.main", *words, "--hang-seconds", limit],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{name}"},
        ).returncode
        for limit in ("20", "0.5")
    ]
print(status)
assert status[0] == 0
sys.exit(0 if status[1] == 1 else 1)
