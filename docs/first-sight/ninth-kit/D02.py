"""`rerun FILE --engine E`, without --in-process: the file was recorded in the kit's process.

docs/adapters.md: an engine that is not ours runs in a process of its own, so that one that exits is a
finding (status 1); only with --in-process the verdict is then "undecided" (3). Here the engine exits at
its first action.
"""
import json, os, subprocess, sys, tempfile
from pathlib import Path
from common import seen

HOME = Path(__file__).resolve().parents[1]
ENGINE = '''
import os
from conformance.protocol import Profile
from spec import ladder, view
from spec.machines.actions import Reserve, Free
M = ladder.machine("pages")
class Exits:
    def __init__(self, geometry, limits, cleanup):
        self.profile = Profile(name="exits", geometry=geometry, limits=limits, cleanup=cleanup, actions={Reserve, Free})
        self.m = self.profile.machine
        self.s = self.m.initial(geometry, limits, cleanup)
    def apply(self, action):
        os._exit(7)
    def observe(self):
        return view.of(self.m, self.s)
'''
HEADER = {"kvspec": "history", "version": 1, "engine": "elsewhere:make",
          "geometry": {"pages": 4, "page_size": 2, "slots": 2, "pages_per_seq": 2},
          "limits": {"queue": 4, "prefill_tokens": 4, "prefill_seqs": 2, "round_tokens": 2, "rounds": 4,
                     "stops": 1, "stop_len": 1, "outputs": 4},
          "cleanup": "incremental", "plant": None, "clause": "ATOMIC", "message": "it exits", "in_process": True}
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "exits.py").write_text(ENGINE)
    Path(folder, "h.jsonl").write_text("".join(json.dumps(x) + "\n" for x in (HEADER, {"step": "Reserve", "slot": None})))
    done = subprocess.run([sys.executable, "-c", "import sys; from conformance.cli.main import supervised_main; sys.exit(supervised_main())",
                           "rerun", "h.jsonl", "--engine", "exits:Exits"], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(HOME)})
    print(done.stdout[-600:], done.stderr[-600:])
    seen("exit status of rerun", done.returncode, 1)
