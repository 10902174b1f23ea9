"""The baseline comparison with an earlier run: regressions, and grid points without a counterpart.

There is no tolerance: the compiler gives the same figures for the same program, and an intended
regression makes the new figures the baseline.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, TypeGuard, get_args

from conformance.files.jsonl import no_number
from conformance.kernels.compile.outcome import VERDICTS, CompiledData, PassData
from spec.vocabulary.errors import InvalidInput

Key = Literal[
    "kernel",
    "chip",
    "shape",
    "page_size",
    "kv",
    "q",
    "tokens",
    "seqs",
    "positions",
    "pages",
]
KEY: Final[tuple[Key, ...]] = get_args(Key)
"""The fields that identify a grid point."""
MORE_BYTES: Final = 0
MORE_CYCLES: Final = 0
"""The extra cycles of one pass of an inner loop, for equal work, that are no regression."""
Part = Literal["decode", "prefill"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
Figure = Literal["vmem", "decode", "prefill"]
FIGURES: Final[tuple[Figure, ...]] = get_args(Figure)
"""Earlier results may lack `temporary`, which is compared too."""


def load(path: Path) -> list[CompiledData]:
    """The `targets` of an earlier result. Raises InvalidInput if there are none in the file."""
    try:
        data = json.loads(path.read_bytes().decode("utf-8"), parse_constant=no_number)
    except OSError as error:
        raise _bad(path, error.strerror or type(error).__name__) from None
    except RecursionError:
        raise _bad(path, "lists or objects that are nested too deeply") from None
    except ValueError:
        raise _bad(path, "text that is no JSON in UTF-8") from None
    found = data.get("targets") if isinstance(data, dict) else None
    if not isinstance(found, list) or not found:
        raise _bad(path, "no list of targets")
    targets: list[CompiledData] = []
    for number, one in enumerate(found, start=1):
        if not _is_target(one):
            raise _bad(path, f"target {number}, which lacks a field or has one of another type")
        targets.append(one)
    return targets


def _bad(path: Path, seen: str) -> InvalidInput:
    return InvalidInput(
        f"--baseline {path}",
        seen=seen,
        allowed="a JSON file with `targets`, as --json writes it",
        remedy="Give the result of a run with --target.",
    )


def _is_target(one: object) -> TypeGuard[CompiledData]:
    """Whether what is compared of it is there; the rest is not looked at."""
    if not isinstance(one, dict) or not {*KEY, *FIGURES, "verdict"} <= one.keys():
        return False
    versions = one.get("versions", {})
    return (
        all(type(one[name]) in (str, int) for name in KEY)
        and type(one.get("append", False)) is bool
        and one["verdict"] in VERDICTS
        and all(_is_count(one.get(name)) for name in ("vmem", "temporary"))
        and all(one[part] is None or _is_pass(one[part]) for part in PARTS)
        and isinstance(versions, dict)
        and all(isinstance(value, str) for value in versions.values())
    )


def _is_count(one: object) -> bool:
    return one is None or type(one) is int


def _is_pass(one: object) -> bool:
    names = ("cycles", "cells", "tokens")
    return isinstance(one, dict) and all(
        type(one.get(name)) is int and 0 < one[name] < 1 << 63 for name in names
    )


def regressions(earlier: Sequence[CompiledData], now: Sequence[CompiledData]) -> list[str]:
    """A sentence for every grid point that is lost, or takes more vector memory or cycles."""
    return [text for before, after in _pairs(earlier, now) for text in _worse(before, after)]


def not_compared(earlier: Sequence[CompiledData], now: Sequence[CompiledData]) -> list[str]:
    """Figures of the baseline that this run lacks, and differing compiler versions."""
    present = {_key(one) for one in now}
    gone = [f"{_name(one)}: not in this run" for one in earlier if _key(one) not in present]
    unsaid = [text for before, after in _pairs(earlier, now) for text in _unsaid(before, after)]
    return [*gone, *unsaid, *_compilers(earlier, now)]


def _pairs(
    earlier: Sequence[CompiledData], now: Sequence[CompiledData]
) -> Iterator[tuple[CompiledData, CompiledData]]:
    known = {_key(one): one for one in earlier}
    for after in now:
        if _key(after) in known:
            yield known[_key(after)], after


def _key(one: CompiledData) -> tuple[str | int, ...]:
    return (*(one[name] for name in KEY), one.get("append", False))


def _name(one: CompiledData) -> str:
    appends = ", appending" if one.get("append", False) else ""
    return f"{one['shape']} {one['kv']} page {one['page_size']} on {one['chip']}{appends}"


def _worse(before: CompiledData, after: CompiledData) -> Iterator[str]:
    name = _name(after)
    if before["verdict"] == "ok" and after["verdict"] in {"fails", "refused"}:
        yield f"{name}: compiled, and now it {_now(after)}"
    if before["verdict"] != "ok" or after["verdict"] != "ok":
        return
    had, has = before["vmem"], after["vmem"]
    if had is not None and has is not None and has > had + MORE_BYTES:
        yield f"{name}: {has} bytes of vector memory, before {had}"
    kept, keeps = before.get("temporary"), after.get("temporary")
    if kept is not None and keeps is not None and keeps > kept + MORE_BYTES:
        yield f"{name}: {keeps} temporary bytes in main memory, before {kept}"
    for part in PARTS:
        took, takes = before[part], after[part]
        if took is not None and takes is not None and _slower(took, takes):
            yield f"{name}: {part} takes {_cost(takes)}, before {_cost(took)}"


def _now(after: CompiledData) -> str:
    verb = "fails" if after["verdict"] == "fails" else "is refused"
    return f"{verb}: {after['reason']}"


def _slower(before: PassData, after: PassData) -> bool:
    """More cycles for the same work: integers, multiplied with the other's size."""
    return after["cycles"] * _work(before) > (before["cycles"] + MORE_CYCLES) * _work(after)


def _work(one: PassData) -> int:
    """KV tokens times queries of a pass: larger blocks of queries are no regression."""
    return one["cells"] * one["tokens"]


def _cost(one: PassData) -> str:
    each = one["cycles"] / one["cells"]
    return f"{one['cycles']} cycles for {one['cells']} KV tokens ({each:.3f} each)"


def _unsaid(before: CompiledData, after: CompiledData) -> Iterator[str]:
    name = _name(after)
    if before["verdict"] == "ok" and after["verdict"] == "undecided":
        yield f"{name}: compiled, and now it is undecided: {after['reason']}"
    if before["verdict"] != "ok" or after["verdict"] != "ok":
        return
    for figure in FIGURES:
        if before[figure] is not None and after[figure] is None:
            yield f"{name}: {figure} was known, and now it is not"


def _compilers(earlier: Sequence[CompiledData], now: Sequence[CompiledData]) -> Iterator[str]:
    """The differing versions; a regression may be due to the compiler."""
    seen = [
        {tuple(sorted(one.get("versions", {}).items())) for one in part} - {()}
        for part in (earlier, now)
    ]
    if all(seen) and seen[0] != seen[1]:
        texts = [
            " and ".join(sorted(", ".join(map(" ".join, one)) for one in part)) for part in seen
        ]
        yield f"the compiler is another one: {texts[0]} before, {texts[1]} now"
