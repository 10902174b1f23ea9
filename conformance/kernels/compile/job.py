"""The job of a compiling process and its result, with their forms as data."""

import json
from collections.abc import Mapping
from typing import Literal, TypedDict

from attrs import asdict, frozen

from conformance.kernels.batches import Options
from conformance.kernels.compile.grid import Cell, Heads


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
    are results too. error: of a bad input.
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
    error: BadInput


@frozen(kw_only=True)
class Job:
    """One grid point for one kernel. given: arguments of its own; None for the known ones.

    options: such as scale, by our name. result: the file to write.
    """

    kernel: str
    cell: Cell
    options: Options
    given: Mapping[str, int] | None
    result: str

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """The inverse of `to_json`."""
        data = json.loads(text)
        cell = data.pop("cell")
        return cls(**data, cell=Cell(**cell | {"heads": Heads(**cell["heads"])}))

    def to_json(self) -> str:
        """The job as the argument of the process."""
        return json.dumps(asdict(self))
