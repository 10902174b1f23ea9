"""A resumed exploration ends in the same graph as one that was not interrupted.

docs/explore.md, Checkpoints: "A resumed run ends in the same graph, with the states in the same
order". The rung sharing at pages=2, slots=1, page_size=1, pages_per_seq=2 is explored as a whole
(the counts of this run are the expected ones). Then again with --checkpoint, and Ctrl-C comes in
the middle of the third level, when its moves are counted and its states are not kept yet. What a
checkpoint holds then is the two levels before it, or nothing. The command is repeated without an
interrupt: states, transitions and the outcomes by action must be those of the whole run.
"""

import argparse
import os
import sys
import tempfile
from contextlib import contextmanager

from conformance.cli import explore
from conformance.cli.contract import Report
from conformance.cli.options import output_file


def run(checkpoint, stop_at):
    calls = 0

    class Reports(Report):
        @contextmanager
        def progress(self, label, *, total):
            def update(done, note=""):
                nonlocal calls
                calls += 1
                if calls == stop_at:
                    raise KeyboardInterrupt
            yield update

    parser = argparse.ArgumentParser()
    explore.add_arguments(parser)
    words = ["--rung", "sharing", "--geometry", "pages=2,slots=1,page_size=1,pages_per_seq=2"]
    given = parser.parse_args(words + (["--checkpoint", checkpoint] if checkpoint else []))
    report = Reports(command="explore", seed=0, quiet=True)
    try:
        verdict = explore.run(given, report).value
    except KeyboardInterrupt:
        verdict = "interrupted"
    return verdict, {key: report.counts[key] for key in ("states", "transitions", "actions")}


with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "e.npz")
    whole = run(None, 0)
    stopped = run(file, 3)
    resumed = run(file, 0)
print(whole, stopped[0], resumed, sep="\n")
sys.exit(0 if stopped[0] == "interrupted" and whole == resumed else 1)
