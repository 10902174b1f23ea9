"""The process that compiles one grid point for one chip, ahead of time.

It is a process of its own, because the compiler reads its options once, and may hang or end the
process. Its result is a JSON file that exists from the start: so the progress of a process that
ended is known.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, Final, ParamSpec, Protocol, TypeVar, Unpack

import jax
import numpy as np
from jax.experimental import topologies

from conformance.kernels import kernel_under_test
from conformance.kernels.compile import costing, known_kernels
from conformance.kernels.compile.cost import CostData
from conformance.kernels.compile.grid import BITS, Cell
from conformance.kernels.compile.job import SCHEDULES, BadInput, Found, Job
from conformance.kernels.compile.peaks import PEAKS
from conformance.kernels.compile.reasons import explain, short
from conformance.kernels.compile.traced import Reference, cores, references
from spec.vocabulary.errors import InvalidInput

MOST_COPIED: Final = 0.05
"""The most temporary bytes of a call, as a share of the pool of the grid. A copy of it has all."""
P = ParamSpec("P")
R = TypeVar("R")


class Tell(Protocol):
    """Adds to the result, which is written at once."""

    def __call__(self, **news: Unpack[Found]) -> None:
        """Add these."""
        ...


def work(job: Job) -> Found:
    """Compile, and record a verdict with its reason, and the figures so far."""
    found = Found(verdict="undecided", reason="the compiler did not start")
    told: list[str] = []

    def tell(**news: Unpack[Found]) -> None:
        found.update(news)
        Path(job.result).write_text(json.dumps(found), encoding="utf-8")

    def end(**news: Unpack[Found]) -> None:
        news["seconds"] = round(time.perf_counter() - started, 2)
        tell(**news)

    tell()
    try:
        under_test = _under_test(job)
    except InvalidInput as error:
        known = BadInput(
            name=error.name, seen=str(error.seen), allowed=error.allowed, remedy=error.remedy
        )
        tell(verdict="bad input", error=known)
        return found
    if under_test is None:
        tell(
            verdict="refused", reason="it does not take keys and values", cause="keys", seconds=0.0
        )
        return found
    peak = PEAKS[job.cell.chip]
    target = topologies.get_topology_desc(peak.topology, **peak.settings)
    given = known_kernels.arguments(job.kernel, job.cell) if job.given is None else dict(job.given)
    tell(versions=_versions(job.kernel), given=given, stage="tracing")
    started = time.perf_counter()
    try:
        with _asked_for_devices(told):
            traced, asked = _compile(job, under_test, target.devices[0], given, tell)
    except InvalidInput as error:
        end(verdict="refused", reason=short(str(error)), cause=error.name)
    except Exception as error:
        cause, reason = explain(error)
        if told and found["stage"] == "tracing":
            end(verdict="undecided", cause="device", reason=f"{told[0]} {reason}")
        else:
            end(verdict="fails", cause=cause, reason=reason)
    else:
        wrong = copies(found, append=job.cell.append)
        if wrong is None:
            end(verdict="ok", reason="", cause="")
        else:
            end(verdict="fails", reason=wrong, cause="copy")
        tell(sizes=known_kernels.sizes(job.kernel, job.cell, given, asked))
        _simulate(job, traced, found, tell)
    return found


def _under_test(job: Job) -> kernel_under_test.Subject | None:
    """The function of a job; None if it takes no new cells and should. Raises InvalidInput."""
    if job.cell.append:
        return kernel_under_test.find_appending(job.kernel)
    return kernel_under_test.find(job.kernel)


def _simulate(job: Job, traced: Any, found: Found, tell: Tell) -> None:
    """Record what the calls cost that the compiled program serves."""
    if not job.calls or found["verdict"] != "ok":
        return
    schedules = sorted(Path(job.dump).glob(SCHEDULES))
    tell(around=list(costing.around(traced, schedules)))
    done = list[CostData]()
    for cost in costing.of_calls(traced, job.cell, job.calls, schedules, cores=found["cores"]):
        done.append(cost.as_dict())
        tell(costs=done)


def _compile(
    job: Job,
    under_test: kernel_under_test.Subject,
    device: jax.Device,
    given: Mapping[str, int],
    tell: Tell,
) -> tuple[Any, list[list[int]]]:
    """Trace, lower and compile; the chip is in the mesh, where kernels may look it up.

    Returns the traced program, and the shapes that the kernel requested in vector memory.
    """
    cell = job.cell
    mesh = jax.sharding.Mesh(np.array([device]), ("x",))
    placed = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())  # type: ignore[no-untyped-call]

    new = kernel_under_test.NEW_CELLS if cell.append else ()

    def call(*arrays: jax.Array) -> object:
        shared, cells = arrays[: len(arrays) - len(new)], arrays[len(arrays) - len(new) :]
        operands = dict(zip(new, cells, strict=True))
        own: dict[str, Any] = {"chip": cell.chip, "page_size": cell.page_size, **operands, **given}
        return under_test.call(*shared, options=job.options, **own)

    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        jitted = jax.jit(
            call,
            in_shardings=placed,
            out_shardings=placed,
            donate_argnums=(1,) if cell.append else (),
        )
        program = jitted.trace(*arguments(cell, of_rows=under_test.of_rows))
        declared = list(references(program.jaxpr))
        smem = sum(one.size * one.dtype.itemsize for one in declared if _is_scalar(one))
        tell(smem=smem, cores=cores(program.jaxpr, most=PEAKS[cell.chip].cores))
        lowered = program.lower()
        tell(stage="compiling", reason="the compiler did not finish")
        memory = lowered.compile().memory_analysis()
        if not under_test.is_wrapped:
            pool = job.cell.pool(of_rows=under_test.of_rows)
            tell(
                pool=prod(pool) * BITS[cell.kv] // 8,
                temporary=memory.temp_size_in_bytes,
                aliased=memory.alias_size_in_bytes,
            )
    return program.jaxpr, scratch(declared)


def copies(found: Found, *, append: bool) -> str | None:
    """What a call does with the pool that it should not, from its memory; None if nothing."""
    if "pool" not in found:
        return None
    pool, temporary, aliased = found["pool"], found["temporary"], found["aliased"]
    if temporary > MOST_COPIED * pool:
        return f"a call takes {temporary / pool:.2f} times the bytes of the pool beside it: a copy"
    if append and aliased < pool:
        return f"the pool comes back in another place: {aliased} of {pool} bytes are aliased"
    return None


def arguments(cell: Cell, *, of_rows: bool) -> tuple[jax.ShapeDtypeStruct, ...]:
    """q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, new cells if any: as shapes."""
    heads = cell.heads
    shapes = (
        ((cell.tokens, heads.q, heads.dim), cell.q),
        (cell.pool(of_rows=of_rows), cell.kv),
        ((cell.seqs,), "int32"),
        ((cell.seqs, cell.pages_per_seq), "int32"),
        ((cell.seqs + 1,), "int32"),
        ((1,), "int32"),
        *[((cell.tokens, heads.kv, heads.dim), cell.kv)] * (2 * cell.append),
    )
    return tuple(known_kernels.shaped(shape, dtype) for shape, dtype in shapes)


def scratch(declared: Iterable[Reference]) -> list[list[int]]:
    """The shapes that kernels request in vector memory, from `traced.references`."""
    return [list(one.shape) for one in declared if str(one.memory_space) == "vmem"]


def _is_scalar(reference: Reference) -> bool:
    return str(reference.memory_space) == "smem" and hasattr(reference.dtype, "itemsize")


@contextmanager
def _asked_for_devices(told: list[str]) -> Iterator[None]:
    """Note whether the function looks up the devices of this machine, which are no TPU.

    A failure of tracing after that is not the kernel's.
    """
    real = jax.devices
    jax.devices = _noting(real, told)
    try:
        yield
    finally:
        jax.devices = real


def _noting(real: Callable[P, R], told: list[str]) -> Callable[P, R]:
    def devices(*given: P.args, **named: P.kwargs) -> R:
        if not told:
            told.append(
                "It asks for the device that it runs on, and there is none ahead of time: let it"
                " take `chip`, or sizes of its own."
            )
        return real(*given, **named)

    return devices


def _versions(kernel: str) -> dict[str, str]:
    names = ("jax", "libtpu", *filter(None, [kernel_under_test.INSTALLED.get(kernel)]))
    return {name: version(name) for name in names if find_spec(name)}


if __name__ == "__main__":
    work(Job.from_json(sys.argv[1]))
