"""Shrinking of an illegal recording, within a time limit, to a short one that is still illegal.

The engine is not available, so shrinking only removes lines. The remaining lines must form a
recording whose first illegal line is its last, for the same clause. Every candidate is judged as a
recording of its own.
"""

import time
from collections.abc import Container, Iterable, Sequence
from itertools import islice
from typing import Final

from attrs import evolve, frozen

from conformance.recordings.answers import Illegal
from conformance.recordings.format import Header, Line
from conformance.recordings.judge import judge
from spec.machines import actions as act
from spec.rung import Machine
from spec.vocabulary import INVALID

MOST: Final = 200_000
"""Greatest number of lines that are shrunk."""


@frozen
class Least:
    """The shortest recording found. done: whether every line of it is needed."""

    header: Header
    lines: tuple[Line, ...]
    done: bool


def shortest(
    header: Header, past: Iterable[Line], *, machine: Machine | None, seconds: float
) -> Least | None:
    """The shortest illegal recording that is found in this time; None if there are too many lines.

    past: the lines up to the illegal one, which is the last. machine: as in `judge`. seconds: the
    time limit.
    """
    lines = list(islice(past, MOST + 1))
    if len(lines) > MOST:
        return None
    deadline = time.monotonic() + seconds
    clause = _last_is_wrong(header, lines, machine=machine)
    assert clause is not None
    headers = (header,) if machine else (_promising_nothing(header), header)
    for promised in headers:
        search = _Search(promised, clause, deadline, machine=machine)
        for guess in (_lifetimes(lines, _slots(lines[-1])), _lifetimes(lines), lines):
            if search.fails(guess):
                return search.shrink(guess)
    raise AssertionError("the whole recording is illegal")


def _promising_nothing(header: Header) -> Header:
    """The header without a policy and without `shows`: lines can then be removed."""
    return evolve(header, policy="any", shows=())


@frozen
class _Search:
    header: Header
    clause: str
    deadline: float
    machine: Machine | None

    def fails(self, lines: Sequence[Line]) -> bool:
        return _last_is_wrong(self.header, lines, machine=self.machine) == self.clause

    def shrink(self, lines: Sequence[Line]) -> Least:
        """Remove ever shorter runs of lines, but never the last line."""
        best, size = list(lines), max(1, len(lines) // 2)
        while True:
            removed, start = False, 0
            while start < len(best) - 1:
                if time.monotonic() > self.deadline:
                    return Least(self.header, tuple(best), done=False)
                end = min(start + size, len(best) - 1)
                fewer = best[:start] + best[end:]
                if self.fails(fewer):
                    best, removed = fewer, True
                else:
                    start = end
            if size == 1 and not removed:
                return Least(self.header, tuple(best), done=True)
            size = size if removed and size == 1 else max(1, size // 2)


def _last_is_wrong(header: Header, lines: Sequence[Line], *, machine: Machine | None) -> str | None:
    """The clause that the last line violates; None if it is legal or an earlier line is illegal."""
    taking = judge(header, machine=machine)
    for number, line in enumerate(lines, start=1):
        try:
            taking.take(line)
        except Illegal as illegal:
            return illegal.difference.clause if number == len(lines) else None
    return None


def _lifetimes(lines: Sequence[Line], only: Container[int] = range(INVALID)) -> list[Line]:
    """The lines about the slots in use at the end, each from the start of its last sequence.

    only: the slots to keep.
    """
    began: dict[int, int] = {}
    touching: list[tuple[int, ...]] = []
    for number, line in enumerate(lines):
        slots = _slots(line)
        touching.append(slots)
        for slot in slots[:1] if isinstance(line.step, act.Reserve) else ():
            began[slot] = number
        for slot in slots[1:] if isinstance(line.step, act.Clone) else ():
            began[slot] = number
        if isinstance(line.step, act.Free) and line.refused is None and number < len(lines) - 1:
            began.pop(slots[0], None)
    kept = [
        _only(line, [slot for slot in began if slot in only])
        for number, (line, slots) in enumerate(zip(lines[:-1], touching, strict=False))
        if any(slot in only and number >= began.get(slot, len(lines)) for slot in slots)
    ]
    return [*kept, lines[-1]]


def _slots(line: Line) -> tuple[int, ...]:
    """The slots that a line is about. A slot that the engine chose is taken from the result."""
    chosen = line.result if isinstance(line.result, int) else -1
    match line.step:
        case act.Allocate(batch) | act.Write(batch):
            return tuple(slot for slot, _ in filter(None, batch))
        case act.Reserve(slot):
            return (slot if isinstance(slot, int) else chosen,)
        case act.Clone(parent, child):
            return (parent, chosen if child is None else child)
        case act.Free(int(slot)) | act.Assign(slot) | act.Enqueue(slot) | act.Purge(slot):
            return (slot,)
        case _:
            return ()


def _only(line: Line, slots: Container[int]) -> Line:
    """A line with its batch cut to these slots; a line that is cut loses its observed values."""
    match line.step:
        case act.Allocate(batch) | act.Write(batch):
            kept = tuple(entry for entry in batch if entry is None or entry[0] in slots)
            if kept == batch:
                return line
            return line._replace(step=evolve(line.step, batch=kept), saw={}, result=None)
        case _:
            return line
