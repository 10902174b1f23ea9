"""One worker process of the bench: a kernel on batches of one shape, with a log of each batch.

It receives the jobs of one program as JSON, one after another. Of each it appends lines of JSON to
the file of the job: `begin` before each batch, so that a hanging kernel's batch is known; then its
`ratio` and `looseness`; finally how it `ended`.
"""

import gc
import json
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, Protocol, TypedDict, final
from zlib import crc32

import numpy as np
from attrs import define, evolve, field, frozen

from conformance.kernels import appending
from conformance.kernels.batches import (
    IDLE,
    SIZES,
    Arrays,
    Batch,
    BatchData,
    Lost,
    Numbers,
    Sizes,
    build,
    drawn,
    drawn_at_edges,
    first,
    integers,
    within_cells,
    within_rows,
)
from conformance.kernels.block_sizes import CRAMPED, Own, variants
from conformance.kernels.coverage import lines, unreachable
from conformance.kernels.coverage.lines import LinesData, Reached
from conformance.kernels.coverage.sites import Outcome, decides
from conformance.kernels.kernel_under_test import APPENDING, NEW_CELLS, OURS, Subject

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from conformance.kernels.coverage.programs import Followed, Program
    from conformance.kernels.interpret import Answer
    from conformance.numerics.oracle import Floats
    from impl.attention.tpu.shape import Shape

TELL_SECONDS: Final = 5.0
FEW_COLLECTIONS: Final = (200_000, 20, 100)
"""Of garbage: traced programs are a million objects that stay, and each collection visits them."""
SHRINK_SECONDS: Final = 20.0
FEW: Final = 5
"""Batches that reach the most, of a job that has no room for all."""
AT_EDGES: Final = 6
"""Batches of a job in which queries see cells up to an edge of a kernel's work."""
LONG_PROGRAM: Final = 128
"""A page of fewer cells costs like one of so many."""
AGAINST: Final = "reached, though a reason says that it cannot be"
Shares = tuple[float, float]
"""The largest error relative to the bound, and to the probabilistic bound."""
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


@final
class Covered(TypedDict):
    """The line that says what the judged batches have reached of the kernel's branches and loops.

    reached, of: outcomes. unreachable: those that the sizes rule out, see `unreachable`. missed:
    the others that were not reached, each with its line in the source. decides: whether the verdict
    is open if there are any: not for a shape that has no room for all.
    """

    reached: int
    of: int
    unreachable: int
    missed: list[str]
    decides: bool


@final
class Lined(TypedDict):
    """The line that has the lines of a kernel which tracing reached, see `coverage.lines`."""

    lines: LinesData


@final
class Searching(TypedDict):
    """The line that says that batches are being followed: so a search is no hang."""

    searching: Literal[True]


@final
class Unfollowed(TypedDict):
    """The line that says why nothing is known of branches and loops."""

    unknown: str


Line = Begun | Traced | Rated | Covered | Lined | Searching | Unfollowed | Ended


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
    def is_ours(self) -> bool:
        """Whether the kernel is one of ours, which drop what has no cell and take destinations."""
        return self.kernel in APPENDING

    @property
    def destinations(self) -> bool:
        """Whether the destinations of new cells are given: for some of the shapes, to ours."""
        return self.append and self.is_ours and self.shape.races

    @property
    def program(self) -> tuple[object, ...]:
        """Jobs for which this is equal run one compiled program, if the kernel is one of ours."""
        alone = () if self.is_ours else (self.mode, self.twin, self.plain, self.seed)
        ours = self.kernel, self.sizes, self.variant, self.append, self.destinations, self.mutant
        return (*ours, *alone)

    @property
    def draws(self) -> int:
        """The seed of its draws: each job has others, so that together they meet more."""
        return crc32(repr((self.seed, self.sizes, self.variant, self.mode, self.append)).encode())

    @property
    def is_roomy(self) -> bool:
        """Whether its batches can reach all that the kernel can do, so that they are to."""
        plan = self.shape.plans[self.variant] if self.kernel == OURS else ""
        return self.shape.roomy and plan not in CRAMPED

    @property
    def searches(self) -> bool:
        """Whether it looks for batches that reach all of the kernel, and says what was reached."""
        return self.mode == "on_wait" and self.twin is None and not self.plain

    @property
    def weight(self) -> int:
        """What it costs beside others, roughly: long contexts, and searches, take the most.

        Small pages make long programs, since their copies are written out.
        """
        _, heads, width = self.shape.heads
        cells = self.shape.pages * max(self.shape.page_size, LONG_PROGRAM)
        return cells * heads * width * (1 + self.searches)

    @property
    def shape(self) -> Sizes:
        """The sizes of this name."""
        return next(sizes for sizes in SIZES if sizes.name == self.sizes)


