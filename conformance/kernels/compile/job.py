"""The job of a compiling process, and its form as data."""

import json
from collections.abc import Mapping
from typing import Any

from attrs import asdict, frozen

from conformance.kernels.compile.grid import Cell, Heads


@frozen(kw_only=True)
class Job:
    """One grid point for one kernel. given: arguments of its own; None for the known ones.

    options: such as scale, by our name. result: the file to write.
    """

    kernel: str
    cell: Cell
    options: Mapping[str, Any]
    given: Mapping[str, Any] | None
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
