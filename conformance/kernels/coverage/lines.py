"""The lines of a kernel that tracing reaches: its static branches, which leave no trace in it.

A line that no job reaches belongs to a kernel that nobody has tried.
"""

import dis
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypedDict

from attrs import define, field, frozen

Places = Mapping[str, Sequence[int]]
"""Lines by the path of their file."""


class LinesData(TypedDict):
    """What was reached of a kernel, as plain data."""

    reached: dict[str, list[int]]
    entered: dict[str, list[int]]


@frozen
class Reached:
    """reached: lines that were traced. entered: all lines of the functions that were."""

    reached: Places
    entered: Places

    def to_json(self) -> LinesData:
        """As plain data, for `from_json`."""
        return LinesData(reached=_listed(self.reached), entered=_listed(self.entered))

    @classmethod
    def from_json(cls, held: LinesData) -> "Reached":
        """The inverse of `to_json`."""
        return cls(held["reached"], held["entered"])


def _listed(places: Places) -> dict[str, list[int]]:
    return {name: list(lines) for name, lines in places.items()}


@define
class _Watch:
    """code: of each function of the kernel's folder that was entered. lines: that were reached.

    inside: of each file that was met, whether it is in the folder; there are calls by the million.
    """

    folder: Path
    code: set[CodeType] = field(factory=set)
    lines: set[tuple[str, int]] = field(factory=set)
    inside: dict[str, bool] = field(factory=dict)

    def call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """Begin to watch a function, if it is in the folder of the kernel."""
        name = frame.f_code.co_filename
        if name not in self.inside:
            self.inside[name] = Path(name).parent == self.folder
        if not self.inside[name]:
            return None
        self.code.add(frame.f_code)
        return self._line

    def _line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def found(self) -> Reached:
        return Reached(
            _by_file(self.lines),
            _by_file((one.co_filename, line) for one in self.code for line in _executable(one)),
        )


def _executable(code: CodeType) -> Iterator[int]:
    """The lines of a function but for that of its name."""
    for _, line in dis.findlinestarts(code):
        if line != code.co_firstlineno:
            yield line


def _by_file(places: Iterable[tuple[str, int]]) -> Places:
    found: dict[str, set[int]] = {}
    for name, line in places:
        found.setdefault(name, set()).add(line)
    return {name: tuple(sorted(lines)) for name, lines in sorted(found.items())}


@contextmanager
def watched(found: list[Reached]) -> Iterator[None]:
    """Add what is reached of each kernel that is traced inside this block.

    A kernel that imported `pallas_call` by its own name before is not watched.
    """
    from jax.experimental import pallas as pl

    right = pl.pallas_call

    def pallas_call(kernel: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return right(partial(_traced, kernel, found), *given, **named)

    setattr(pl, "pallas_call", pallas_call)  # noqa: B010 - mypy takes it for a constant
    try:
        yield
    finally:
        setattr(pl, "pallas_call", right)  # noqa: B010 - as above


def _traced(kernel: Callable[..., Any], found: list[Reached], *refs: Any, **named: Any) -> Any:
    watch, before = _Watch(Path(_code(kernel).co_filename).parent), sys.gettrace()
    sys.settrace(watch.call)
    try:
        return kernel(*refs, **named)
    finally:
        sys.settrace(before)
        found.append(watch.found())


def _code(kernel: Callable[..., Any]) -> CodeType:
    while isinstance(kernel, partial):
        kernel = kernel.func
    return getattr(kernel, "__wrapped__", kernel).__code__


def missed(every: Iterable[Reached]) -> tuple[int, list[str]]:
    """The number of lines of all functions that were entered, and those that nothing reached."""
    entered: set[tuple[str, int]] = set()
    reached: set[tuple[str, int]] = set()
    for one in every:
        entered |= {(name, line) for name, lines in one.entered.items() for line in lines}
        reached |= {(name, line) for name, lines in one.reached.items() for line in lines}
    left = sorted(entered - reached)
    return len(entered), [f"{name.rpartition('/')[2]}:{line}" for name, line in left]
