"""A finding under --quiet that cannot be saved: its history is printed, "enough to replay it".

The lines printed after the note must be the history file: a header and one step. --quiet silences only
what is not verdict, failure or such a last resort (`Printer`: lines that must be seen).
"""
import contextlib, io, json, tempfile
from pathlib import Path
from common import *
from conformance.cli.contract import Report
from conformance.files.histories import Recorded
from conformance.fuzzing import counterexamples

g = geometry()
recorded = Recorded(engine="mine:make", geometry=g, limits=default_limits(g), cleanup=CleanupMode.NONE,
                    history=(act.Reserve(slot=None),), clause="CONS", message="a page leaks")
report, out = Report(command="fuzz", seed=0, quiet=True), io.StringIO()
with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out):
    place = Path(folder, "taken"); place.write_text("a file where the folder should be")
    counterexamples.keep(recorded, place / "corpus", report)
lines = [json.loads(line) for line in out.getvalue().splitlines() if line.startswith("{")]
seen("printed steps", [one.get("step") for one in lines], [None, "Reserve"])
seen("engine in the printed header", lines[0]["engine"], "mine:make")
