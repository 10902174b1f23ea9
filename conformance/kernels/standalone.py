"""A standalone file that reproduces a finding, with the kernel call, arrays and right answer."""

import base64
import io
import zlib
from typing import Any, Final

import numpy as np

from conformance.kernels import answers, kernel_under_test
from conformance.kernels.batches import Batch, build
from conformance.kernels.block_sizes import variants
from conformance.kernels.interpret import CHIP
from conformance.kernels.trials import Job

SHOWN: Final = frozenset({"wrong", "out_of_bounds", "reads_behind_window"})
"""Findings that one call shows, by its answer or by an error of the interpreter."""
FILE = '''\
"""{kernel}: {what}, for {lens} (queries, cells) of each sequence.

Needs jax, numpy and {module}. Interprets the kernel, on any machine, and prints the largest
error over what rounding explains, which should be at most 1.
"""

import base64
import io
import zlib

import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from {module} import {function} as kernel
{imports}
DATA = (
{data}
)
held = np.load(io.BytesIO(zlib.decompress(base64.b85decode(DATA))))
arrays = [
    jnp.asarray(held["q"]).astype("{q_kind}"),
    {held_as}(jnp.asarray(held["kv_pages"]).astype("{kv_kind}")),
    *(jnp.asarray(held[name]) for name in ("kv_lens", "page_indices", "cu_q_lens", "num_seqs")),
]
interpreter = pltpu.InterpretParams(
    dma_execution_mode="{mode}",
    uninitialized_memory="nan",
    out_of_bounds_reads="raise",
    detect_races={races},
)
with pltpu.force_tpu_interpret_mode(interpreter):
    out = kernel(*arrays{options})
    found = np.asarray(out).astype(np.float64)[: len(held["answer"])]
error, bound = np.abs(found - held["answer"]), held["bound"]
shares = np.where(error == 0, 0, error / np.where(bound > 0, bound, np.nan))
worst = np.inf if np.isnan(shares).any() else shares.max(initial=0)
print("largest error over bound:", worst)
raise SystemExit(int(worst > 1))
'''


def source(job: Job, batch: Batch, what: str) -> str:
    """The text of the file for a batch of this job; twins are left out. Raises InvalidInput."""
    found, sizes = kernel_under_test.find(job.kernel), job.shape
    arrays = build(sizes, batch)
    rows = min(int(arrays.cu_q_lens[len(batch.lens)]), sizes.tokens)
    right = answers.right(sizes, arrays)
    names = ("q", "kv_pages", "kv_lens", "page_indices", "cu_q_lens", "num_seqs")
    held = dict(zip(names, arrays, strict=True))
    held |= {"answer": right.answer[:rows], "bound": right.bound[:rows]}
    held |= arrays.optional
    asked = {found.names[name]: value for name, value in sizes.options.items()}
    known = {"chip": CHIP, "page_size": sizes.page_size}
    told = {name: value for name, value in known.items() if name in found.told}
    optional = {found.names[name]: f'jnp.asarray(held["{name}"])' for name in arrays.optional}
    if found.of_rows and arrays.scales is not None:
        optional["scales"] = f"scales.of({optional['scales']})"
    own = variants(job.kernel, sizes)[job.variant][0]
    module, _, function = kernel_under_test.KNOWN.get(job.kernel, job.kernel).partition(":")
    imports = "from impl.attention.tpu.shape import Blocks\n" if "blocks" in own else ""
    imports += "from impl.cache import rows\n" if found.of_rows else ""
    imports += "from impl.cache import scales\n" if found.of_rows and sizes.scales else ""
    options = {name: repr(value) for name, value in {**asked, **told, **own}.items()} | optional
    return FILE.format(
        kernel=f"{module}.{function}",
        what=what,
        lens=list(batch.lens),
        module=module,
        function=function,
        imports=imports,
        held_as="rows.of" if found.of_rows else "",
        data="\n".join(f'    "{line}"' for line in _lines(_packed(held))),
        q_kind=sizes.kinds[0],
        kv_kind=sizes.kinds[1],
        mode=job.mode,
        races=job.mode == "eager",
        options="".join(f", {name}={value}" for name, value in options.items()),
    )


def _lines(text: str) -> list[str]:
    return [text[start : start + 90] for start in range(0, len(text), 90)]


def _packed(arrays: dict[str, Any]) -> str:
    """Bytes as text without quotes and backslashes; NaN and zeros compress well."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return base64.b85encode(zlib.compress(file.getvalue(), 9)).decode()