@frozen(eq=False)
class Case:
    """A batch in the form in which the kernel gets it.

    task: the new cells and the pool that must come back, None if the kernel is to write none.
    """

    sizes: Sizes
    batch: Batch
    arrays: Arrays
    task: appending.Task | None = None

    @property
    def given(self) -> Arrays:
        """The arrays that the kernel gets."""
        return self.arrays if self.task is None else self.task.arrays

    @property
    def new(self) -> Mapping[str, Numbers]:
        """The new cells that it gets."""
        return {} if self.task is None else self.task.new

    def defined(self, out: "Floats", right: "Floats") -> "Floats":
        """The answer, with what is right in the rows in which it is undefined."""
        undefined = np.zeros((len(out), 1, 1), bool)
        undefined[self.batch.undefined] = True
        asked = int(self.arrays.cu_q_lens[len(self.batch.lens)])
        if self.task is not None and asked > len(out):  # some of its new cells are not given
            undefined[asked - self.batch.lens[-1][0] :] = True
        return np.where(undefined, right, out)

    @property
    def rows(self) -> int:
        """The number of queries."""
        return min(int(self.arrays.cu_q_lens[len(self.batch.lens)]), len(self.arrays.q))


class Wrong(AssertionError):
    """A batch on which the kernel is wrong."""


class Enough(BaseException):
    """The end of a trial: shrinking has taken its time, or the kernel raised."""


