"""A refused Reset changes nothing: the shortest illegal part of this recording is the Reserve of
slot 0 twice, lines 2 and 4. An engine that may refuse more may refuse a Reset."""
import json, os, subprocess, sys, tempfile

G = {"pages": 4, "page_size": 2, "slots": 2, "pages_per_seq": 2}
LINES = [
    {"kvspec": "recording", "version": 2, "geometry": G, "refuses": "may_refuse_more"},
    {"step": "Reserve", "slot": 0},
    {"step": "Reset", "mode": "logical", "refused": []},
    {"step": "Reserve", "slot": 0},
]
with tempfile.TemporaryDirectory() as folder:
    path, out = os.path.join(folder, "r.jsonl"), os.path.join(folder, "v.json")
    with open(path, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in LINES)
    command = "import sys; from conformance.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", command, "validate", path, "--require", "nothing", "--json", out],
        capture_output=True, text=True, cwd=folder)
    result = json.load(open(out)) if os.path.exists(out) else {}
print(done.returncode, done.stdout[-600:], done.stderr[-300:])

right = done.returncode == 1 and result.get("shortest_events") == 2 and not result.get("error")
sys.exit(int(not right))
