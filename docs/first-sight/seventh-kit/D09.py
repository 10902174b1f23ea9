"""The command that is printed with a finding replays it. A history of our engine under another
Python is run only with --trust (or with the engine and the Python named): docs, `rerun --help`."""
import os, shlex, subprocess, sys, tempfile
from pathlib import Path
from conformance.engines.registry import OUR_ENGINE
from conformance.files.histories import Recorded
from conformance.fuzzing import counterexamples
from spec.machines.actions import Reserve
from spec.vocabulary import CleanupMode, Geometry, default_limits

G = Geometry(pages=4, page_size=2, slots=2, pages_per_seq=2)
recorded = Recorded(
    engine=OUR_ENGINE, geometry=G, limits=default_limits(G), cleanup=CleanupMode.INCREMENTAL,
    history=(Reserve(0),), clause="ROW", message="an example", python=sys.executable)
with tempfile.TemporaryDirectory() as folder:
    history, _ = counterexamples.write(recorded, Path(folder))
    words = shlex.split(counterexamples.again(recorded, history))
    print(words)
    command = "import sys; from conformance.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", command, *words[1:]],
                          capture_output=True, text=True, cwd=folder)
print(done.returncode, done.stdout[-300:], done.stderr[-300:])
sys.exit(int(done.returncode == 2))
