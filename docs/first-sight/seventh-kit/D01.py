"""A line with a key twice is malformed (jsonl: "no key twice"): validate must end with 2."""
import json, os, subprocess, sys, tempfile

G = {"pages": 4, "page_size": 2, "slots": 2, "pages_per_seq": 2}
HEADER = json.dumps({"kvspec": "recording", "version": 2, "geometry": G})
LINES = ['{"step" : "Reserve", "slot" : 0, "slot" : 1}', '{"step" : "Free", "slot" : 1}']
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "r.jsonl")
    with open(path, "w") as file:
        file.write("\n".join([HEADER, *LINES]) + "\n")
    command = "import sys; from conformance.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", command, "validate", path, "--require", "nothing"],
        capture_output=True, text=True, cwd=folder)
print(done.returncode, done.stdout[-300:], done.stderr[-300:])
sys.exit(int(done.returncode != 2))
