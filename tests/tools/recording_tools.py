"""Recordings to judge: of the specification, of a toy, or with one value altered."""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import evolve
from spec_engine import SpecEngine

from conformance.fuzzing.state_machine import Campaign, Session
from conformance.lockstep.lockstep import Violation
from conformance.protocol import Action, Engine
from conformance.recordings.fast_table import ACTIONS, APPENDING
from conformance.recordings.format import Header, Line, line_from_data, write
from conformance.recordings.recorder import Recorder
from conformance.recordings.validate import header_and_lines
from conformance.rungs.shared_generators import spread
from spec.fields import BY_NAME
from spec.machines import actions as act
from spec.vocabulary import (
    INVALID,
    STANDARD,
    Capacity,
    CleanupMode,
    Geometry,
    Refused,
    default_limits,
)


def table(geometry: Geometry, capacity: Capacity = STANDARD) -> SpecEngine:
    """The specification, offering only the actions of a table."""
    return _offering(geometry, ACTIONS, capacity)


def appending(geometry: Geometry, capacity: Capacity = STANDARD) -> SpecEngine:
    """The specification, offering the actions of a table and Append."""
    return _offering(geometry, APPENDING, capacity)


def drafting(geometry: Geometry) -> SpecEngine:
    """The specification, offering all actions that go with Append."""
    return _offering(geometry, APPENDING | {act.Propose, act.Commit, act.Truncate})


def _offering(
    geometry: Geometry, actions: frozenset[type], capacity: Capacity = STANDARD
) -> SpecEngine:
    limits, cleanup = default_limits(geometry), CleanupMode.INCREMENTAL
    return SpecEngine(geometry, limits, cleanup, actions=actions, capacity=capacity)


def whole(geometry: Geometry, capacity: Capacity = STANDARD) -> SpecEngine:
    """The specification, offering all actions."""
    return SpecEngine(geometry, default_limits(geometry), CleanupMode.END, capacity=capacity)


def random_steps(
    engine: Callable[[], Engine], level: str, seed: int, steps: int = 60
) -> Iterator[Session]:
    """The session after each of the random steps that the fuzzer takes at this level."""
    session = Session(Campaign(make=engine), level)
    draws = random.Random(seed)
    plans = list(session.rules.values())
    for _ in range(steps):
        plan, drawn = draws.choice(plans), draws.randrange(2**24)
        session.take(plan(session, spread(drawn)))
        yield session


def recorded(path: Path, engine: Engine, level: str, seed: int, steps: int = 60) -> Path:
    """Record a random run to a file. It ends with a violation by the engine."""
    with path.open("w", encoding="utf-8") as out:
        recorder = Recorder(engine, out)
        try:
            for _ in random_steps(lambda: recorder, level, seed, steps):
                pass
        except Violation:
            pass
    return path


def recorded_alone(path: Path, engine: Engine, actions: Iterable[Action]) -> Path:
    """Record what an engine does, whatever it does: nothing is beside it."""
    with path.open("w", encoding="utf-8") as out:
        recorder = Recorder(engine, out)
        for action in actions:
            with suppress(Refused):
                recorder.apply(action)
    return path


def renamed(path: Path, seed: int) -> Path:
    """The same recording of an engine that numbers its pages in another way, and may take any."""
    header, kept = header_of(path), lines(path)
    sizes = header.geometry
    numbers = random.Random(seed).sample(range(sizes.pages), sizes.pages)
    other = [_renamed(line, [*numbers, INVALID], sizes.page_size) for line in kept]
    target = path.with_name(f"renamed_{path.name}")
    write(target, evolve(header, policy="any"), other)
    return target


def _renamed(line: Line, numbers: list[int], size: int) -> Line:
    saw = {
        name: {numbers[at]: value for at, value in values.items()}
        if BY_NAME[name].index == "page"
        else dict(values)
        for name, values in line.saw.items()
    }
    for slot, row in saw.get("rows", {}).items():
        saw["rows"][slot] = tuple(numbers[min(page, len(numbers) - 1)] for page in row)
    result = line.result
    if isinstance(line.step, act.Allocate) and isinstance(result, list):
        result = [numbers[cell // size] * size + cell % size for cell in result]
    return line._replace(saw=saw, result=result)


def rewrite(path: Path, number: int, change: Callable[[dict[str, Any]], object]) -> None:
    """Change one line of a file, counted from 1."""
    lines = path.read_text(encoding="utf-8").splitlines()
    data = json.loads(lines[number - 1])
    change(data)
    lines[number - 1] = json.dumps(data)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def altered(path: Path) -> int:
    """Raise one count in the middle of a recording, and return the number of its line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    shows = [number for number, line in enumerate(lines, 1) if '"counts": {' in line]
    number = shows[len(shows) // 2]

    def raised(data: dict[str, Any]) -> None:
        counts = data["saw"]["counts"]
        counts[min(counts)] += 1

    rewrite(path, number, raised)
    return number


def header_of(path: Path) -> Header:
    """The header of a recording."""
    with path.open("rb") as file:
        return header_and_lines(file, path)[0]


def lines(path: Path) -> list[Line]:
    """The lines of a recording."""
    with path.open("rb") as file:
        return list(header_and_lines(file, path)[1].read(line_from_data))