@define
class Trial:
    """The work of one process, and its finding. found: of the smallest failing batch.

    since: when the first one failed. told: when a search last said that it goes on. cores: of its
    Pallas kernel, 0 if it has none; determined only with immediate copies, since several cores add
    only races. flow: its control flow, if it can be followed. seen: what the judged batches have
    reached of it. plan: its sizes, if it is ours. possible: what they leave to reach. watched: what
    tracing reached of each of its kernels, if the job searches.
    """

    job: Job
    subject: Subject
    own: Own
    found: Ended | None = None
    since: float | None = None
    told: float = 0.0
    cores: int | None = None
    flow: "Program | None" = None
    seen: set[Outcome] = field(factory=set)
    plan: "Shape | None" = None
    possible: Mapping[Outcome, None] = field(factory=dict)
    watched: list[Reached] = field(factory=list)

    def tell_covered(self) -> None:
        """Say what the judged batches have reached."""
        if self.flow is None:
            return
        every = [one for site in self.flow.sites for one in site.outcomes() if decides(one)]
        self.possible = self._possible()
        left, missed = self.left(self.seen), [one for one in every if one not in self.seen]
        wrong = [one for one in every if one in self.seen and one not in self.possible]
        self.tell(
            Covered(
                reached=len(every) - len(missed),
                of=len(every),
                unreachable=len(missed) - len(left),
                missed=[*map(str, left), *(f"{one}: {AGAINST}" for one in wrong)],
                decides=self.job.is_roomy or bool(wrong),
            )
        )

    def left(self, seen: set[Outcome]) -> list[Outcome]:
        """What else the kernel can do, as far as is known."""
        return [one for one in self.possible if one not in seen]

    def has_all(self, seen: set[Outcome]) -> bool:
        """Whether nothing more is to be looked for."""
        return not self.job.is_roomy or not self.left(seen)

    def _possible(self) -> dict[Outcome, None]:
        """The outcomes that must be reached, in their order: those that no reason rules out."""
        sites = () if self.flow is None else self.flow.sites
        every = (one for site in sites for one in site.outcomes() if decides(one))
        given = self.job.destinations
        return dict.fromkeys(
            one for one in every if unreachable.why(one, self.plan, destinations=given) is None
        )

    def tell(self, line: Line) -> None:
        """Write a line."""
        with Path(self.job.results).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def tell_alive(self) -> None:
        """Say so, if nothing was said for some time."""
        now = time.monotonic()
        if now - self.told > TELL_SECONDS:
            self.told = now
            self.tell(Searching(searching=True))

    def check(self, batch: Batch) -> None:
        """Try one batch. Raises Wrong if the kernel is wrong."""
        if self.since is not None and time.monotonic() - self.since > SHRINK_SECONDS:
            raise Enough
        case = self._case(self.allowed(batch))
        self.tell(Begun(begin=case.batch.to_json()))
        before = self.found
        try:
            said, shares = self._judged(case)
        except Enough:
            if case.rows:
                raise
            said, shares, self.found = [], NOT_JUDGED, before
        self.tell(Rated(ratio=shares[0], looseness=shares[1], rows=case.rows))
        if self.flow is not None:
            self.seen |= self.follow(case.batch).seen
        if said:
            self.since = time.monotonic() if self.since is None else self.since
            self.found = Ended(ended="finding", what=said, batch=case.batch.to_json())
            raise Wrong

    def begin(self) -> None:
        """Try the first batch."""
        self.try_one(first(self.job.shape))

    def try_one(self, batch: Batch) -> None:
        """Try this batch; if it fails, drawing searches for a smaller one."""
        try:
            self.check(batch)
        except Wrong:
            if not self.job.shrink:
                raise

    def begin_to_follow(self) -> None:
        """Compile the control flow of the kernel, if it has one that can be followed."""
        from conformance.kernels import interpret
        from conformance.kernels.coverage.programs import Program
        from conformance.kernels.coverage.scalars import Unknown

        case = self._case(self.allowed(first(self.job.shape)))
        for one in self.watched:
            self.tell(Lined(lines=one.to_json()))
        try:
            traced = interpret.program(
                self.subject,
                case.sizes,
                case.given,
                own=self.own,
                new=case.new,
                interpreted=True,
            )
        except Exception as error:  # of a function that jax cannot trace as a whole
            self._tell_unfollowed(f"it cannot be traced: {type(error).__name__}")
            return
        try:
            flow = Program(traced)
            if not flow.sites:
                return
            self.flow, self.plan = flow, self._plan(case)
            self.possible = self._possible()
            self.seen |= self.follow(case.batch).seen
        except Unknown as error:
            self.flow = None
            self._tell_unfollowed(str(error))

    def _tell_unfollowed(self, why: str) -> None:
        """Say that nothing is known of branches and loops: a Pallas kernel then misses all."""
        if not self.watched:
            self.tell(Unfollowed(unknown=why))
            return
        all_of_it = [f"all of it: {why}"]
        self.tell(Covered(reached=0, of=0, unreachable=0, missed=all_of_it, decides=True))

    def _plan(self, case: Case) -> "Shape | None":
        """The sizes of our kernel."""
        if self.job.kernel != OURS:
            return None
        from conformance.kernels import interpret
        from conformance.kernels.compile.known_kernels import shaped
        from impl.attention.tpu import shape_of
        from impl.cache import rows

        sizes, given = case.sizes, case.given
        _, kv_heads, width = sizes.heads
        pool = sizes.pages, sizes.page_size * kv_heads, rows.lanes(width)
        asked: dict[str, Any] = {**sizes.options, **interpret.told(sizes, self.own)}
        return shape_of(
            shaped(given.q.shape, sizes.kinds[0]),
            shaped(pool, sizes.kinds[1]),
            given.page_indices,
            **asked,
            interpret=True,
            append=self.job.append,
            sinks=sizes.sinks,
            scales=sizes.scales,
        )

    def follow(self, batch: Batch) -> "Followed":
        """What the kernel does with this batch, by its integers alone. Raises Unknown."""
        assert self.flow is not None
        sizes, job = self.job.shape, self.job
        steers, destinations = integers(sizes, batch), None
        unknown = sizes.sinks + sizes.scales + job.append * len(NEW_CELLS)
        if job.append:
            steers, destinations = appending.steered(sizes, batch, destinations=job.destinations)
        given = [] if destinations is None else [destinations]  # the first of all names
        every = (steers.kv_lens, steers.page_indices, steers.cu_q_lens, steers.num_seqs)
        return self.flow.follow([None, None, *every, *given, *[None] * unknown])

    def programs(self) -> tuple[str, ...]:
        """A digest of each traced program that it runs. Passes the exceptions of the kernel on."""
        from conformance.kernels import interpret
        from conformance.kernels.compile import traced

        case = self._case(first(self.job.shape))
        cases = (case,) if self.job.twin is None else (case, self._other(case, self.job.twin))
        return tuple(
            traced.fingerprint(
                interpret.program(self.subject, one.sizes, one.given, own=self.own, new=one.new)
            )
            for one in cases
        )

    def allowed(self, batch: Batch) -> Batch:
        """The batch without what this job does not try."""
        job = self.job
        batch = evolve(batch, needles=(), far=False, plain=True) if job.plain else batch
        some = batch.lost is not None and batch.lost[1] is Lost.SOME
        if not (job.append and job.is_ours) or (some and not job.destinations):
            batch = evolve(batch, lost=None)  # others promise nothing of such tokens
        if not job.is_ours or job.twin is not None:  # nor of queries that have no row
            batch = within_rows(job.shape, batch)
        if job.append or not job.is_ours:
            batch = within_cells(batch)
        return appending.apart(job.shape, batch) if job.append else batch

    def _case(self, batch: Batch) -> Case:
        sizes = self.job.shape
        return self._with_task(Case(sizes, batch, build(sizes, batch)))

    def _with_task(self, case: Case) -> Case:
        """The same case; with new cells, if the kernel is to write them."""
        if not self.job.append:
            return case
        return evolve(
            case,
            task=appending.task(
                case.sizes, case.batch, case.arrays, destinations=self.job.destinations
            ),
        )

    def _judged(self, case: Case) -> tuple[list[str], Shares]:
        """The errors of the answer, and its largest error relative to either bound."""
        from conformance.kernels import answers

        answer, right = self._attend(case), answers.right(case.sizes, case.arrays)
        if answer.out is None:
            return list(answer.said), NOT_JUDGED
        pool, out = self._of_pool(case, answer), case.defined(answer.out, right.answer)
        if self.job.plain:
            return pool if right.tolerated(out, rows=case.rows) else ["wrong"], NOT_JUDGED
        ratio, said = right.ratio(out, rows=case.rows), [*answer.said, *pool]
        if ratio > 1.0:
            said.append(self._kind(case))
        if self.job.is_ours and (answer.out[case.rows :] != 0.0).any():
            said.append("rows_of_nobody")
        if self.job.twin is not None and not said:
            said = self._differs(case, out, right.bound, twin=self.job.twin)
        return said, (ratio, right.looseness(out, rows=case.rows))

    def _of_pool(self, case: Case, answer: "Answer") -> list[str]:
        """What is wrong with the pool that came back, if there is one."""
        if case.task is None:
            return []
        assert answer.pool is not None  # a kernel that is given new cells returns it, or raises
        return appending.wrong(case.task, answer.pool)

    def _kind(self, case: Case) -> str:
        """The finding: wrong, or wrong only because of NaN behind the window."""
        from conformance.kernels import answers

        milder = evolve(case.batch, behind=False)
        if milder == case.batch or case.sizes.window is None:
            return "wrong"
        there = self._case(milder)
        answer, right = self._attend(there), answers.right(there.sizes, there.arrays)
        out = None if answer.out is None else there.defined(answer.out, right.answer)
        wrong = out is None or right.ratio(out, rows=there.rows) > 1.0
        return "wrong" if wrong else "reads_behind_window"

    def _differs(self, case: Case, out: "Floats", bound: "Floats", *, twin: str) -> list[str]:
        """The errors of the twin: a finding of its own, or too large a difference."""
        from conformance.kernels import answers, metamorphic

        sizes, batch, there = case.sizes, case.batch, self._other(case, twin)
        found = self._attend(there)
        if found.out is None:
            return list(found.said)
        right = answers.right(there.sizes, there.arrays)
        its = metamorphic.in_order(sizes, batch, twin, right.bound)
        both = bound[: len(its)] + its
        seen = metamorphic.in_order(sizes, batch, twin, found.out)
        ratio = answers.ratio(seen, out[: len(its)], both)
        return [*found.said, *(["twin"] if ratio > 1.0 else [])]

    def _other(self, case: Case, twin: str) -> Case:
        """The same sequences in the layout of the twin."""
        from conformance.kernels import metamorphic

        laid = metamorphic.laid_out(case.sizes, case.batch, case.arrays, twin)
        return self._with_task(Case(metamorphic.other(case.sizes, twin), case.batch, laid))

    def _attend(self, case: Case) -> "Answer":
        from conformance.kernels import interpret

        mode, arrays, new = interpret.Mode(self.job.mode), case.given, case.new
        if self.cores is None and mode is interpret.Mode.EAGER:
            self.cores = interpret.cores(self.subject, case.sizes, arrays, own=self.own, new=new)
            self.tell(Traced(pallas=self.cores > 0))
        cores = self.cores or 1
        try:
            watches = self.job.searches and not self.watched
            with lines.watched(self.watched) if watches else nullcontext():
                return interpret.attend(
                    self.subject, case.sizes, arrays, mode=mode, own=self.own, new=new, cores=cores
                )
        except Exception as error:  # whatever a foreign function raises is what is told of it
            said = [line for line in str(error).splitlines() if line.strip()] or [""]
            text = f"{type(error).__name__}: {said[-1].strip()}"  # of a callback: what it raised
            raised = Ended(ended="raised", text=text, batch=case.batch.to_json())
            self.found = self.found or raised  # a finding is not lost while it is shrunk
            raise Enough from error


