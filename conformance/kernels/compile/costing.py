"""What whole calls of a compiled kernel cost, by its schedule: bundles issued, bytes copied, waits.

Every program of the kernel is simulated with the operands that the call gives it, on each core that
it runs on. Other programs of the call, which XLA makes of what is around the kernel, are named and
not counted.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from conformance.kernels.compile import calls, copies, program, simulate
from conformance.kernels.compile.calls import Call
from conformance.kernels.compile.cost import Cost
from conformance.kernels.compile.grid import Cell
from conformance.kernels.compile.peaks import PEAKS
from conformance.kernels.compile.program import NotUnderstood
from conformance.kernels.compile.traced import kernels as kernels_of
from conformance.kernels.operands import Kernels, Nested, Operands

STRIDE: Final = 7
"""Scattered ids of pages are this far from each other."""
Array = np.ndarray[Any, Any]


def of_calls(
    traced: Any, cell: Cell, asked: Sequence[Call], schedules: Sequence[Path], *, cores: int
) -> Iterator[Cost]:
    """The cost of each call. traced: the program, for the operands of its kernels.

    schedules: the files of the compiler, one for each program of the call. cores: on which the
    kernel runs.
    """
    known: dict[Path, simulate.Executable] = {}
    try:
        kernels = Kernels(traced)
    except Nested as error:
        yield from (Cost(call=call.name, why=str(error)) for call in asked)
        return
    for call in asked:
        try:
            yield _cost(kernels, cell, call, schedules, cores, known)
        except NotUnderstood as error:
            yield Cost(call=call.name, why=str(error))


def _cost(
    kernels: Kernels,
    cell: Cell,
    call: Call,
    schedules: Sequence[Path],
    cores: int,
    known: dict[Path, simulate.Executable],
) -> Cost:
    peak = PEAKS[cell.chip]
    speed = peak.bytes_per_cycle / cores
    issued = awaited = late = streamed = 0.0
    moved = started = 0
    answered: list[int | None] = []
    received = kernels.operands(arguments(cell, call))
    for params, operands in zip(kernels.each, received, strict=True):
        path, data = schedule_of(str(params["name"]), schedules), known_of(operands)
        if path not in known:
            text = path.read_text(encoding="utf-8", errors="replace")
            known[path] = simulate.executable(program.parse(text))
        runs = [simulate.run(known[path], data, core=core) for core in range(cores)]
        issued += max(run.cycles for run in runs)
        awaited += max(copies.waiting(run, bytes_per_cycle=speed) for run in runs)
        latency = copies.in_cycles(peak, copies.LATENCY)
        late += max(copies.waiting(run, bytes_per_cycle=speed, latency=latency) for run in runs)
        bytes_of = [copies.moved(run) for run in runs]
        moved, streamed = moved + sum(bytes_of), streamed + max(bytes_of) / speed
        started += sum(run.copies for run in runs)
        answered.append(_answered(known[path], runs))
    _check(cell, call, moved=moved, answered=answered)
    return Cost(
        call=call.name,
        issued=issued,
        streamed=streamed,
        awaited=awaited,
        late=late,
        moved=moved,
        copies=started,
    )


def _answered(done: simulate.Executable, runs: Sequence[simulate.Run]) -> int | None:
    """Bytes of results that copies write; None if results are stored without a copy."""
    outputs = [one for one in done.program.operands if one.kind == "output"]
    if any(one.space != "hbm" for one in outputs):
        return None
    numbers = [one.index for one in outputs]
    return simulate.GRANULE * sum(run.written.get(at, 0) for run in runs for at in numbers)


def _check(cell: Cell, call: Call, *, moved: int, answered: Sequence[int | None]) -> None:
    """A call that moves less than it must was not followed. Raises NotUnderstood."""
    answer = calls.results(cell, call)
    visible = call.cells * cell.kv_bytes
    written = sum(filter(None, answered))
    if None not in answered and written < answer:
        raise NotUnderstood(f"{written} bytes are written, and the results have {answer}")
    if moved < visible:
        raise NotUnderstood(f"{moved} bytes are moved, and {visible} are visible")


def known_of(operands: Operands) -> dict[int, Array]:
    """The operands that are known, by their number."""
    return {number: one for number, one in enumerate(operands) if one is not None}


def schedule_of(kernel: str, schedules: Sequence[Path]) -> Path:
    """The file of a kernel. Raises NotUnderstood if there is not one."""
    found = [path for path in schedules if f"-{kernel}." in path.name]
    if len(found) != 1:
        raise NotUnderstood(f"{len(found)} schedules of {kernel}")
    return found[0]


def around(traced: Any, schedules: Sequence[Path]) -> tuple[str, ...]:
    """The names of the other programs of a call."""
    kernels = {str(params["name"]) for params in kernels_of(traced)}
    names = [path.name.split("-", 1)[1].partition("-01-packed")[0] for path in schedules]
    whole = [name for name in names if name != "TLP" and not name.startswith("<")]
    return tuple(
        name for name in whole if not any(name.startswith(f"{kernel}.") for kernel in kernels)
    )


def arguments(cell: Cell, call: Call) -> list[Array | None]:
    """The arguments of the function: q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs.

    None where there is the shape alone. Rows past the sequences of the batch are empty.
    """
    kv_lens = np.zeros(cell.seqs, np.int32)
    queries = np.zeros(cell.seqs, np.int32)
    for row, (some, kv_len) in enumerate(call.lens):
        queries[row], kv_lens[row] = some, kv_len
    ids = np.arange(cell.seqs * cell.pages_per_seq, dtype=np.int64)
    if not call.neighbours:
        ids = ids * STRIDE
    table = (ids % cell.pages).astype(np.int32).reshape(cell.seqs, cell.pages_per_seq)
    ends = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    given: list[Array | None] = [None, None, kv_lens, table, ends]
    return [*given, np.array([len(call.lens)], np.int32)]
