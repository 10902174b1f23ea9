"""A field that a view hides from some step on is a mistake of the adapter, in a process of its own too.

The engine is right; its adapter shows no counts while the pool is full. docs/adapters.md, "Whose
mistake": a field that is sometimes hidden is a mistake of the adapter, status 2, with the name of the
field, and nothing in the corpus. In the line protocol such an answer has `whole`, "if it is the whole
view", so what it lacks is not shown any more. The third step takes the second page of two, so rerun must
end with 2 and name View.counts; it must not blame the engine (1) for counts of an earlier step.
"""

import tempfile
from pathlib import Path

from common_d import compare, kvspec
from conformance.files.histories import Recorded, dump
from spec.machines.actions import Allocate, Reserve
from spec.vocabulary import CleanupMode, Geometry, default_limits

sizes = Geometry(pages=2, page_size=2, slots=1, pages_per_seq=2)
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    history = folder / "steps.jsonl"
    recorded = Recorded(
        engine="d08_engine:Adapter", geometry=sizes, limits=default_limits(sizes),
        cleanup=CleanupMode.INCREMENTAL,
        history=(Reserve(0), Allocate(((0, 0), (0, 1))), Allocate(((0, 2),))),
    )
    history.write_text(dump(recorded))
    status, told = kvspec("rerun", history, "--engine", "d08_engine:Adapter", folder=folder)
print(told.strip())
compare("exit status, and whether the field is named as hidden", (2, True), (status, "counts" in told))
