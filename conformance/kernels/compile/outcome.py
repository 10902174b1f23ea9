"""The record of one compiled grid point, and its form as plain data."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NotRequired, TypedDict

from attrs import frozen

from conformance.kernels.compile import peaks
from conformance.kernels.compile.bundles import Loop
from conformance.kernels.compile.cost import Cost, CostData
from conformance.kernels.compile.grid import Cell, Heads
from conformance.kernels.compile.loops import Pass

Verdict = Literal["ok", "fails", "refused", "undecided"]
VERDICTS: Final[tuple[Verdict, ...]] = ("ok", "fails", "refused", "undecided")
NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
NO_VERSIONS: Final[Mapping[str, str]] = MappingProxyType({})
NOT_ASKED: Final = "vector memory and cycles: only the verdict was requested"
"""The reason of a record without figures: they take the compiler several times as long."""


class CellData(TypedDict):
    """A cell as plain data. Files from before `append` was known lack it."""

    chip: str
    shape: str
    page_size: int
    kv: str
    q: str
    tokens: int
    seqs: int
    positions: int
    pages: int
    append: NotRequired[bool]


class LoopData(TypedDict):
    """A `Loop` as plain data."""

    start: int
    end: int
    products: int


class PassData(TypedDict):
    """A `Pass` as plain data."""

    cycles: int
    cells: int
    tokens: int
    cycles_per_kv_token: float | None


class CompiledData(TypedDict):
    """A record as plain data: with that of its cell, and with the ceilings."""

    kernel: str
    chip: str
    shape: str
    page_size: int
    kv: str
    q: str
    tokens: int
    seqs: int
    positions: int
    pages: int
    append: NotRequired[bool]
    verdict: Verdict
    reason: str
    cause: str
    vmem: int | None
    spilled: int | None
    capacity: int | None
    smem: int | None
    pool: NotRequired[int | None]
    temporary: NotRequired[int | None]
    cores: int
    loops: list[LoopData]
    decode: PassData | None
    prefill: PassData | None
    not_known: str
    mbu_ceiling: float | None
    mfu_ceiling: float | None
    given: dict[str, int]
    seconds: float | None
    versions: NotRequired[dict[str, str]]
    costs: NotRequired[list[CostData]]
    around: NotRequired[list[str]]


@frozen(kw_only=True)
class Compiled:
    """verdict: `refused` is the kernel's own InvalidInput, `undecided` is anything unknown.

    cause: one word, to count by: vmem, smem, copy (of the pool), or the kind of the error. vmem,
    spilled, capacity: bytes, by the compiler's report. smem: bytes of scalar memory that the kernel
    requests, without the compiler's own. pool: bytes of the pool. temporary: bytes that a call
    allocates beside its arguments and results, None if our wrapper of the kernel has a part in
    them. cores: of a device, working in parallel. loops: with matrix products, in order. decode,
    prefill: the inner loops, where known; `not_known` names the others. given: arguments of the
    kernel's own. seconds: of tracing and compiling. costs: of the calls that the program serves.
    around: the names of the programs of a call beside those of the kernel, which are not counted.
    """

    kernel: str
    cell: Cell
    verdict: Verdict
    reason: str = ""
    cause: str = ""
    vmem: int | None = None
    spilled: int | None = None
    capacity: int | None = None
    smem: int | None = None
    pool: int | None = None
    temporary: int | None = None
    cores: int = 1
    loops: tuple[Loop, ...] = ()
    decode: Pass | None = None
    prefill: Pass | None = None
    not_known: str = ""
    given: Mapping[str, int] = NOTHING
    seconds: float | None = None
    versions: Mapping[str, str] = NO_VERSIONS
    costs: tuple[Cost, ...] = ()
    around: tuple[str, ...] = ()

    @property
    def copied(self) -> float | None:
        """The temporary bytes of a call over the bytes of the pool: 1 or more if it is copied."""
        return self.temporary / self.pool if self.pool and self.temporary is not None else None

    @property
    def mbu(self) -> float | None:
        """The ceiling of the bandwidth share of decoding."""
        if self.decode is None:
            return None
        return peaks.mbu_ceiling(self.cell, self.decode.per_token, cores=self.cores)

    @property
    def mfu(self) -> float | None:
        """The ceiling of the share of the bfloat16 peak of a prefill."""
        step = self.prefill
        if step is None:
            return None
        return peaks.mfu_ceiling(
            self.cell,
            cycles=step.cycles,
            tokens=step.tokens,
            kv_tokens=step.cells,
            cores=self.cores,
        )

    def as_dict(self) -> CompiledData:
        """Plain data for JSON."""
        return {
            "kernel": self.kernel,
            **cell_as_dict(self.cell),
            "verdict": self.verdict,
            "reason": self.reason,
            "cause": self.cause,
            "vmem": self.vmem,
            "spilled": self.spilled,
            "capacity": self.capacity,
            "smem": self.smem,
            "pool": self.pool,
            "temporary": self.temporary,
            "cores": self.cores,
            "loops": [
                LoopData(start=one.start, end=one.end, products=one.products) for one in self.loops
            ],
            "decode": _pass(self.decode),
            "prefill": _pass(self.prefill),
            "not_known": self.not_known,
            "mbu_ceiling": _rounded(self.mbu),
            "mfu_ceiling": _rounded(self.mfu),
            "given": dict(self.given),
            "seconds": self.seconds,
            "versions": dict(self.versions),
            "costs": [cost.as_dict() for cost in self.costs],
            "around": list(self.around),
        }


def from_dict(data: CompiledData) -> Compiled:
    """The inverse of `as_dict`."""
    return Compiled(
        kernel=data["kernel"],
        cell=cell_from_dict(data),
        verdict=data["verdict"],
        reason=data["reason"],
        cause=data["cause"],
        vmem=data["vmem"],
        spilled=data["spilled"],
        capacity=data["capacity"],
        smem=data["smem"],
        pool=data.get("pool"),
        temporary=data.get("temporary"),
        cores=data["cores"],
        loops=tuple(Loop(**loop) for loop in data["loops"]),
        decode=_passed(data["decode"]),
        prefill=_passed(data["prefill"]),
        not_known=data["not_known"],
        given=data["given"],
        seconds=data["seconds"],
        versions=data["versions"],
        costs=tuple(Cost(**cost) for cost in data.get("costs", ())),
        around=tuple(data.get("around", ())),
    )


def _passed(data: PassData | None) -> Pass | None:
    return None if data is None else Pass(data["cycles"], data["cells"], data["tokens"])


def cell_as_dict(cell: Cell) -> CellData:
    """The grid point alone, by the fields that identify it."""
    return {
        "chip": cell.chip,
        "shape": str(cell.heads),
        "page_size": cell.page_size,
        "kv": cell.kv,
        "q": cell.q,
        "tokens": cell.tokens,
        "seqs": cell.seqs,
        "positions": cell.positions,
        "pages": cell.pages,
        "append": cell.append,
    }


def cell_from_dict(data: CellData | CompiledData) -> Cell:
    """The inverse; other data is ignored."""
    q, kv, dim = map(int, data["shape"].split("x"))
    return Cell(
        heads=Heads(q, kv, dim),
        chip=data["chip"],
        page_size=data["page_size"],
        kv=data["kv"],
        q=data["q"],
        tokens=data["tokens"],
        seqs=data["seqs"],
        positions=data["positions"],
        pages=data["pages"],
        append=data.get("append", False),
    )


def _pass(found: Pass | None) -> PassData | None:
    if found is None:
        return None
    return {
        "cycles": found.cycles,
        "cells": found.cells,
        "tokens": found.tokens,
        "cycles_per_kv_token": _rounded(found.per_token),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
