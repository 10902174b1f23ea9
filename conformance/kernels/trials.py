"""One process of the bench: a kernel on batches of one shape, each written down as it is tried.

It is given a `Job` as JSON. Lines of JSON are appended to its file: `begin` before each batch, so
that who waits knows on which one a kernel hangs; then its `ratio` and `looseness`; at last how it
`ended`.
"""

import json
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NotRequired, TypedDict, final

from attrs import define, evolve, frozen

from conformance.kernels import appending as appended
from conformance.kernels.batches import (
    IDLE,
    SIZES,
    Arrays,
    Batch,
    BatchData,
    Numbers,
    Sizes,
    build,
    drawn,
    first,
)
from conformance.kernels.block_sizes import Own, variants
from conformance.kernels.kernel_under_test import Subject, appending, find

if TYPE_CHECKING:
    from conformance.kernels.interpret import Answer
    from conformance.numerics.oracle import Floats

SHRINK_SECONDS: Final = 20.0
Shares = tuple[float, float]
"""The largest error over the bound, and over the probable one."""
NOT_JUDGED: Final[Shares] = (0.0, 0.0)


@final
class Begun(TypedDict):
    """The line before a batch is tried."""

    begin: BatchData


@final
class Traced(TypedDict):
    """The line that says whether the function is a Pallas kernel."""

    pallas: bool


@final
class Rated(TypedDict):
    """The line after a batch. rows: the tokens of all its sequences."""

    ratio: float
    looseness: float
    rows: int


@final
class Ended(TypedDict):
    """The last line. what: of a finding. text: of what was raised."""

    ended: Literal["passed", "finding", "raised", "broken"]
    what: NotRequired[list[str]]
    text: NotRequired[str]
    batch: NotRequired[BatchData]


Line = Begun | Traced | Rated | Ended


@frozen(kw_only=True)
class Job:
    """What a process is to try. kernel: as for `subject.find`. sizes: by name. variant: which of
    `variants`. mode: of the interpreter. mutant: a bug to plant first. plain: batches as in most
    tests of kernels, judged by their tolerance. twin: the layout to compare with, see `TWINS`.
    shrink: whether a batch that fails is made small. append: whether the kernel is to write the
    new cells, see `appended`.
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
    """There is nothing more to learn: shrinking has taken its time, or the kernel raised."""


@define
class Trial:
    """The work of one process, and what it found. found: of the smallest batch that failed.

    since: when the first one did. cores: on which its Pallas kernel works, 0 if it has none; only
    looked at where copies happen at once, as between cores there are races alone to be found.
    """

    job: Job
    subject: Subject
    own: Own
    found: Ended | None = None
    since: float | None = None
    cores: int | None = None

    def tell(self, line: Line) -> None:
        """Write a line."""
        with Path(self.job.results).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def check(self, batch: Batch) -> None:
        """One batch. Raises Wrong if the kernel is."""
        if self.since is not None and time.monotonic() - self.since > SHRINK_SECONDS:
            raise Enough
        job = self.job
        batch = evolve(batch, needles=(), far=False, plain=True) if job.plain else batch
        batch = appended.apart(job.shape, batch) if job.append else batch
        arrays = build(job.shape, batch)
        self.tell(Begun(begin=batch.to_json()))
        rows = int(arrays.cu_q_lens[len(batch.lens)])
        try:
            said, shares = self._wrong(batch, arrays, rows)
        except Enough:
            if rows:
                raise
            said, shares, self.found = [], NOT_JUDGED, None
        self.tell(Rated(ratio=shares[0], looseness=shares[1], rows=rows))
        if said:
            self.since = time.monotonic() if self.since is None else self.since
            self.found = Ended(ended="finding", what=said, batch=batch.to_json())
            raise Wrong

    def begin(self) -> None:
        """The batch that is tried before any is drawn; if it fails, a smaller one is looked for."""
        try:
            self.check(first(self.job.shape))
        except Wrong:
            if not self.job.shrink:
                raise

    def _wrong(self, batch: Batch, arrays: Arrays, rows: int) -> tuple[list[str], Shares]:
        """What is wrong with the answer, and its largest error over either bound."""
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
            said = self._differs(batch, arrays, answer.out, right.bound)
        return said, (ratio, right.looseness(answer.out, rows=rows))

    def _of_pool(self, sizes: Sizes, batch: Batch, arrays: Arrays, answer: "Answer") -> list[str]:
        """What is wrong with the pool that came back, if any is to."""
        if not self.job.append:
            return []
        assert answer.pool is not None  # a kernel that is given new cells returns it, or raises
        return appended.wrong(appended.task(sizes, batch, arrays), answer.pool)

    def _kind(self, batch: Batch) -> str:
        """Whether only NaN behind the window makes it wrong: not everybody has to bear that."""
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

    def _differs(self, batch: Batch, arrays: Arrays, out: "Floats", bound: "Floats") -> list[str]:
        """What is wrong with the twin: it says something, or is not near enough."""
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
        both = answers.Right(out, *2 * (bound[: len(its)] + its,))
        ratio = both.ratio(metamorphic.in_order(shape, batch, twin, found.out), rows=len(its))
        return [*found.said, *(["twin"] if ratio > 1.0 else [])]

    def _attend(self, sizes: Sizes, batch: Batch, arrays: Arrays) -> "Answer":
        from conformance.kernels import interpret

        mode = interpret.Mode(self.job.mode)
        new: Mapping[str, Numbers] = interpret.NOTHING
        if self.job.append:
            given = appended.task(sizes, batch, arrays)
            arrays, new = given.arrays, given.new
        if self.cores is None and mode is interpret.Mode.EAGER:
            self.cores = interpret.cores(self.subject, sizes, arrays, own=self.own, new=new)
            self.tell(Traced(pallas=self.cores > 0))
        cores = self.cores or 1
        try:
            return interpret.attend(
                self.subject, sizes, arrays, mode=mode, own=self.own, new=new, cores=cores
            )
        except Exception as error:  # whatever a foreign function raises is what is told of it
            lines = [line for line in str(error).splitlines() if line.strip()] or [""]
            text = f"{type(error).__name__}: {lines[-1].strip()}"  # of a callback: what it raised
            self.found = Ended(ended="raised", text=text, batch=batch.to_json())
            raise Enough from error


def run(trial: Trial) -> None:
    """Draw batches until one fails or all are tried; say how it ended."""
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
        trial.found = trial.found or Ended(ended="broken", text=repr(error))
    trial.tell(trial.found or Ended(ended="passed"))


def main() -> None:
    """Do the job that is named on the command line."""
    from conformance.kernels.seeded_bugs import planted

    job = Job(**json.loads(sys.argv[1]))
    with ExitStack() as stack:
        if job.mutant is not None:
            stack.enter_context(planted(job.mutant))
        own, _ = variants(job.kernel, job.shape)[job.variant]
        subject = appending(job.kernel) if job.append else find(job.kernel)
        assert subject is not None  # a job that appends is only planned for a kernel that does
        run(Trial(job, subject, own))


if __name__ == "__main__":
    main()
