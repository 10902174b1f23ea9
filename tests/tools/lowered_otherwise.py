"""Our kernel for TPUs, compiled as `compiling_process` does not: through two other entries.

Run as a program with the name of an entry, a grid point as JSON and a file, it writes the bytes of
the pool, of what a call takes beside it, and of arguments that are results too. The topology of the
chip is all that it has in common with the kit.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies

from conformance.kernels.compile.peaks import PEAKS
from impl.attention.tpu import append_and_attend, ragged_paged_attention
from impl.cache import rows

STEPS: Final = 3


def attend(given: dict[str, Any], chip: str, page_size: int) -> Any:
    """Attention with the pool as the last argument, between two scalings."""

    def entry(weights: Any, lens: Any, hidden: Any, pool: Any) -> Any:
        ends, table, number, kv_lens = lens
        q = (hidden * weights).reshape(given["q"].shape)
        out = ragged_paged_attention(
            q, pool, kv_lens, table, ends, number, chip=chip, page_size=page_size
        )
        return out.reshape(hidden.shape) * weights

    return jax.jit(entry), (given["weights"], given["lens"], given["hidden"], given["pool"])


def steps(given: dict[str, Any], chip: str, page_size: int) -> Any:
    """A scan over steps that write new cells, with the pool as what is carried, and donated."""

    def entry(number: Any, pool: Any, weights: Any, hidden: Any, lens: Any) -> Any:
        ends, table, _, kv_lens = lens

        def step(carried: Any, _: None) -> Any:
            pool, hidden, kv_lens = carried
            q = (hidden * weights).reshape(given["q"].shape)
            some = q[:, : given["new"].shape[1]].astype(pool.dtype)
            out, pool = append_and_attend(
                q,
                pool,
                kv_lens,
                table,
                ends,
                number,
                keys=some,
                values=some,
                chip=chip,
                page_size=page_size,
            )
            return (pool, out.reshape(hidden.shape), kv_lens + 1), None

        return jax.lax.scan(step, (pool, hidden, kv_lens), length=STEPS)[0]

    arguments = given["lens"][2], given["pool"], given["weights"], given["hidden"], given["lens"]
    return jax.jit(entry, donate_argnums=1), arguments


ENTRIES: Final = {"attend": attend, "steps": steps}


def main(entry: str, point: str, result: str) -> None:
    """Compile an entry for a grid point, and write its memory to a file."""
    one = json.loads(point)
    q_heads, kv_heads, dim = one["heads"]
    chip, page_size, tokens, seqs = one["chip"], one["page_size"], one["tokens"], one["seqs"]
    target = topologies.get_topology_desc(PEAKS[chip].topology, **PEAKS[chip].settings)
    placed = jax.sharding.SingleDeviceSharding(target.devices[0])

    def array(*shape: int, dtype: str) -> Any:
        kind = jnp.dtype(dtype)
        return jax.ShapeDtypeStruct(shape, kind, sharding=placed)  # type: ignore[no-untyped-call]

    each = page_size * kv_heads * rows.lanes(dim) * jnp.dtype(one["kv"]).itemsize
    pages, wide = (1 << 30) // each, q_heads * dim
    ints = [(seqs + 1,), (seqs, one["positions"] // page_size), (1,), (seqs,)]
    given = {
        "q": array(tokens, q_heads, dim, dtype="bfloat16"),
        "new": array(tokens, kv_heads, dim, dtype=one["kv"]),
        "hidden": array(tokens, wide, dtype="bfloat16"),
        "weights": array(wide, dtype="bfloat16"),
        "pool": array(pages, page_size * kv_heads, rows.lanes(dim), dtype=one["kv"]),
        "lens": [array(*shape, dtype="int32") for shape in ints],
    }
    jitted, arguments = ENTRIES[entry](given, chip, page_size)
    memory = jitted.lower(*arguments).compile().memory_analysis()
    pool = int(np.prod(given["pool"].shape)) * jnp.dtype(one["kv"]).itemsize
    found = {
        "pool": pool,
        "temporary": memory.temp_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
    }
    Path(result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
