from common import *
import contextlib, io
from conformance.cli import contract
# A run had recorded a failure when Ctrl-C ended its process: 1, since a failure takes precedence.
def status(failures, interrupted):
    values = dict(command="fuzz", verdict="undecided", scope="sampled", seed=0, seconds=1.0, geometry=None, spec_version="", not_checked=[],
                  failures=failures, interrupted=False, error=None)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return contract.conclude(dict(known=values, json=None, quiet=True, listing=False, outputs=[]), process=0, error=None, interrupted=interrupted)
seen("interrupted, nothing found", status([], True), 3)
seen("a failure, no interrupt", status(["RC: wrong"], False), 1)
seen("a failure, then Ctrl-C", status(["RC: wrong"], True), 1)
