"""A second lowering of our kernel for TPUs: of the grid's it has the environment alone.

The whole state is one argument, the last one, and it is donated by name; the pool is an entry of a
dictionary, and the call is a closure without a mesh. Each point is one of the shapes that people
run. The compiler must leave the pool in its place here too.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from conformance.kernels.compile.launch import ENVIRONMENT, missing

ROOT: Final = Path(__file__).parents[2]
MOST: Final = 0.05
"""Temporary bytes of a call over those of the pool."""
POINTS: Final = (
    ("v6e:2x2", 32, 8, 64, 16, "bfloat16"),
    ("v6e:2x2", 14, 2, 64, 64, "bfloat16"),
    ("v6e:2x2", 64, 8, 64, 16, "bfloat16"),
    ("v6e:2x2", 9, 3, 64, 16, "bfloat16"),
    ("v6e:2x2", 40, 10, 128, 16, "bfloat16"),
    ("v6e:2x2", 32, 32, 96, 16, "bfloat16"),
    ("v6e:2x2", 8, 1, 128, 32, "int8"),
    ("v6e:2x2", 16, 2, 192, 64, "bfloat16"),
    ("v6e:2x2", 10, 5, 80, 128, "bfloat16"),
    ("v6e:2x2", 12, 6, 128, 32, "float8_e4m3fn"),
    ("v5e:2x2", 32, 8, 128, 16, "bfloat16"),
    ("v5e:2x2", 64, 8, 128, 128, "int8"),
    ("v5e:2x2", 8, 1, 128, 16, "bfloat16"),
    ("v5e:2x2", 16, 8, 128, 1, "bfloat16"),
    ("v5p:2x2x1", 16, 8, 256, 64, "bfloat16"),
    ("v5p:2x2x1", 28, 4, 128, 16, "bfloat16"),
    ("tpu7x:2x2x1", 32, 8, 128, 16, "bfloat16"),
    ("tpu7x:2x2x1", 64, 8, 64, 64, "float8_e4m3fn"),
    ("v4:2x2x1", 32, 8, 128, 16, "bfloat16"),
    ("v4:2x2x1", 12, 3, 128, 32, "float32"),
)
"""Topology, query heads, KV heads, head_dim, cells of a page, and the dtype of the pool."""
EACH: Final = 4
"""Points of one process."""
PROGRAM: Final = """\
import jax
from jax import ShapeDtypeStruct, numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
from impl.attention.tpu import append_and_attend

for topology, q_heads, kv_heads, width, page, kind in {points}:
    lanes = 128 * -(-2 * width // 128)  # as few registers as hold both K and V
    pages = (1 << 29) // (page * kv_heads * lanes * jnp.dtype(kind).itemsize)
    chip = topology.partition(":")[0].removeprefix("tpu")
    device = topologies.get_topology_desc(topology, "tpu").devices[0]
    here = SingleDeviceSharding(device)
    def of(kind, *shape):
        return ShapeDtypeStruct(shape, kind, sharding=here)
    new = of(kind, 256, kv_heads, width)
    state = dict(
        pages=of(kind, pages, page * kv_heads, lanes), table=of("int32", 32, 4096 // page),
        count=of("int32"), starts=of("int32", 33), lens=of("int32", 32),
    )
    def step(values, keys, queries, *, state):
        out, after = append_and_attend(
            queries, state["pages"], state["lens"], state["table"], state["starts"], state["count"],
            values=values, keys=keys, page_size=page, chip=chip, scale=0.09,
        )
        return {{**state, "pages": after}}, out
    queries = of("bfloat16", 256, q_heads, width)
    lowered = jax.jit(step, donate_argnames="state").lower(new, new, queries, state=state)
    memory = lowered.compile().memory_analysis()
    pool = pages * page * kv_heads * lanes * jnp.dtype(kind).itemsize
    print(memory.alias_size_in_bytes >= pool, memory.temp_size_in_bytes / pool)
"""


@pytest.mark.deep
@pytest.mark.skipif(missing() is not None, reason=f"NOT CHECKED, no compiler for TPUs: {missing()}")
@pytest.mark.parametrize("first", range(0, len(POINTS), EACH))
def test_a_second_lowering_leaves_the_pool_in_its_place(first: int, tmp_path: Path) -> None:
    """Its bytes are aliased, and a call takes next to nothing beside it."""
    points = POINTS[first : first + EACH]
    path = tmp_path / "lowering.py"
    path.write_text(PROGRAM.format(points=repr(points)), encoding="utf-8")

    run = subprocess.run(
        [sys.executable, path],
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    found = [line.split() for line in run.stdout.splitlines()]
    assert len(points) == len(found), run.stderr
    for point, (aliased, share) in zip(points, found, strict=True):
        assert (aliased, float(share) < MOST) == ("True", True), (point, share)
