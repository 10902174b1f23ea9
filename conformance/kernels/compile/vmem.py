"""The memory report of the compiler: vector memory of every operation of a program."""

import json
import re
from collections.abc import Iterable
from typing import Final, NotRequired, TypedDict

from attrs import frozen

DATA: Final = re.compile(r"const\s+DATA\s*=\s*")
SPILL: Final = "SPILL"
KERNEL: Final = "pallas_call"


class Allocation(TypedDict):
    """One of a block. tag: what it is for, where it is not the kernel's own."""

    size: int
    tag: NotRequired[str]


class Block(TypedDict):
    """A part of vector memory, and what is allocated in it."""

    block_type: str
    block_size: int
    allocations: list[Allocation]


class Breakdown(TypedDict):
    """What one operation has."""

    metadata: str
    blocks: list[Block]


class Global(TypedDict):
    """Of the core."""

    vmem_capacity: int


class Report(TypedDict):
    """What is read of the report."""

    hlo_breakdowns: dict[str, Breakdown]
    global_info: Global


@frozen
class Memory:
    """Bytes of vector memory: of the kernel, its spilled registers, and the capacity.

    kernels: the names of all kernels of the program.
    """

    used: int
    spilled: int
    capacity: int
    kernels: tuple[str, ...]


def parse(page: str) -> Memory:
    """Read a report, which is a JSON object in a page. Raises ValueError without a kernel.

    Several kernels of a program use the memory one after another: the largest counts.
    """
    found = DATA.search(page)
    if found is None:
        raise ValueError("no data in the memory report of the compiler")
    data: Report
    data, _ = json.JSONDecoder().raw_decode(page, found.end())
    every = data["hlo_breakdowns"].items()
    parts = {name: part for name, part in every if KERNEL in part["metadata"]}
    if not parts:
        raise ValueError("no kernel in the memory report of the compiler")
    used, spilled = max(_of(part) for part in parts.values())
    return Memory(used, spilled, int(data["global_info"]["vmem_capacity"]), tuple(parts))


def _of(part: Breakdown) -> tuple[int, int]:
    """Bytes of the kernel itself, and spilled; XLA's own temporaries are not part of it."""
    blocks = [block for block in part["blocks"] if block["block_type"] == "SCOPED"]
    used = sum(block["block_size"] for block in blocks)
    return int(used), _spilled(one for block in blocks for one in block["allocations"])


def _spilled(allocations: Iterable[Allocation]) -> int:
    return sum(int(one["size"]) for one in allocations if one.get("tag") == SPILL)
