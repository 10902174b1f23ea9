"""An engine refuses rightly and names no reason; its recording is legal (refused: [] is written)."""
import json, os, sys, tempfile
from io import StringIO
from pathlib import Path
from conformance.protocol import Profile
from conformance.recordings.recorder import Recorder
from conformance.recordings.validate import validate
from spec import ladder, view
from spec.machines.actions import Free, Reserve
from spec.vocabulary import CleanupMode, Geometry, Refused, default_limits

MACHINE = ladder.machine("pages")
G = Geometry(pages=4, page_size=2, slots=2, pages_per_seq=2)


class Engine:
    def __init__(self):
        self.state = MACHINE.initial(G, default_limits(G), CleanupMode.INCREMENTAL)
        self.profile = Profile(
            name="silent", geometry=G, limits=default_limits(G), cleanup=CleanupMode.INCREMENTAL,
            actions={Reserve, Free})

    def apply(self, action):
        if MACHINE.refusals(self.state, action):
            raise Refused(frozenset())
        self.state = MACHINE.step(self.state, action)

    def observe(self):
        return view.of(MACHINE, self.state)


out = StringIO()
engine = Recorder(Engine(), out)
for action in (Reserve(0), Reserve(0), Free(0)):
    try:
        engine.apply(action)
    except Refused:
        pass
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "r.jsonl")
    path.write_text(out.getvalue())
    found = validate(path).found
print(out.getvalue(), found)
assert json.loads(out.getvalue().splitlines()[1])["step"] == "Reserve"
sys.exit(int(found is not None))
