"""Every finding is kept in the corpus and replayed first by the next run. Two findings with the same
steps at different sizes are two findings, so the folder has two histories, and the first one still
has its own geometry.
"""
from common import *
from conformance.files import histories
from conformance.files.histories import Recorded
from conformance.fuzzing.counterexamples import write

steps = (act.Reserve(0), act.Free(0))
found = []
with tempfile.TemporaryDirectory() as folder:
    kept = []
    for pages in (8, 3):
        g = geometry(pages=pages)
        one = Recorded(engine="mine:make", geometry=g, limits=default_limits(g), history=steps,
                       cleanup=CleanupMode.END, clause="RC", message="counts[0] is 1, should be 0")
        kept.append(write(one, Path(folder))[0])
    found = [histories.load(path).geometry.pages for path in kept]
    files = len(list(Path(folder).glob("*.jsonl")))
seen("the pages of the kept findings, and their files", (found, files), ([8, 3], 2))
