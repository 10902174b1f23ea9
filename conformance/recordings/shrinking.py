"""Shrinking of an illegal recording, within a time limit, to a short one with the same cause.

The engine is not available, so shrinking only removes lines, and observed values. The rest must
form a recording whose first illegal line is its last, for the same cause: see `Cause`. Every
candidate is judged as a recording of its own. Values that are not the cause are removed early: the
number of free pages, say, is right only after all that happened, whatever it has to do with it.
"""

import time
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from attrs import evolve, frozen

from conformance.history import Attend, PoisonDead
from conformance.lockstep.comparer import Difference
from conformance.recordings.answers import NOT_SHOWN, Illegal
from conformance.recordings.format import FOLLOWED, Header, Line
from conformance.recordings.judge import Judge, judge
from conformance.recordings.slots import slots_of
from spec.fields import BY_NAME
from spec.machines import actions as act
from spec.rung import Machine
from spec.vocabulary import INVALID

MOST: Final = 200_000
"""Greatest number of lines that are shrunk."""

Entry = tuple[str, int]
"""A field, and a slot or page."""


@frozen
class Least:
    """The shortest recording found, with the same cause. done: whether every line is needed.

    numbers: of its lines in the recording that was shrunk.
    """

    header: Header
    lines: tuple[Line, ...]
    numbers: tuple[int, ...]
    done: bool


class Kept(NamedTuple):
    """A line, and its number in the file."""

    number: int
    line: Line


def shortest(
    header: Header, past: Iterable[Line], *, first: int, machine: Machine | None, seconds: float
) -> Least | None:
    """The shortest illegal recording that is found in this time; None if there are too many lines.

    past: the lines up to the illegal one, which is the last. first: the number of the first one.
    machine: as in `judge`. seconds: the time limit.
    """
    lines = list(islice(past, MOST + 1))
    if len(lines) > MOST:
        return None
    deadline = time.monotonic() + seconds
    told = _illegal(judge(header, machine=machine), lines)
    assert told is not None
    watch = _watched(told, lines[-1])
    every = [Kept(number, line) for number, line in enumerate(lines, start=first)]
    guesses = (_lifetimes(every, slots_of(lines[-1])), _lifetimes(every), every)
    cause = _cause(header, lines, machine, watch)
    for promised in (*_promising_less(header, told), header):
        search = _Search(promised, machine, watch, cause, deadline)
        for guess in (kept for past in guesses for kept in (_changing(past), past)):
            for shown in (_showing_less(guess, told, promised), guess):
                if search.fails(shown):
                    return search.shrink(shown)
    raise AssertionError("the whole recording is illegal")


def _promising_less(header: Header, found: Difference) -> list[Header]:
    """The header with only the fields in `shows` that are needed, first without its policy.

    Lines and values can then be removed. Needed are the field that is not shown, and those from
    which it is read what the engine did unasked.
    """
    needed = FOLLOWED if header.unasked else frozenset()
    needed |= {_field(found)} if found.seen == NOT_SHOWN else frozenset()
    less = evolve(header, shows=tuple(name for name in header.shows if name in needed))
    return [evolve(less, policy="any"), less]


def _field(found: Difference) -> str:
    """The field of a wrong entry; another word if it is no entry."""
    return found.what.partition("[")[0]


def _showing_less(lines: Sequence[Kept], found: Difference, header: Header) -> list[Kept]:
    """The lines with the field that is wrong, those that are promised, and the rows.

    The last line has of the field that is wrong that entry alone. Rows name the pages that an
    engine chose.
    """
    kept = {"rows", _field(found), *header.shows}
    fewer = [Kept(number, _with_fields(line, kept)) for number, line in lines]
    number, last = fewer[-1]
    if _field(found) in last.saw and found.seen != NOT_SHOWN:
        ((name, index),) = _entries(found)
        saw = {**last.saw, name: {index: last.saw[name][index]}}
        fewer[-1] = Kept(number, last._replace(saw=saw))
    return fewer


def _with_fields(line: Line, kept: Container[str]) -> Line:
    """A line with these observed fields alone."""
    if all(name in kept for name in line.saw):
        return line
    return line._replace(saw={name: value for name, value in line.saw.items() if name in kept})


@frozen
class Cause:
    """Why the last line of a recording is illegal.

    difference: the error, in the terms of the line. earlier: for each entry of `_watched`, its
    expected value before that line, and whether it ever had the watched value. So a use after a
    release keeps the release, and a count that was not lowered keeps the clone that raised it.
    """

    difference: Difference
    earlier: tuple[tuple[object, bool], ...]


