"""The test of a finding has the history of the finding, each step with every field."""

import runpy
import sys
import tempfile
from pathlib import Path

from conformance.files import histories
from conformance.files.histories import Recorded
from conformance.fuzzing import counterexamples
from spec.machines.actions import Assign, Reserve
from spec.vocabulary import CleanupMode, Geometry, Params, default_limits

geometry = Geometry(pages=4, page_size=2, slots=2, pages_per_seq=2)
steps = (Reserve(slot=0), Reserve(slot=0), Assign(0, (3,), Params(max_new=1), 1))
recorded = Recorded(
    engine="conformance.engines.ours:make",
    geometry=geometry,
    limits=default_limits(geometry),
    cleanup=CleanupMode.INCREMENTAL,
    history=steps,
    clause="ATOMIC",
    message="the action is done, should be refused: SLOT_IN_USE",
)
with tempfile.TemporaryDirectory() as name:
    history, test = counterexamples.write(recorded, Path(name))
    again = runpy.run_path(str(test), run_name="test")["RECORDED"].history
    assert histories.load(history).history == steps
print(again)
sys.exit(0 if again == steps else 1)
