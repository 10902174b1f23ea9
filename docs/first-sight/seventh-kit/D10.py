"""One row names the page, so its count is 1. A recording without rows that shows 2 is illegal (RC),
one that shows 1 is legal."""
import json, os, subprocess, sys, tempfile

G = {"pages": 4, "page_size": 2, "slots": 2, "pages_per_seq": 2}


def status(count):
    lines = [
        {"kvspec": "recording", "version": 2, "geometry": G, "policy": "any"},
        {"step": "Reserve", "slot": 0},
        {"step": "Allocate", "batch": [[0, 0]], "saw": {"counts": {"3": count}}},
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "r.jsonl")
        with open(path, "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        command = "import sys; from conformance.cli.main import main; sys.exit(main(sys.argv[1:]))"
        done = subprocess.run(
            [sys.executable, "-c", command, "validate", path, "--require", "nothing"],
            capture_output=True, text=True, cwd=folder)
    print(count, done.returncode, done.stdout[-300:], done.stderr[-300:])
    return done.returncode


assert status(1) == 0
sys.exit(int(status(2) != 1))
