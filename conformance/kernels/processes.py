"""The worker processes of the bench: started, watched, and killed when one hangs."""

import json
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from subprocess import DEVNULL
from typing import Final

from attrs import Factory, asdict, define, evolve, field, fields

from conformance.kernels.batches import BatchData
from conformance.kernels.compile.launch import FROM_OUTSIDE
from conformance.kernels.coverage.lines import Reached
from conformance.kernels.parallelism import cores
from conformance.kernels.trials import Covered, Job, Line
from conformance.runtime import processes
from conformance.runtime.processes import Process

WORKER: Final = "conformance.kernels.trials"
CONTROL: Final = "conformance.kernels.interpret"
POLL_SECONDS: Final = 0.05
ALONE: Final = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Each process has one core. Threads of NumPy would wait for each other, and take time for it."""
KEPT: Final = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31)}
"""glibc keeps memory that is freed: otherwise the pages of large arrays are new ones each time."""
PASSED: Final = "passed"
STALL_SECONDS: Final = 120.0
"""A kernel that has answered before hangs if it takes longer for a batch."""


@define(eq=False)
class Tried:
    """The outcome of a job. what: of a finding. batch: as JSON. text: of an exception.

    cases: batches with queries. answered: those without as well. pallas: whether it is a Pallas
    kernel. ended: "passed", "finding", "hangs" or "died"; "raised", "slow", "killed" or "broken".
    looseness: the largest error of a right batch over the probabilistic bound. loose: how many are
    beyond it; loosest: the farthest. covered: what was reached of the kernel, if that is known.
    unfollowed: why it is not. lines: what tracing reached of each of its kernels.
    longest, sequences: the longest context of a batch, and the most sequences of one. again:
    whether it is tried for the second time.
    """

    job: Job
    cases: int = 0
    ratio: float = 0.0
    ended: str = ""
    what: list[str] = Factory(list)
    batch: BatchData | None = None
    text: str = ""
    pallas: bool | None = None
    answered: int = 0
    looseness: float = 0.0
    loose: int = 0
    loosest: BatchData | None = None
    covered: Covered | None = None
    unfollowed: str = ""
    lines: list[Reached] = Factory(list)
    longest: int = 0
    sequences: int = 0
    again: bool = False

    @property
    def starved(self) -> bool:
        """Whether it had too little of the machine, or hangs."""
        return self.ended in {"hangs", "slow", "killed"}

    def begin_again(self) -> None:
        """Forget what it has found, before it is tried once more."""
        fresh = Tried(self.job, again=True)
        for one in fields(Tried):
            setattr(self, one.name, getattr(fresh, one.name))

    @property
    def undecided(self) -> bool:
        """Whether the job decides nothing: unsupported shapes, or a failure of the interpreter.

        A kernel that has started does not raise; an exception then comes from the interpreter. A
        process that was killed from outside, or had no answer when time was up, decides nothing
        either.
        """
        interpreter = self.text.startswith("JaxRuntimeError")
        raised = self.ended == "raised" and (self.cases == 0 or interpreter)
        return raised or self.ended in {"slow", "killed", "broken"}

    @property
    def wrong(self) -> bool:
        """Whether there is a finding."""
        return self.ended not in (PASSED, "") and not self.undecided

    @property
    def done(self) -> int:
        """How many of its planned batches are done; those of shrinking are not among them."""
        return self.job.cases if self.ended else min(self.cases, self.job.cases)

    def take(self, line: Line) -> None:
        """Process one line of the worker."""
        if "begin" in line:
            self.batch = line["begin"]
            lens = self.batch["lens"]
            self.longest = max(self.longest, *(cells for _, cells in lens))
            self.sequences = max(self.sequences, len(lens))
        elif "ended" in line:
            self.ended, self.text = line["ended"], line.get("text", "")
            self.what = line.get("what", [])
            self.batch = line.get("batch", self.batch)
        elif "pallas" in line:
            self.pallas = line["pallas"]
        elif "missed" in line:
            self.covered = line
        elif "lines" in line:
            self.lines.append(Reached.from_json(line["lines"]))
        elif "searching" in line:
            pass  # it is alive
        elif "unknown" in line:
            self.unfollowed = line["unknown"]
        else:
            self.answered += 1
            self.cases += bool(line["rows"])
            self._weigh(line["ratio"], line["looseness"])

    def _weigh(self, ratio: float, looseness: float) -> None:
        self.ratio = max(self.ratio, ratio)
        if ratio > 1.0:
            return
        if looseness > 1.0:
            self.loose += 1
            self.loosest = self.batch if looseness >= self.looseness else self.loosest
        self.looseness = max(self.looseness, looseness)


@define
class _Process:
    """A running worker. left: its jobs from the current one on. read: bytes of the file of that."""

    left: deque[Tried]
    handle: Process
    folder: Path
    read: int = 0
    since: float = field(factory=time.monotonic)

    @property
    def sizes(self) -> str:
        """The shape that is tried."""
        return self.left[0].job.sizes if self.left else ""

    def ended(self, stall: float) -> list[Tried]:
        """The jobs that have ended since the last call; one that stalls or dies ends as well.

        After a job that did not pass the process is ended: an error may leave the interpreter in
        any state, and the jobs that are left are to be tried without it.
        """
        gone = self.handle.poll() is not None
        found = self._refreshed()
        if found and found[-1].ended != PASSED:
            self.end()
            return found
        if gone:
            self.end()  # what it was started with is closed
        if gone and self.left:
            found.append(self._died(self.left.popleft()))
        elif not gone and time.monotonic() - self.since > stall:
            self.end()
            if self.left:  # otherwise all is answered, and threads go on
                found.append(self._stalled(self.left.popleft(), stall))
        return found

    @property
    def over(self) -> bool:
        """Whether the process is gone; jobs may be left then."""
        return self.handle.poll() is not None

    def _refreshed(self) -> list[Tried]:
        """Process the complete lines of each job, up to one that did not pass.

        Returns those that have ended.
        """
        found: list[Tried] = []
        while self.left:
            tried, path = self.left[0], Path(_results(self.folder, self.left[0]))
            if path.exists():
                self._take_lines(tried, path)
            if not tried.ended:
                break
            found.append(self.left.popleft())
            self.read = 0
            if tried.ended != PASSED:
                break
        return found

    def _take_lines(self, tried: Tried, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self.read)
            whole, _, _ = file.read().rpartition(b"\n")
        if whole:
            self.read += len(whole) + 1
            self.since = time.monotonic()
            for line in whole.splitlines():
                tried.take(json.loads(line))

    def _stalled(self, tried: Tried, stall: float) -> Tried:
        tried.ended = "hangs" if tried.answered else "slow"
        tried.text = f"nothing for {stall:g} s"
        return tried

    def _died(self, tried: Tried) -> Tried:
        said = _errors(self.folder).read_text("utf-8", "replace")
        status = self.handle.returncode
        tried.ended = "killed" if -status in FROM_OUTSIDE else "died"
        last = (said.strip().splitlines() or ["no word"])[-1]
        tried.text = f"status {status}: {last}"
        return tried

    def end(self) -> None:
        """Kill it."""
        processes.end(self.handle)


def make_all(
    every: Sequence[Tried],
    *,
    update: Callable[[float, str], None],
    stall: float = STALL_SECONDS,
    enough: Callable[[Tried], bool] = lambda _tried: False,
) -> None:
    """Run these jobs, as many at once as there are cores; each records its outcome so far.

    Jobs of one program share a process, so that it is compiled once. The first comes first, and
    then the heaviest, so that no core waits for the last one at the end. A job that starved, or
    seemed to hang, is tried once more, since other work may be the reason. enough: whether nothing
    more is to be tried after the end of this one.
    """
    most, names = cores(), count()
    running: list[_Process] = []
    with tempfile.TemporaryDirectory() as folder:
        waiting = deque(_by_program(every))
        try:
            while running or waiting:
                while len(running) < most and waiting:
                    running.append(_start(waiting.popleft(), Path(folder) / str(next(names))))
                for tried in [tried for one in running for tried in one.ended(stall)]:
                    if tried.starved and not tried.again:
                        tried.begin_again()
                        waiting.append([tried])
                    elif enough(tried):
                        return
                waiting += [[*one.left] for one in running if one.over and one.left]
                running = [one for one in running if not one.over]
                done = sum(tried.done for tried in every)
                update(done, running[0].sizes if running else "")
                time.sleep(POLL_SECONDS)
        finally:
            for one in running:
                one.end()


def _by_program(every: Sequence[Tried]) -> list[list[Tried]]:
    """Those of each program, in the order in which they are started."""
    found: dict[object, list[Tried]] = {}
    for tried in every:
        found.setdefault(tried.job.program, []).append(tried)
    first, *others = found.values()
    return [first, *sorted(others, key=lambda some: -sum(one.job.weight for one in some))]


def _start(some: Sequence[Tried], folder: Path) -> _Process:
    """Start a worker for these jobs. folder: for its files, not yet there."""
    folder.mkdir()
    jobs = [asdict(evolve(one.job, results=_results(folder, one))) for one in some]
    quiet = dict(os.environ) | {"JAX_PLATFORMS": "cpu"} | ALONE | KEPT
    with _errors(folder).open("wb") as errors:
        handle = processes.start(
            WORKER, json.dumps(jobs), output=DEVNULL, errors=errors, environment=quiet
        )
    return _Process(deque(some), handle, folder)


def _results(folder: Path, tried: Tried) -> str:
    """The file of a job, which no other has."""
    return str(folder / str(id(tried)))


def _errors(folder: Path) -> Path:
    return folder / "errors"


def sees_races() -> bool:
    """The control: whether the interpreter detects a real race."""
    return processes.finish(processes.start(CONTROL), seconds=STALL_SECONDS) == 0
