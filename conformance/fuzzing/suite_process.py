"""The conformance suite in a process of its own; its answers count only if the run is complete.

The engine under test may end the process that it runs in, or hang in compiled code. The process of
pytest then goes on, and the result of every clause says what happened.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from attrs import asdict, frozen

from conformance.fuzzing.suite import Answer, Where
from conformance.isolation.wire import invalid_from_data, invalid_to_data
from conformance.runtime import processes
from spec.vocabulary import Geometry, InvalidInput

KEY: Final = "answers"


@frozen(kw_only=True)
class Job:
    """The arguments of `suite.judge` as plain data.

    seconds: the time to fuzz; 0 only checks that the engine can be found. hang_seconds: how long a
    step may take. path: further folders in which modules are looked for.
    """

    where: Where
    geometry: Geometry
    alone: bool
    seconds: float
    seed: int
    known: tuple[str, ...]
    hang_seconds: float
    path: tuple[str, ...]


class Ended(Exception):
    """The process ended without answers."""


def answers(job: Job) -> dict[str, Answer]:
    """The answer for each clause; {} if the job has 0 seconds.

    Raises InvalidInput if there is no such engine, and Ended if the process gives no answers.
    """
    process = processes.start(__name__, json.dumps(asdict(job)), output=subprocess.PIPE)
    assert process.stdout is not None
    try:
        told = process.stdout.read()
        status = process.wait()
    finally:
        processes.end(process)
    try:
        found: dict[str, Any] = json.loads(told)
    except ValueError:
        raise Ended(f"the suite's process ended with status {status} without answers") from None
    if "invalid" in found:
        raise invalid_from_data(found["invalid"])
    return {name: Answer(**answer) for name, answer in found[KEY].items()}


def main(text: str) -> None:
    """Judge the engine and write the answers to standard output, which it cannot reach itself."""
    given = json.loads(text)
    sizes, where = Geometry(**given["geometry"]), Where(**given["where"])
    job = Job(**given | {"geometry": sizes, "where": where})
    told = os.dup(1)
    os.dup2(2, 1)
    sys.path.extend(path for path in job.path if path not in sys.path)
    try:
        found: dict[str, object] = {KEY: _judged(job, told)}
    except InvalidInput as error:
        found = {"invalid": invalid_to_data(error)}
    _tell(told, found)


def _judged(job: Job, told: int) -> dict[str, object]:
    from conformance.fuzzing.suite import judge, stuck
    from conformance.history import History
    from conformance.isolation.placement import factory_of
    from conformance.lockstep.watchdog import Watchdog, patience_of

    factory = factory_of(**asdict(job.where))
    patience = patience_of(job.hang_seconds)
    if not job.seconds:
        return {}

    def on_hang(history: History, message: str) -> None:
        """Write the answers and end the process: compiled code cannot be interrupted."""
        _tell(told, {KEY: _plain(stuck(history, message))})
        os._exit(1)

    with Watchdog(on_hang) as watchdog:
        found = judge(
            job.where,
            geometry=job.geometry,
            alone=job.alone,
            seconds=job.seconds,
            seed=job.seed,
            known=frozenset(job.known),
            patience=patience,
            watchdog=watchdog,
            factory=factory,
        )
    return _plain(found)


def _plain(found: Mapping[str, Answer]) -> dict[str, object]:
    return {name: asdict(answer) for name, answer in found.items()}


def _tell(told: int, found: Mapping[str, object]) -> None:
    with os.fdopen(told, "w", encoding="utf-8") as out:
        out.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
