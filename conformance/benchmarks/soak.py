"""`python -m conformance.benchmarks.soak`: long recordings judged, as they are and altered.

A run of our engine is written down and repeated, each time from a reset, until there are as many
events as were asked for. It must hold; with one observed number altered in the middle, that very
line must be named. Beside the time stands that of `json.loads` for the same lines in the same run.
"""

import argparse
import json
import random
import sys
import time
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from attrs import asdict, evolve, frozen

from conformance.engines.ours import make
from conformance.files import atomic
from conformance.fuzzing.state_machine import Campaign, Session
from conformance.protocol import Engine, Profile
from conformance.recordings.answers import Found
from conformance.recordings.fast_table import ACTIONS
from conformance.recordings.recorder import Recorder
from conformance.recordings.validate import validate
from conformance.rungs.shared_generators import spread
from spec.machines.actions import Reset
from spec.vocabulary import CleanupMode, Geometry, default_limits

GEOMETRIES: Final = {
    "the sizes of kvspec fuzz": Geometry(pages=16, page_size=4, slots=4, pages_per_seq=4),
    "prefills of 128 tokens": Geometry(pages=64, page_size=16, slots=16, pages_per_seq=8),
}
"""What a line costs depends on how long it is."""
PART: Final = 5_000
"""Steps that are taken; the rest of a file are their events again."""


@frozen
class Measured:
    """events_per_second: of `validate`. over_json: its time over that of `json.loads` alone.

    bytes: of a line, on average. found: what is illegal in the recording itself. altered: the line
    of the altered value. named: the line that the validator names in that file.
    """

    events: int
    bytes: int
    events_per_second: float
    over_json: float
    found: str | None
    altered: int
    named: int | None

    @property
    def holds(self) -> bool:
        """Whether the validator says of both files what is so."""
        return self.found is None and self.altered == self.named


def measure(geometry: Geometry, events: int, *, seed: int, folder: Path) -> Measured:
    """Record, repeat, judge, alter, judge again. Files are left in the folder."""
    path, other = folder / "long.jsonl", folder / "altered.jsonl"
    part = record(folder / "part.jsonl", geometry, events=min(events, PART), seed=seed)
    repeat(part, path, events)
    started = time.perf_counter()
    outcome = validate(path)
    seconds = time.perf_counter() - started
    altered = alter(path, other, after=events // 2)
    return Measured(
        events=outcome.events,
        bytes=round(path.stat().st_size / outcome.events),
        events_per_second=round(outcome.events / seconds, 1),
        over_json=round(seconds / reading(path), 2),
        found=_text(outcome.found),
        altered=altered,
        named=None if (wrong := validate(other).found) is None else wrong.line,
    )


def _text(found: Found | None) -> str | None:
    return None if found is None else str(found)


def record(path: Path, geometry: Geometry, *, events: int, seed: int) -> Path:
    """A random run of our engine, by the moves of the fuzzer, that ends in a reset."""
    draws = random.Random(seed)
    with path.open("w", encoding="utf-8") as out:
        session = Session(Campaign(make=lambda: Recorder(_engine(geometry), out)), "lifecycle")
        rules = list(session.rules.values())
        while len(session.history) < events - 1:
            session.take(draws.choice(rules)(session, spread(draws.randrange(2**24))))
        session.take(Reset())
    return path


class _Table:
    """Our engine with the actions of a table alone, which the ledger judges."""

    def __init__(self, engine: Engine) -> None:
        self.profile: Profile = evolve(engine.profile, actions=ACTIONS)
        self.apply, self.observe = engine.apply, engine.observe


def _engine(geometry: Geometry) -> Engine:
    return _Table(make(geometry, default_limits(geometry), CleanupMode.INCREMENTAL))


def repeat(part: Path, path: Path, events: int) -> None:
    """The header, and the events as often as needed; each time they begin after a reset."""
    header, *lines = part.read_bytes().splitlines(keepends=True)
    with path.open("wb") as out:
        out.write(header)
        for done in range(0, events, len(lines)):
            out.writelines(lines[: events - done])


def alter(path: Path, other: Path, *, after: int) -> int:
    """Copy the file with one observed count of a later line one higher; the number of that line."""
    altered = 0
    with path.open(encoding="utf-8") as lines, other.open("w", encoding="utf-8") as out:
        for number, text in enumerate(lines, start=1):
            wrong = None if altered or number <= after else _one_more(text)
            out.write(wrong or text)
            if wrong:
                altered = number
    return altered


def _one_more(text: str) -> str | None:
    """The line with one count higher; None if it shows none."""
    data: dict[str, Any] = json.loads(text)
    counts = data.get("saw", {}).get("counts")
    if not counts:
        return None
    counts[next(iter(counts))] += 1
    return json.dumps(data) + "\n"


def reading(path: Path) -> float:
    """Seconds that `json.loads` takes for the lines of a file."""
    started = time.perf_counter()
    with path.open("rb") as lines:
        for line in islice(lines, 1, None):
            json.loads(line)
    return time.perf_counter() - started


def main(argv: list[str] | None = None) -> int:
    """Measure and print; 0 if the validator is right about every file."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.benchmarks.soak",
        description="Judge long recordings, as they are and with one value altered.",
        epilog="example: python -m conformance.benchmarks.soak --events 100000 --json long.json",
    )
    parser.add_argument("--events", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write one JSON object")
    options = parser.parse_args(argv)
    every = {}
    for name, geometry in GEOMETRIES.items():
        with TemporaryDirectory(prefix="kvspec-long-") as folder:
            found = measure(geometry, options.events, seed=options.seed, folder=Path(folder))
        every[name] = found
        print(f"{name}: {'holds' if found.holds else 'fails'}")
        for field, value in asdict(found).items():
            print(f"  {field}: {value}")
    holds = all(found.holds for found in every.values())
    if options.json:
        recordings = {name: asdict(found) for name, found in every.items()}
        content = {"command": "long", "verdict": "holds" if holds else "fails", **recordings}
        atomic.write(options.json, json.dumps(content, indent=2) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
