"""A standalone file that compiles one grid point; it needs only jax and the kernel's module."""

from collections.abc import Mapping

from conformance.kernels import kernel_under_test
from conformance.kernels.batches import PLAIN, Options
from conformance.kernels.compile.grid import Cell
from conformance.kernels.compile.launch import ENVIRONMENT, SHORT
from conformance.kernels.compile.peaks import PEAKS

FILE = '''\
"""{kernel}, compiled ahead of time for {chip} with no TPU: {cell}.

Needs jax and libtpu{module_needed}. Prints what a call takes beside the pool, or the error
of the compiler.
"""

import os

os.environ.update(
{environment}
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from {module} import {function} as kernel

target = topologies.get_topology_desc({topology!r}{settings}).devices[0]
mesh = jax.sharding.Mesh(np.array([target]), ("x",))
placed = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
arguments = (
    jax.ShapeDtypeStruct(({cell.tokens}, {heads.q}, {heads.dim}), jnp.{cell.q}),  # q
    jax.ShapeDtypeStruct(  # kv_pages
        {pool}, jnp.{cell.kv}
    ),
    jax.ShapeDtypeStruct(({cell.seqs},), jnp.int32),  # kv_lens
    jax.ShapeDtypeStruct(({cell.seqs}, {cell.pages_per_seq}), jnp.int32),  # page_indices
    jax.ShapeDtypeStruct(({starts},), jnp.int32),  # cu_q_lens
    jax.ShapeDtypeStruct((1,), jnp.int32),  # num_seqs
{new})


def call(q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs{names}):
    arrays = q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs
    return kernel(*arrays{options})


try:
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # kernels may look for the chip here
        jitted = jax.jit(call, in_shardings=placed, out_shardings=placed{donated})
        memory = jitted.lower(*arguments).compile().memory_analysis()
    pool = arguments[1].size * arguments[1].dtype.itemsize
    print("compiles; temporary bytes over those of the pool:", memory.temp_size_in_bytes / pool)
except Exception as error:
    raise SystemExit(f"{{type(error).__name__}}: {{error}}")
'''


def source(
    cell: Cell,
    kernel: str,
    *,
    options: Options = PLAIN,
    given: Mapping[str, int] | None = None,
) -> str:
    """The text of the file; arguments as of `compiler.compile_cell`. Raises InvalidInput.

    given: from the record of the grid point, or None for the known ones, which need jax. The kernel
    is imported, to read its signature.
    """
    where = (
        {**kernel_under_test.KNOWN, **kernel_under_test.APPENDING}
        if cell.append
        else kernel_under_test.KNOWN
    )
    found = (
        kernel_under_test.find_appending(kernel) if cell.append else kernel_under_test.find(kernel)
    )
    assert found is not None  # a cell that appends is only made for a kernel that does
    if given is None:
        from conformance.kernels.compile import known_kernels

        given = known_kernels.arguments(SHORT.get(kernel, kernel), cell)
    asked = {found.names[name]: value for name, value in options.items()}
    known = {"chip": cell.chip, "page_size": cell.page_size}
    told = {name: value for name, value in known.items() if name in found.told}
    every = {**asked, **told, **given}
    new = kernel_under_test.NEW_CELLS if cell.append else ()
    shape = f"({cell.tokens}, {cell.heads.kv}, {cell.heads.dim})"
    struct = f"    jax.ShapeDtypeStruct({shape}, jnp.{cell.kv}),  # "
    module, _, function = where.get(kernel, kernel).partition(":")
    return FILE.format(
        kernel=f"{module}.{function}",
        chip=cell.chip,
        cell=cell,
        module_needed="" if module.startswith("jax.") else f", and {module}",
        environment="\n".join(f'    {name}="{value}",' for name, value in ENVIRONMENT.items()),
        module=module,
        function=function,
        topology=PEAKS[cell.chip].topology,
        settings=_named(PEAKS[cell.chip].settings),
        heads=cell.heads,
        pool=cell.pool(of_rows=found.of_rows),
        starts=cell.seqs + 1,
        donated=", donate_argnums=(1,)" if cell.append else "",
        new="".join(f"{struct}{name}\n" for name in new),
        names="".join(f", {name}" for name in new),
        options="".join(f", {name}={name}" for name in new) + _named(every),
    )


def _named(arguments: Mapping[str, object]) -> str:
    return "".join(f", {name}={value!r}" for name, value in arguments.items())
