"""Recordings to judge: of the specification, of a toy, or with one value altered."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spec_engine import SpecEngine

from conformance.fuzzing.state_machine import Campaign, Session, spread
from conformance.lockstep.lockstep import Violation
from conformance.protocol import Engine
from conformance.recordings.fast_table import ACTIONS, APPENDING
from conformance.recordings.format import Line, line_from_data
from conformance.recordings.recorder import Recorder
from conformance.recordings.validate import header_and_lines
from spec.machines import actions as act
from spec.vocabulary import STANDARD, Capacity, CleanupMode, Geometry, default_limits


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


def random_steps(engine: Callable[[], Engine], level: str, seed: int) -> Iterator[Session]:
    """The session after each of the random steps that the fuzzer takes at this level."""
    session = Session(Campaign(make=engine), level)
    draws = random.Random(seed)
    plans = list(session.rules.values())
    for _ in range(60):
        plan, drawn = draws.choice(plans), draws.randrange(2**24)
        session.take(plan(session, spread(drawn)))
        yield session


def recorded(path: Path, engine: Engine, level: str, seed: int) -> Path:
    """Record a random run to a file. A violation by the engine does not end the run."""
    with path.open("w", encoding="utf-8") as out:
        recorder = Recorder(engine, out)
        try:
            for _ in random_steps(lambda: recorder, level, seed):
                pass
        except Violation:
            pass
    return path


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


def lines(path: Path) -> list[Line]:
    """The lines of a recording."""
    with path.open("rb") as file:
        return list(header_and_lines(file, path)[1].read(line_from_data))
