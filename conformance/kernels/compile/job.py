"""The job of a compiling process and its result, with their forms as data."""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, TypedDict

from attrs import asdict, frozen

from conformance.kernels.batches import Options
from conformance.kernels.compile.calls import Call
from conformance.kernels.compile.cost import CostData
from conformance.kernels.compile.grid import Cell, Heads

SCHEDULES: Final = "*-packed-bundles-post-ra.txt"
"""The compiler's files of schedules, one for each program of a call."""


class BadInput(TypedDict):
    """What an InvalidInput is made of."""

    name: str
    seen: str
    allowed: str
    remedy: str


class Found(TypedDict, total=False):
    """The result so far, as the process writes it. stage: how far it came.

    sizes: what the kernel works with, None where that is not known. pool, temporary, aliased: bytes
    of the pool, of what a call allocates beside its arguments and results, and of arguments that
    are results too. costs: of the calls that the program serves. around: the names of the programs
    of a call beside those of the kernel. error: of a bad input.
    """

    verdict: Literal["ok", "fails", "refused", "undecided", "bad input"]
    reason: str
    cause: str
    stage: str
    versions: dict[str, str]
    given: dict[str, int]
    smem: int
    pool: int
    temporary: int
    aliased: int
    cores: int
    seconds: float
    sizes: dict[str, int] | None
    costs: list[CostData]
    around: list[str]
    error: BadInput


@frozen(kw_only=True)
class Job:
    """One grid point for one kernel. given: arguments of its own; None for the known ones.

    options: such as scale, by our name. result: the file to write. calls: those whose costs are
    asked for. dump: the folder of the compiler's schedules, which these need.
    """

    kernel: str
    cell: Cell
    options: Options
    given: Mapping[str, int] | None
    result: str
    calls: tuple[Call, ...] = ()
    dump: str = ""

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """The inverse of `to_json`."""
        data = json.loads(text)
        cell = data.pop("cell")
        calls = tuple(_call(one) for one in data.pop("calls"))
        whole = Cell(**cell | {"heads": Heads(**cell["heads"])})
        return cls(**data, cell=whole, calls=calls)

    def to_json(self) -> str:
        """The job as the argument of the process."""
        return json.dumps(asdict(self))


def _call(data: dict[str, Any]) -> Call:
    lens = tuple((queries, cells) for queries, cells in data["lens"])
    return Call(data["name"], lens, neighbours=data["neighbours"])