def run(trial: Trial) -> None:
    """Draw batches until one fails or all are tried; record the end.

    First come those that together reach what the kernel can do, as far as its control flow can be
    followed. If one fails, drawing searches for a smaller one.
    """
    job, units = trial.job, {*variants(trial.job.kernel, trial.job.shape)[trial.job.variant][1]}
    sizes: Collection[int] = units
    try:
        trial.check(IDLE)
        trial.begin()
        if job.searches:
            trial.begin_to_follow()
        if trial.flow is not None:
            units |= trial.flow.units
            sizes = trial.flow.sizes
        drawing = _drawing(job, drawn(job.shape, units=units))
        chosen = [] if trial.flow is None else _chosen(trial, drawing, units)
        for batch in chosen:
            trial.try_one(batch)
        if job.searches:
            at_edges = drawn_at_edges(job.shape, units=sizes)
            count = AT_EDGES * (1 if job.shape.window is None else 2)  # it has two sides
            _drawing(job, at_edges)(trial.check, count=count, shrink=job.shrink)
        drawing(trial.check, count=max(1, job.cases - len(chosen)), shrink=job.shrink)
    except (Wrong, Enough):
        pass
    except Exception as error:  # of the bench itself, or of answers that differ each time
        trial.found = trial.found or Ended(ended="broken", text=repr(error))
    trial.tell_covered()
    trial.tell(trial.found or Ended(ended="passed"))


