"""The pool is not copied either if our kernel is called through other entries."""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from deep import deep_after

from conformance.kernels.compile import calls, launch
from conformance.kernels.compile.compiling_process import MOST_COPIED
from conformance.kernels.compile.grid import Cell, cells

TOOL: Final = Path(__file__).parents[1] / "tools" / "lowered_otherwise.py"
ROOT: Final = Path(__file__).parents[2]
POINTS: Final = tuple(
    cells((heads,), chips=(chip,), page_sizes=(16 if (at + chips) % 2 else 128,))[0]
    for (at, heads), (chips, chip) in product(enumerate(calls.SHAPES), enumerate(calls.CHIPS))
)
"""Twenty grid points: each shape on each chip, with small pages or large ones."""
CALLS: Final = tuple(
    (("attend", "steps")[(number + number // len(calls.CHIPS)) % 2], point)
    for number, point in enumerate(POINTS)
)
"""Each through one of two entries, which take turns on the chips."""


@pytest.mark.skipif(
    launch.missing() is not None, reason=f"NOT CHECKED, no compiler for TPUs: {launch.missing()}"
)
@pytest.mark.parametrize(("entry", "point"), deep_after(0, CALLS), ids=str)
def test_the_pool_stays_where_it_is(entry: str, point: Cell, tmp_path: Path) -> None:
    """Beside the pool a call takes little, and a pool that is donated comes back in its place."""
    heads = point.heads
    known = {
        "heads": [heads.q, heads.kv, heads.dim],
        "chip": point.chip,
        "page_size": point.page_size,
        "kv": point.kv,
        "tokens": point.tokens,
        "seqs": point.seqs,
        "positions": point.positions,
    }
    result = tmp_path / "result.json"
    settings = launch.environment(tmp_path, figures=False) | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(TOOL), entry, json.dumps(known), str(result)],
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr[-2000:]
    found = json.loads(result.read_text(encoding="utf-8"))

    assert found["temporary"] <= MOST_COPIED * found["pool"]
    if entry == "steps":
        assert found["aliased"] >= found["pool"]