@frozen
class _Search:
    header: Header
    machine: Machine | None
    watch: Mapping[Entry, object]
    cause: Cause | None
    deadline: float

    def fails(self, kept: Sequence[Kept]) -> bool:
        lines = [one.line for one in kept]
        return _cause(self.header, lines, self.machine, self.watch) == self.cause

    def _without_one_sequence(self, lines: Sequence[Kept]) -> list[Kept] | None:
        """The lines without a sequence that the cause does not need; None if it needs them all."""
        for at in range(len(lines) - 1):
            fewer = _without_sequence(lines, at)
            if len(fewer) < len(lines) and time.monotonic() < self.deadline and self.fails(fewer):
                return fewer
        return None

    def _least(self, kept: Sequence[Kept], *, done: bool) -> Least:
        numbers, lines = zip(*kept, strict=True)
        return Least(self.header, lines, numbers, done=done)

    def shrink(self, lines: Sequence[Kept]) -> Least:
        """Remove ever shorter runs of lines, but never the last line."""
        best, size = list(lines), max(1, len(lines) // 2)
        while True:
            removed, start = False, 0
            while start < len(best) - 1:
                if time.monotonic() > self.deadline:
                    return self._least(best, done=False)
                end = min(start + size, len(best) - 1)
                fewer = best[:start] + best[end:]
                if self.fails(fewer):
                    best, removed = fewer, True
                else:
                    start = end
            if size == 1 and not removed:
                shorter = self._without_one_sequence(best)
                if shorter is None:
                    return self._least(best, done=time.monotonic() <= self.deadline)
                best = shorter
            size = size if removed and size == 1 else max(1, size // 2)


def _without_sequence(lines: Sequence[Kept], at: int) -> list[Kept]:
    """The lines without those of the sequence that begins at one of them; all if none does."""
    slot = _begun(lines[at].line)
    if slot is None:
        return list(lines)
    kept = list(lines[:at])
    for place, (number, line) in enumerate(lines[at + 1 : -1], start=at + 1):
        slots = slots_of(line)
        if slots == (slot,) and isinstance(line.step, act.Free) and line.refused is None:
            return [*kept, *lines[place + 1 :]]
        others = set(slots) - {slot}
        if others or not slots:
            kept.append(Kept(number, _only(line, others) if slot in slots else line))
    return [*kept, lines[-1]]


def _begun(line: Line) -> int | None:
    """The slot in which a line begins a sequence."""
    match line.step:
        case act.Reserve() | act.Clone() if line.refused is None:
            return slots_of(line)[-1]
        case _:
            return None


def _cause(
    header: Header, lines: Sequence[Line], machine: Machine | None, watch: Mapping[Entry, object]
) -> Cause | None:
    """Why the last line is illegal; None if it is legal or an earlier line is illegal.

    watch: the entries that the error is about, each with a value that it may have had before.
    """
    judging = judge(header, machine=machine)
    expected, had = judging.machine.expected, dict.fromkeys(watch, False)
    try:
        for line in lines[:-1]:
            judging.take(line)
            for entry, value in watch.items():
                had[entry] = had[entry] or expected(*entry) == value
    except Illegal:
        return None
    now = [_known(expected(*entry)) for entry in watch]
    found = _illegal(judging, lines[-1:])
    if found is None:
        return None
    found = found._replace(expected=_known(found.expected))
    return Cause(found, tuple(zip(now, had.values(), strict=True)))


def _illegal(judging: Judge, lines: Sequence[Line]) -> Difference | None:
    """The error in the first illegal line; None if all are legal."""
    for line in lines:
        try:
            judging.take(line)
        except Illegal as illegal:
            return illegal.difference
    return None


def _known(value: object) -> object:
    """A value without the numbers that stand for pages which no row has shown."""
    if isinstance(value, tuple):
        return tuple(None if isinstance(page, int) and page < 0 else page for page in value)
    return value


def _watched(found: Difference, last: Line) -> dict[Entry, object]:
    """The entries that an error is about, each with a value that it may have had before.

    They are the entry itself and its observed value; the slots of the line, which may have been in
    use; the pages of an observed row, which may have been shared; and for an observed key, what the
    slots of the line have of it.
    """
    slots = [slot for slot in slots_of(last) if slot >= 0]
    watch: dict[Entry, object] = {("used", slot): True for slot in slots}
    if found.what.startswith("indexed[") and found.seen not in ((), NOT_SHOWN):
        watch.update({(name, slot): None for name in ("tokens", "written") for slot in slots})
    for page in found.seen if isinstance(found.seen, list | tuple) else ():
        if found.what.startswith("rows[") and page in range(INVALID):
            watch["counts", page] = 2
    if isinstance(found.seen, Hashable):
        watch.update(dict.fromkeys(_entries(found), found.seen))
    return watch


def _entries(found: Difference) -> list[Entry]:
    """The entry that an error is about, if it is about one."""
    name, _, index = found.what.partition("[")
    return [(name, int(index.rstrip("]") or 0))] if name in BY_NAME else []


def _changing(lines: Sequence[Kept]) -> list[Kept]:
    """The lines without refusals, empty batches and steps of the harness, but with the last one."""
    kept = [one for one in lines[:-1] if one.line.refused is None and _changes(one.line)]
    return [*kept, lines[-1]]


def _changes(line: Line) -> bool:
    match line.step:
        case act.Allocate(batch) | act.Write(batch):
            return any(batch)
        case PoisonDead() | Attend():
            return False
        case _:
            return True


def _lifetimes(lines: Sequence[Kept], only: Container[int] = range(INVALID)) -> list[Kept]:
    """The lines about the slots in use at the end, each from the start of its last sequence.

    only: the slots to keep.
    """
    began: dict[int, int] = {}
    touching: list[tuple[int, ...]] = []
    for at, (_, line) in enumerate(lines):
        slots = slots_of(line)
        touching.append(slots)
        done = line.refused is None
        for slot in slots[:1] if done and isinstance(line.step, act.Reserve) else ():
            began[slot] = at
        for slot in slots[1:] if done and isinstance(line.step, act.Clone) else ():
            began[slot] = at
        if isinstance(line.step, act.Free) and done and at < len(lines) - 1:
            began.pop(slots[0], None)
    kept = [
        Kept(number, _only(line, [slot for slot in began if slot in only]))
        for at, ((number, line), slots) in enumerate(zip(lines[:-1], touching, strict=False))
        if any(slot in only and at >= began.get(slot, len(lines)) for slot in slots)
    ]
    return [*kept, lines[-1]]


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