class _Drawing(Protocol):
    """Draws batches and gives each to a function."""

    def __call__(self, take: Callable[[Batch], None], *, count: int, shrink: bool) -> None:
        """Draw so many; if the function raises, look for the smallest for which it does."""
        ...


def _drawing(job: Job, batches: "SearchStrategy[Batch]") -> _Drawing:
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from conformance.runtime.draws_by_seed import by_seed_alone

    def draw(take: Callable[[Batch], None], *, count: int, shrink: bool) -> None:
        chosen = settings(
            max_examples=count,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        search = seed(job.draws)(chosen(given(batches)(take)))
        with by_seed_alone():
            search()

    return draw


def _chosen(trial: Trial, drawing: _Drawing, units: set[int]) -> list[Batch]:
    """The batches that reach the most, of many that are drawn and changed."""
    from conformance.kernels.coverage import search

    def follow(batch: Batch) -> "Followed":
        trial.tell_alive()
        return trial.follow(trial.allowed(batch))

    found: list[Batch] = []

    def take(batch: Batch) -> None:
        found.append(batch)

    drawing(take, count=search.DRAWN, shrink=False)
    every = search.candidates(found, follow)
    sizes, seed = trial.job.shape, trial.job.draws
    every = search.changed(sizes, every, follow, units=sorted(units), seed=seed, done=trial.has_all)
    most = None if trial.job.is_roomy else FEW
    return search.chosen(sizes, every, follow, edges=trial.job.cases, most=most)


def main() -> None:
    """Do the jobs that are named on the command line; all of them are of one program."""
    from conformance.kernels import interpret
    from conformance.kernels.kernel_under_test import find, find_appending
    from conformance.kernels.seeded_bugs import planted

    gc.set_threshold(*FEW_COLLECTIONS)
    every = [Job(**one) for one in json.loads(sys.argv[1])]
    job = every[0]
    with ExitStack() as stack:
        if job.mutant is not None:
            stack.enter_context(planted(job.mutant))
        own, _ = variants(job.kernel, job.shape)[job.variant]
        subject = find_appending(job.kernel) if job.append else find(job.kernel)
        assert subject is not None  # a job that appends is only planned for a kernel that does
        if job.kernel == OURS:
            subject = interpret.unoptimised(subject)
        for one in every:
            run(Trial(one, subject, own))


if __name__ == "__main__":
    main()
