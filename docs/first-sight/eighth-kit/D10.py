"""`make refine`: a scope that has no result this time, since its checkpoint is damaged.

An earlier result of the scope is still there. The table must say "undecided", not what that said.
"""

import contextlib
import io
import json
import os
import sys
import tempfile

from conformance.refinement import scopes

scope = scopes.Scope("sharing", (3, 2, 2, 2))
scopes.SCOPES = (scope,)
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    scopes.FOLDER.mkdir(parents=True)
    earlier = {"verdict": "holds", "states": 77777, "transitions": 88888}
    (scopes.FOLDER / f"{scope.name}.json").write_text(json.dumps(earlier))
    (scopes.FOLDER / f"{scope.name}.npz").write_bytes(b"damaged")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = scopes.main()
    os.chdir("/")
print(printed.getvalue(), f"exit status {status}", sep="")
assert status == 2
told = printed.getvalue()
sys.exit("holds" in told or "77,777" in told or "undecided" not in told)
