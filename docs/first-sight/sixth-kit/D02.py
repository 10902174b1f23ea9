"""`page shared` is required of each recording that has a `Clone` (docs/recordings.md).

The recording below: pages 1, one slot more than pages. Slot 0 takes the only page (pool exactly
full), is freed, takes it again (taken again after its release); then a Clone is refused (an action
refused), since the parent has no prompt. No page is ever shared. The recording has a Clone, so by
the table `page shared` is required and not reached: undecided, exit status 3.
"""

import json
import os
import subprocess
import sys
import tempfile

lines = [
    {"kvspec": "recording", "version": 2, "shows": [],
     "geometry": {"pages": 1, "page_size": 2, "slots": 2, "pages_per_seq": 1}, "policy": "lowest"},
    {"step": "Reserve", "slot": 0},
    {"step": "Allocate", "batch": [[0, 0]]},
    {"step": "Free", "slot": 0},
    {"step": "Reserve", "slot": 0},
    {"step": "Allocate", "batch": [[0, 0]]},
    {"step": "Clone", "parent": 0, "child": 1, "choice": 1, "refused": ["UNWRITTEN"]},
]
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "r.jsonl")
    with open(path, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    code = "import sys; from conformance.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, "validate", path], cwd=folder,
                          capture_output=True, text=True)
print(done.stdout, done.stderr, done.returncode)
sys.exit(0 if done.returncode == 3 and "page shared" in done.stdout else 1)
