"""Scoring the kit: every method at every plant it could see, and at the engine without a bug.

The tries are made by one process per plant, see `conformance.seeded_bugs.scoring.worker`; this
module starts them, waits for them, and adds up their results.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Final

from attrs import asdict, frozen

from conformance.runtime import processes
from conformance.runtime.processes import Process
from conformance.seeded_bugs import Plant
from conformance.seeded_bugs.scoring.attempts import CLEAN, Attempt, Attempts, Key
from conformance.seeded_bugs.scoring.blind import BLIND
from conformance.seeded_bugs.scoring.methods import Method
from conformance.seeded_bugs.scoring.rows import BlindRow, CleanFinding, Row, Tally
from conformance.seeded_bugs.scoring.worker import Job, pending

WORKER: Final = "conformance.seeded_bugs.scoring.worker"
POLL_SECONDS: Final = 0.5
STALL_SECONDS: Final = 600.0
"""A process that adds no try for so long is ended, and the current try is undecided."""
FUZZ_SHARE: Final = 0.95
FUZZ_SECONDS: Final = 30.0
FUZZ_MEDIAN_SECONDS: Final = 5.0
MOST_SHRUNK: Final = 8

Start = Callable[[Job], Process]


def start(job: Job) -> Process:
    """Start the process that does a job."""
    return processes.start(WORKER, json.dumps(asdict(job)))


@frozen(kw_only=True)
class Plan:
    """The parameters of a run. names: plants, or CLEAN, in order."""

    names: tuple[str, ...]
    methods: Mapping[str, Method]
    seeds: int
    steps: int

    def left(self, attempts: Attempts) -> list[Key]:
        """The tries that are not made yet."""
        return [key for name in self.names for key in self.left_of(name, attempts)]

    def left_of(self, name: str, attempts: Attempts) -> list[Key]:
        """The tries of one plant that are not made yet."""
        return pending(name, self.methods, seeds=self.seeds, attempts=attempts)


def make_all(
    plan: Plan,
    attempts: Attempts,
    *,
    update: Callable[[float, str], None],
    start: Start,
) -> None:
    """Make every try that is left. Each is in the file as soon as it is made."""
    total = len(plan.left(attempts))
    for name in plan.names:
        while left := plan.left_of(name, attempts):
            job = Job(
                plant=name,
                methods=tuple(plan.methods),
                seeds=plan.seeds,
                steps=plan.steps,
                results=str(attempts.path),
                stamp=attempts.stamp,
            )
            ended = _wait(
                start(job),
                attempts,
                lambda name=name: update(total - len(plan.left(attempts)), name),  # type: ignore[misc]
            )
            if plan.left_of(name, attempts) == left:
                why = f"the process that tried it ended with status {ended}"
                attempts.add(left[0], Attempt(caught=False, steps=0, seconds=0.0, error=why))


def _wait(process: Process, attempts: Attempts, tell: Callable[[], None]) -> int:
    """Wait for the end of a process; end it if it stalls or this process is interrupted."""
    known, since = len(attempts.made), time.monotonic()
    try:
        while process.poll() is None and time.monotonic() - since < STALL_SECONDS:
            time.sleep(POLL_SECONDS)
            attempts.refresh()
            tell()
            if len(attempts.made) != known:
                known, since = len(attempts.made), time.monotonic()
    finally:
        processes.end(process)
        status = process.wait()
        attempts.refresh()
    return status


def row(plant: Plant, plan: Plan, attempts: Attempts) -> Row:
    """The row of one plant. Its numbers are those of fuzzing, if fuzzing can see the plant."""
    by = {
        name: found
        for name, method in plan.methods.items()
        if method.run is not None and method.only is None and method.applies(name, plant)
        for found in [_tally(plant.id, name, plan, attempts)]
    }
    main = by.get("fuzz") or min(by.values(), key=lambda one: -one["share"], default=None)
    return {
        "id": plant.id,
        "mechanism": plant.mechanism,
        "thread": plant.thread,
        "clause": plant.clause,
        "first_sight": plant.first_sight,
        "caught": any(one["caught"] for one in by.values()),
        "by": [name for name, one in by.items() if one["caught"]],
        "steps": main and main["steps"],
        "seconds": main and main["seconds"],
        "share": main and main["share"],
        "shrunk": main and main["shrunk"],
        "changed": _changed(plant, attempts),
        "decided": all(
            one["tries"] == plan.methods[name].tries(plan.seeds) and not one["errors"]
            for name, one in by.items()
        ),
        "methods": {
            name: by.get(name) or _why_not(name, plan, plant)
            for name, method in plan.methods.items()
            if method.only is None
        },
    }


def _why_not(name: str, plan: Plan, plant: Plant) -> str:
    method = plan.methods[name]
    return "not applicable" if not method.applies(name, plant) else "not checked"


def _tally(plant: str, method: str, plan: Plan, attempts: Attempts) -> Tally:
    """The tally of one method at one plant."""
    tries = [
        attempts.made[plant, method, seed]
        for seed in range(plan.seeds)
        if (plant, method, seed) in attempts.made
    ]
    caught = [one for one in tries if one.caught]
    soon = [one for one in caught if one.seconds <= FUZZ_SECONDS]
    shrunk = [one.shrunk for one in caught if one.shrunk is not None]
    return {
        "tries": len(tries),
        "caught": len(caught),
        "share": round(len(soon) / len(tries), 3) if tries else 0.0,
        "steps": median(one.steps for one in caught) if caught else None,
        "seconds": round(median(one.seconds for one in caught), 3) if caught else None,
        "worst": round(max(one.seconds for one in caught), 3) if caught else None,
        "shrunk": shrunk[0] if shrunk else None,
        "clauses": sorted({one.clause for one in caught if one.clause}),
        "errors": sorted({one.error for one in tries if one.error and not one.caught}),
    }


def _changed(plant: Plant, attempts: Attempts) -> bool | None:
    """Whether the bug is shown to change behaviour; None if that is not known.

    A counterexample fails with the bug and passes without it; or a method caught the plant with a
    seed with which it finds nothing in the engine without a bug.
    """
    tried = [(key, one) for key, one in attempts.made.items() if key[0] == plant.id and one.caught]
    shown = [one.changed for _, one in tried if one.changed is not None]
    if shown:
        return all(shown)
    clean = [attempts.made.get((CLEAN, *key[1:])) for key, _ in tried]
    return True if any(one and not one.caught for one in clean) else None


def clean_findings(plan: Plan, attempts: Attempts) -> tuple[int, list[CleanFinding]]:
    """The number of tries at the engine without a bug, and the findings, which are all false."""
    tries = [(key, one) for key, one in attempts.made.items() if key[0] == CLEAN]
    wanted = [(key, one) for key, one in tries if _is_planned(plan, key)]
    found = [
        CleanFinding(method=key[1], seed=key[2], clause=one.clause)
        for key, one in wanted
        if one.caught
    ]
    return len(wanted), found


def _is_planned(plan: Plan, key: Key) -> bool:
    """Whether this run tries the method and the seed: the file may have others."""
    return key[1] in plan.methods and key[2] < plan.seeds


def undecided(plan: Plan, attempts: Attempts) -> dict[str, str]:
    """The plants and blind oracles that are undecided, each with the reason."""
    nothing = {
        key[0]: one.error
        for key, one in attempts.made.items()
        if key[0] in plan.names and _is_planned(plan, key) and one.error and not one.caught
    }
    for one in blind(plan, attempts):
        if not _compared(one):
            places = f"at {one['misses']} and {one['sees']}"
            nothing[one["oracle"]] = f"it and fuzz were not both tried {places}"
    return nothing


def targets(rows: Sequence[Row]) -> dict[str, list[str]]:
    """For each target the plants that miss it; an undecided plant misses none."""
    rows = [row for row in rows if row["decided"]]
    fuzzed = [(one["id"], one["methods"].get("fuzz")) for one in rows]
    seen = [(name, tally) for name, tally in fuzzed if isinstance(tally, dict)]
    return {
        "caught by at least one method": [one["id"] for one in rows if not one["caught"]],
        f"fuzz: {FUZZ_SHARE:.0%} of the seeds within {FUZZ_SECONDS:g} s": _names(
            (name, tally["share"] < FUZZ_SHARE) for name, tally in seen
        ),
        f"fuzz: median under {FUZZ_MEDIAN_SECONDS:g} s": (
            [] if _median_seconds(seen) < FUZZ_MEDIAN_SECONDS else slow(rows)
        ),
        f"fuzz: shrunk to at most {MOST_SHRUNK} actions": _names(
            (name, tally["shrunk"] is None or tally["shrunk"] > MOST_SHRUNK) for name, tally in seen
        ),
        "shown to change behaviour": [one["id"] for one in rows if one["changed"] is not True],
    }


def blind(plan: Plan, attempts: Attempts) -> list[BlindRow]:
    """For each blind oracle that was tried: its tallies at the bug it misses and at one it sees.

    kit: the tally of fuzzing at the former.
    """
    return [
        {
            "oracle": name,
            "what": oracle.what,
            "misses": oracle.misses,
            "missed": _tally(oracle.misses, name, plan, attempts),
            "kit": _tally(oracle.misses, "fuzz", plan, attempts),
            "sees": oracle.sees,
            "seen": _tally(oracle.sees, name, plan, attempts),
        }
        for name, oracle in BLIND.items()
        if name in plan.methods and {oracle.misses, oracle.sees} <= set(plan.names)
    ]


def not_shown_blind(rows: Sequence[BlindRow]) -> list[str]:
    """The oracles that are not shown to be blind.

    Such an oracle catches the bug that it should miss, or misses the one that it should see, or
    fuzzing misses the former as well. Oracles that lack tries are in `undecided`.
    """
    return _names(
        (
            one["oracle"],
            bool(one["missed"]["caught"]) or not (one["seen"]["caught"] and one["kit"]["caught"]),
        )
        for one in rows
        if _compared(one)
    )


def _compared(blind: BlindRow) -> bool:
    """Whether there are tries of the oracle at both bugs, and of the kit."""
    return all(tally["tries"] for tally in (blind["missed"], blind["seen"], blind["kit"]))


def slow(rows: Sequence[Row]) -> list[str]:
    """The plants with a median over the target, which is meant for all of them together."""
    fuzzed = [(one["id"], one["methods"].get("fuzz")) for one in rows]
    return _names(
        (name, _seconds(tally) >= FUZZ_MEDIAN_SECONDS)
        for name, tally in fuzzed
        if isinstance(tally, dict) and tally["tries"]
    )


def _median_seconds(tallies: Sequence[tuple[str, Tally]]) -> float:
    """The median over all plants of their medians; infinite for a plant that was missed."""
    return median(_seconds(tally) for _, tally in tallies) if tallies else 0.0


def _seconds(tally: Tally) -> float:
    return math.inf if tally["seconds"] is None else tally["seconds"]


def _names(misses: Iterable[tuple[str, bool]]) -> list[str]:
    return [name for name, missed in misses if missed]
