"""One worker process of the bench: a kernel on batches of one shape, with a log of each batch.

It receives a `Job` as JSON. It appends lines of JSON to its file: `begin` before each batch, so
that a hanging kernel's batch is known; then its `ratio` and `looseness`; finally how it `ended`.
"""

import json
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from attrs import define, evolve, frozen

from conformance.kernels import appending as appended
from conformance.kernels.batches import IDLE, SIZES, Arrays, Batch, Sizes, build, drawn, first
from conformance.kernels.block_sizes import Own, variants

SHRINK_SECONDS: Final = 20.0
Shares = tuple[float, float]
"""The largest error relative to the bound, and to the probabilistic bound."""
NOT_JUDGED: Final[Shares] = (0.0, 0.0)


@frozen(kw_only=True)
class Job:
    """The work of a process. kernel: as for `kernel_under_test.find`. sizes: by name.

    variant: the index in `variants`. mode: of the interpreter. mutant: a bug to plant first. plain:
    batches as in most tests of kernels, judged by their tolerance. twin: the layout to compare
    with, see `TWINS`. shrink: whether a failing batch is shrunk. append: whether the kernel writes
    the new cells, see `appending`.
    """

    kernel: str
    sizes: str
    variant: int = 0
    mode: str = "on_wait"
    cases: int = 20
    seed: int = 0
    mutant: str | None = None
    plain: bool = False
    twin: str | None = None
    shrink: bool = True
    append: bool = False
    results: str = ""

    @property
    def shape(self) -> Sizes:
        """The sizes of this name."""
        return next(sizes for sizes in SIZES if sizes.name == self.sizes)


class Wrong(AssertionError):
    """A batch on which the kernel is wrong."""


class Enough(BaseException):
    """The end of a trial: shrinking has taken its time, or the kernel raised."""


