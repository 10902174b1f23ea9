"""Both campaigns have a violation: at the end, the command that shows each is printed."""
import contextlib, io, tempfile
from common import *
from conformance.hostile import run as hostile

wrong = {"status": 1, "seconds": 0.1, "violations": ["trace: Traceback"]}
hostile.hostile_inputs = lambda **_: [{"number": 0, "about": "validate", **wrong, "again": "AGAIN-INPUT"}]
hostile.interrupted = lambda *_, **__: [
    {"command": "fuzz", "number": 0, "moment": "SIGTERM after 1 s", **wrong, "after": 1.0, "early": False, "again": "AGAIN-INTERRUPT"}
]
out = io.StringIO()
with contextlib.redirect_stdout(out):
    status = hostile.main(["all", "--folder", tempfile.mkdtemp()])
seen("exit status", status, 1)
seen("commands that are printed", [word for word in ("AGAIN-INPUT", "AGAIN-INTERRUPT") if word in out.getvalue()],
     ["AGAIN-INPUT", "AGAIN-INTERRUPT"])
