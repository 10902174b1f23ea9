"""A finding of --in-process is replayed by the next run without it."""
import json, os, subprocess, tempfile
from pathlib import Path
from common import *
from conformance.files.histories import Recorded, dump

ENGINE = '''
from conformance.protocol import Profile
from spec import view
from spec.machines.actions import Allocate, Free, Reserve
class Adapter:
    """The specification itself."""
    def __init__(self, geometry, limits, cleanup):
        self.profile = Profile(name="e", geometry=geometry, limits=limits, cleanup=cleanup, actions={Reserve, Allocate, Free})
        self.m = self.profile.machine
        self.s = self.m.initial(geometry, limits, cleanup)
        self.wrong, self.last = False, None
    def apply(self, action):
        self.s = self.m.step(self.s, action)
        if action == Allocate(tuple((2, p) for p in range(15))) and self.last == Reserve(2): self.wrong = True
        self.last = action
    def observe(self):
        shown = view.of(self.m, self.s)
        if not self.wrong: return shown
        from attrs import evolve
        return evolve(shown, counts=(5, *shown.counts[1:]))
'''
home = os.getcwd()
g = Geometry(pages=16, slots=4, page_size=4, pages_per_seq=4)
history = (act.Reserve(0), act.Reserve(1), act.Reserve(2), act.Allocate(tuple((2, p) for p in range(15))))
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "rare_engine.py").write_text(ENGINE)
    for in_process, name in ((True, "a"), (False, "b")):
        kept = Recorded(engine="rare_engine:Adapter", geometry=g, limits=default_limits(g), cleanup=CleanupMode.INCREMENTAL, history=history, clause="CONS", message="", in_process=in_process)
        place = Path(folder, "corpus", f"{name}.jsonl"); place.parent.mkdir(exist_ok=True); place.write_text(dump(kept))
    run_ = subprocess.run([sys.executable, "-m", "conformance.cli.main", "fuzz", "--engine", "rare_engine:Adapter", "--seconds", "0.1", "--corpus", "corpus", "--json", "f.json", "--quiet"],
        cwd=folder, env={**os.environ, "PYTHONPATH": f"{home}:{folder}"}, capture_output=True, text=True)
    if not Path(folder, "f.json").exists(): print(run_.stdout, run_.stderr); sys.exit(2)
    result = json.loads(Path(folder, "f.json").read_text())
seen("the histories that were replayed", result["corpus_replayed"], 2)
seen("the exit status", run_.returncode, 1)
seen("the failures of the corpus", sorted(one.partition(":")[0] for one in result["failures"] if one.startswith("corpus/")), ["corpus/a.jsonl", "corpus/b.jsonl"])