@define
class Trial:
    """The work of one process, and its finding. found: of the smallest failing batch.

    since: when the first one failed. cores: of its Pallas kernel, 0 if it has none; determined only
    with immediate copies, since several cores add only races.
    """

    job: Job
    subject: Any
    own: Own
    found: dict[str, Any] | None = None
    since: float | None = None
    cores: int | None = None

    def tell(self, **line: Any) -> None:
        """Write a line."""
        with Path(self.job.results).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def check(self, batch: Batch) -> None:
        """Try one batch. Raises Wrong if the kernel is wrong."""
        if self.since is not None and time.monotonic() - self.since > SHRINK_SECONDS:
            raise Enough
        job = self.job
        batch = evolve(batch, needles=(), far=False, plain=True) if job.plain else batch
        batch = appended.apart(job.shape, batch) if job.append else batch
        arrays = build(job.shape, batch)
        self.tell(begin=batch.to_json())
        rows = int(arrays.cu_q_lens[len(batch.lens)])
        try:
            said, shares = self._wrong(batch, arrays, rows)
        except Enough:
            if rows:
                raise
            said, shares, self.found = [], NOT_JUDGED, None
        self.tell(ratio=shares[0], looseness=shares[1], rows=rows)
        if said:
            self.since = time.monotonic() if self.since is None else self.since
            self.found = {"ended": "finding", "what": said, "batch": batch.to_json()}
            raise Wrong

    def begin(self) -> None:
        """Try the first batch; if it fails, drawing searches for a smaller one."""
        try:
            self.check(first(self.job.shape))
        except Wrong:
            if not self.job.shrink:
                raise

    def _wrong(self, batch: Batch, arrays: Arrays, rows: int) -> tuple[list[str], Shares]:
        """The errors of the answer, and its largest error relative to either bound."""
        from conformance.kernels import answers

        shape = self.job.shape
        answer, right = self._attend(shape, batch, arrays), answers.right(shape, arrays)
        if answer.out is None:
            return list(answer.said), NOT_JUDGED
        pool = self._of_pool(shape, batch, arrays, answer)
        if self.job.plain:
            return pool if right.tolerated(answer.out, rows=rows) else ["wrong"], NOT_JUDGED
        ratio, said = right.ratio(answer.out, rows=rows), [*answer.said, *pool]
        if ratio > 1.0:
            said.append(self._kind(batch))
        if self.job.twin is not None and not said:
            said = self._differs(batch, arrays, answer, right.bound)
        return said, (ratio, right.looseness(answer.out, rows=rows))

    def _of_pool(self, sizes: Sizes, batch: Batch, arrays: Arrays, answer: Any) -> list[str]:
        """The errors of the returned pool, if one is expected."""
        if not self.job.append:
            return []
        return appended.wrong(appended.task(sizes, batch, arrays), answer.pool)

    def _kind(self, batch: Batch) -> str:
        """The finding: wrong, or wrong only because of NaN behind the window."""
        from conformance.kernels import answers

        milder, shape = evolve(batch, behind=False), self.job.shape
        if milder == batch or shape.window is None:
            return "wrong"
        arrays = build(shape, milder)
        answer = self._attend(shape, milder, arrays)
        rows = int(arrays.cu_q_lens[len(milder.lens)])
        wrong = (
            answer.out is None or answers.right(shape, arrays).ratio(answer.out, rows=rows) > 1.0
        )
        return "wrong" if wrong else "reads_behind_window"

    def _differs(self, batch: Batch, arrays: Arrays, answer: Any, bound: Any) -> list[str]:
        """The errors of the twin: a finding of its own, or too large a difference."""
        from conformance.kernels import answers, metamorphic

        shape, twin = self.job.shape, str(self.job.twin)
        there, laid = (
            metamorphic.other(shape, twin),
            metamorphic.laid_out(shape, batch, arrays, twin),
        )
        found = self._attend(there, batch, laid)
        if found.out is None:
            return list(found.said)
        its = metamorphic.in_order(shape, batch, twin, answers.right(there, laid).bound)
        both = answers.Right(answer.out, *2 * (bound[: len(its)] + its,))
        ratio = both.ratio(metamorphic.in_order(shape, batch, twin, found.out), rows=len(its))
        return [*found.said, *(["twin"] if ratio > 1.0 else [])]

    def _attend(self, sizes: Sizes, batch: Batch, arrays: Arrays) -> Any:
        from conformance.kernels import interpret

        mode = interpret.Mode(self.job.mode)
        new: Mapping[str, Any] = interpret.NOTHING
        if self.job.append:
            given = appended.task(sizes, batch, arrays)
            arrays, new = given.arrays, given.new
        if self.cores is None and mode is interpret.Mode.EAGER:
            self.cores = interpret.cores(self.subject, sizes, arrays, own=self.own, new=new)
            self.tell(pallas=self.cores > 0)
        how: dict[str, Any] = {"mode": mode, "own": self.own, "cores": self.cores or 1}
        try:
            return interpret.attend(self.subject, sizes, arrays, new=new, **how)
        except Exception as error:  # whatever a foreign function raises is what is told of it
            lines = [line for line in str(error).splitlines() if line.strip()] or [""]
            text = f"{type(error).__name__}: {lines[-1].strip()}"  # of a callback: what it raised
            self.found = {"ended": "raised", "text": text, "batch": batch.to_json()}
            raise Enough from error


def run(trial: Trial) -> None:
    """Draw batches until one fails or all are tried; record the end."""
    from hypothesis import HealthCheck, Phase, given, seed, settings

    job = trial.job
    steps = variants(job.kernel, job.shape)[job.variant][1]
    phases = (Phase.generate, Phase.shrink) if job.shrink else (Phase.generate,)
    chosen = settings(
        max_examples=job.cases,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    search = seed(job.seed)(chosen(given(drawn(job.shape, steps=steps))(trial.check)))
    try:
        trial.check(IDLE)
        trial.begin()
        search()
    except (Wrong, Enough):
        pass
    except Exception as error:  # of the bench itself, or of answers that differ each time
        trial.found = trial.found or {"ended": "broken", "text": repr(error)}
    trial.tell(**(trial.found or {"ended": "passed"}))


def main() -> None:
    """Do the job that is named on the command line."""
    from conformance.kernels.kernel_under_test import appending, find
    from conformance.kernels.seeded_bugs import planted

    held: Mapping[str, Any] = json.loads(sys.argv[1])
    job = Job(**held)
    with ExitStack() as stack:
        if job.mutant is not None:
            stack.enter_context(planted(job.mutant))
        own, _ = variants(job.kernel, job.shape)[job.variant]
        run(Trial(job, appending(job.kernel) if job.append else find(job.kernel), own))


if __name__ == "__main__":
    main()
