"""What a kernel's control flow does is followed as the interpreter runs it, and nothing is guessed.

Toy kernels count their own branches and passes in memory; the counts of the interpreter decide.
"""

import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance.kernels import block_sizes, interpret
from conformance.kernels.batches import SIZES, Batch, drawn, first
from conformance.kernels.coverage import lines, search, unreachable
from conformance.kernels.coverage.programs import Followed, Program
from conformance.kernels.coverage.scalars import Unknown
from conformance.kernels.coverage.sites import Kind, Outcome, Site
from conformance.kernels.kernel_under_test import Subject, find, find_appending
from conformance.kernels.trials import AGAINST, Job, Trial, _chosen, _drawing

COUNTS: Final = 6
SMALL: Final = "a scale of K of zero"
"""A shape that is followed fast."""


def toy(given: Any, table: Any, counts: Any, held: Any, arrived: Any) -> None:
    """Copy a row of a table, then pass a loop as often as it says, with branches inside.

    given i32[3]: a row, a divisor, a limit. table i32[rows, 1, 128]: passes first. counts i32[6]:
    passes, branches taken and not, how often a second loop began and passed, and a sum.
    """
    for index in range(COUNTS):
        counts[index] = jnp.int32(0)
    copy: Any = pltpu.make_async_copy(table.at[pl.ds(given[0], 1)], held, arrived)
    copy.start()
    copy.wait()

    def one(index: Any, total: Any) -> Any:
        counts[0] = counts[0] + 1
        odd = lax.rem(index, given[1]) == 1

        @pl.when(odd)
        def _() -> None:
            counts[1] = counts[1] + 1

        @pl.when(~odd)
        def _() -> None:
            counts[2] = counts[2] + 1

        counts[3] = counts[3] + 1
        low = jnp.where(odd, index, index >> 1)

        def more(number: Any) -> Any:
            counts[4] = counts[4] + 1
            return number + 1

        lax.while_loop(lambda number: number < jnp.minimum(given[2], index), more, low)
        return total + low

    counts[5] = lax.fori_loop(0, held[0, 0, 0], one, jnp.int32(0))


def call(given: Any, table: Any, *, kernel: Callable[..., None] = toy) -> Any:
    """The counts, i32[6]."""
    scalar = pl.BlockSpec(memory_space=pltpu.SMEM)
    return pl.pallas_call(
        kernel,
        out_shape=jax.typeof(jnp.zeros((COUNTS,), jnp.int32)),
        in_specs=[scalar, pl.BlockSpec(memory_space=pltpu.HBM)],
        out_specs=scalar,
        scratch_shapes=[pltpu.SMEM((1, 1, 128), jnp.int32), pltpu.SemaphoreType.DMA],
        interpret=interpret.parameters(interpret.Mode.WAIT),
    )(given, table)


def tables(passes: list[int]) -> Any:
    """Rows that begin with these."""
    found = np.zeros((len(passes), 1, 128), np.int32)
    found[:, 0, 0] = passes
    return found


ROWS: Final = 4
COUNTED: Final = jax.jit(call)
PROGRAM: Final = Program(jax.make_jaxpr(call)(np.zeros(3, np.int32), tables([0] * ROWS)))


def said(followed: Followed, kind: Kind) -> list[set[str]]:
    """What happened at each site of a kind, in the order of the program."""
    sites = [site for site in PROGRAM.sites if site.kind is kind]
    return [{one.what for one in followed.seen if one.site == site} for site in sites]


@settings(max_examples=40, deadline=None)
@given(
    passes=st.lists(st.integers(0, 7), min_size=ROWS, max_size=ROWS),
    row=st.integers(0, ROWS - 1),
    divisor=st.integers(1, 4),
    limit=st.integers(-1, 9),
)
def test_what_is_followed_is_what_the_interpreter_does(
    passes: list[int], row: int, divisor: int, limit: int
) -> None:
    """Each branch that was taken, and each number of passes, is that of the kernel's own counts."""
    given, table = np.array([row, divisor, limit], np.int32), tables(passes)

    counts = np.asarray(COUNTED(given, table))
    outer, inner = said(PROGRAM.follow([given, table]), Kind.LOOP)
    taken, not_odd = said(PROGRAM.follow([given, table]), Kind.PREDICATE)

    assert {("no pass", "one pass", "several passes")[min(passes[row], 2)]} == outer
    assert passes[row] == counts[0] == counts[1] + counts[2]
    assert (counts[1] > 0) == ("taken" in taken) == ("not taken" in not_odd)
    assert (counts[2] > 0) == ("not taken" in taken) == ("taken" in not_odd)
    lengths = [
        max(0, min(limit, index) - (index if index % divisor == 1 else index >> 1))
        for index in range(passes[row])
    ]
    assert sum(lengths) == counts[4]
    assert {("no pass", "one pass", "several passes")[min(one, 2)] for one in lengths} == inner
    odd = [index % divisor == 1 for index in range(passes[row])]
    assert any(both == (True, True) for both in pairwise(odd)) == ("taken, twice in a row" in taken)
    assert (odd[:1] == [True]) == ("taken, at the first pass" in taken)
    assert (odd[-1:] == [True]) == ("taken, at the last pass" in taken)


def test_a_branch_that_depends_on_data_is_unknown() -> None:
    """It says which line, and nothing is said of the kernel."""

    def by_data(values: Any, out: Any) -> None:
        @pl.when(values[0, 0] > 0.0)
        def _() -> None:
            out[...] = values[...]

    kind = jnp.zeros((8, 128), jnp.float32)
    traced = jax.make_jaxpr(pl.pallas_call(by_data, out_shape=jax.typeof(kind)))(kind)

    with pytest.raises(Unknown, match=r"depends on data: by_data \(test_reach.py"):
        Program(traced).follow([None])


def adds(given: Any, out: Any) -> None:
    """A branch by a number to which another was added in place."""
    out[0] = given[0]
    jax.ref.addupdate(out, 0, given[0])

    @pl.when(out[0] > 7)
    def _() -> None:
        out[0] = 0


def compares_unsigned(given: Any, out: Any) -> None:
    """A branch by a number without a sign."""
    large = given[0].astype(jnp.uint32) > jnp.uint32(7)

    @pl.when(large)
    def _() -> None:
        out[0] = given[0]


@pytest.mark.parametrize(
    ("kernel", "why"), [(adds, "not modelled"), (compares_unsigned, "on data")]
)
def test_what_is_not_modelled_is_unknown(kernel: Callable[..., None], why: str) -> None:
    """A number that is changed otherwise, or is of another kind, is not taken for what it was."""
    scalar = pl.BlockSpec(memory_space=pltpu.SMEM)
    kind = jax.typeof(jnp.zeros((1,), jnp.int32))
    made = pl.pallas_call(kernel, out_shape=kind, in_specs=[scalar], out_specs=scalar)
    traced = jax.make_jaxpr(made)(jnp.zeros(1, jnp.int32))

    with pytest.raises(Unknown, match=why):
        Program(traced).follow([np.array([9], np.int32)])


def outcomes(*names: str) -> frozenset[Outcome]:
    """Outcomes of a predicate of this name each."""
    return frozenset(
        Outcome(Site(kernel="k", path=one, kind=Kind.PREDICATE, where=one, branches=2), "taken")
        for one in names
    )


def candidate(cells: int, *names: str) -> search.Candidate:
    """A batch of one sequence that reaches these."""
    return search.Candidate(Batch(lens=((1, cells),)), Followed(outcomes(*names), work=1))


def test_what_is_chosen_reaches_all_that_any_reaches_and_costs_little() -> None:
    """A long batch is left out if short ones reach the same, and otherwise made shorter."""
    long = candidate(90_000, "a", "b", "c")
    short = [candidate(10, "a", "b"), candidate(20, "c"), candidate(30, "b")]

    def follow(batch: Batch) -> Followed:
        ((_, cells),) = batch.lens
        return Followed(outcomes(*("abc" if cells > 1000 else "")), work=1)

    chosen = partial(search.chosen, evolve(SIZES[0], pages_per_seq=9000), follow=follow, edges=3)
    assert [one.batch for one in short[:2]] == chosen([long, *short])
    assert [((1, 11250),)] == [batch.lens for batch in chosen([long, short[2]])]
    assert [] == chosen([])


def searched(job: Job) -> tuple[Trial, list[Batch]]:
    """A trial whose batches were chosen and followed, and not judged."""
    own, _ = block_sizes.variants(job.kernel, job.shape)[job.variant]
    subject = find_appending(job.kernel) if job.append else find(job.kernel)
    assert subject is not None
    trial = Trial(job, subject, own)
    trial.begin_to_follow()
    assert trial.flow is not None
    units = set(trial.flow.units)
    chosen = _chosen(trial, _drawing(job, drawn(job.shape, units=units)), units)
    for batch in chosen:
        trial.seen |= trial.follow(trial.allowed(batch)).seen
    return trial, chosen


EVERY: Final = [
    Job(kernel="tpu", sizes=sizes.name, variant=variant, append=append, results="/dev/null")
    for sizes in SIZES
    for append in (False, *[True] * sizes.append)
    for variant in range(len(sizes.plans))
]
SEARCHED: Final = [job for job in EVERY if job.is_roomy]


@pytest.mark.parametrize(
    "job",
    [SEARCHED[0], *(pytest.param(job, marks=pytest.mark.deep) for job in SEARCHED[1::3])],
    ids=lambda job: f"{job.sizes}-{job.variant}-{job.append}",
)
def test_every_branch_of_our_kernel_is_reached_or_a_reason_says_why_not(job: Job) -> None:
    """For each plan: and where a reason holds, nothing reaches what it names."""
    trial, chosen = searched(job)

    assert [] == [str(one) for one in trial.left(trial.seen)]
    assert [] == [str(one) for one in trial.seen if unreachable.why(one, trial.plan) is not None]
    assert len(chosen) < 60


@pytest.mark.parametrize("planted", [False, True])
def test_a_branch_that_no_batch_reaches_is_left(
    monkeypatch: pytest.MonkeyPatch, *, planted: bool
) -> None:
    """A kernel with a branch for rows that the shape does not have: no reason says so."""
    from impl.attention.tpu import flow

    right = flow.Flow._work

    def wrong(self: flow.Flow, fetch: flow.Fetch, *others: Any) -> None:
        far = self.inputs.kv_lens[fetch.seq] > (self.shape.capacity if planted else 40)
        pl.when(far)(lambda: right(self, fetch, *others))

    monkeypatch.setattr(flow.Flow, "_work", wrong)
    monkeypatch.setattr(search, "DRAWN", 20)
    jax.clear_caches()  # type: ignore[no-untyped-call]
    trial, _ = searched(Job(kernel="tpu", sizes=SMALL, results="/dev/null"))

    left = [str(one) for one in trial.left(trial.seen)]
    assert planted == any(one.startswith("wrong (test_reach.py") for one in left)


def test_sizes_are_what_a_kernel_divides_by() -> None:
    """By shifts or by quotients; what it multiplies with, adds, or divides is none."""

    def kernel(length: Any, out: Any) -> None:
        number = length[0]
        out[0] = jax.lax.shift_right_arithmetic(number, jnp.int32(6)) + number * 96
        out[1] = jax.lax.div(number, jnp.int32(48)) + jax.lax.shift_left(number, jnp.int32(5))
        out[2] = jax.lax.div(jnp.int32(500), number) + 1000

    scalar = pl.BlockSpec(memory_space=pltpu.SMEM)
    kind = jax.typeof(jnp.zeros(3, jnp.int32))
    call = pl.pallas_call(kernel, out_shape=kind, in_specs=[scalar], out_specs=scalar)
    found = Program(jax.make_jaxpr(call)(jnp.ones(1, jnp.int32)))

    assert {64, 48} == found.sizes
    assert {64, 48, 96, 32, 500, 1000} == found.units


def test_a_change_of_lengths_keeps_a_batch_possible() -> None:
    """Queries fit, and what else it has belongs to its sequences."""
    sizes = evolve(SIZES[0], rows=3, tokens=20)
    batch = evolve(first(SIZES[0]), shared=(2,), repeated=(0, 2))

    found = search.with_lens(sizes, batch, [(9, 400), (30, 7)])

    assert ((9, 400), (11, 7)) == found.lens
    assert ((), (0,)) == (found.shared, found.repeated)


@pytest.mark.deep
def test_every_line_of_our_kernel_is_reached_by_tracing() -> None:
    """Static branches leave no trace in a program, so lines are watched: none is left out."""
    found: list[lines.Reached] = []
    for job in EVERY:
        own, _ = block_sizes.variants(job.kernel, job.shape)[job.variant]
        subject = find_appending("tpu") if job.append else find("tpu")
        assert subject is not None
        trial = Trial(job, subject, own)
        case = trial._case(trial.allowed(first(job.shape)))
        jax.clear_caches()  # type: ignore[no-untyped-call]
        before = len(found)
        with lines.watched(found):
            interpret.program(subject, case.sizes, case.given, own=own, new=case.new)
        assert len(found) > before

    _, missed = lines.missed(found)
    assert [] == missed


def test_lines_are_told_apart() -> None:
    """Of a function with a static branch, the line that was not traced is missed."""

    def kernel(values: Any, out: Any, *, doubled: bool) -> None:
        if doubled:
            out[...] = values[...] * 2.0
        else:
            out[...] = values[...]

    kind = jnp.zeros((8, 128), jnp.float32)
    every: list[lines.Reached] = []
    for doubled in (True, False):
        with lines.watched(every):
            made = pl.pallas_call(partial(kernel, doubled=doubled), out_shape=jax.typeof(kind))
            jax.make_jaxpr(made)(kind)

    assert 1 == len(lines.missed(every[:1])[1]) == len(lines.missed(every[1:])[1])
    assert [] == lines.missed(every)[1]


@pytest.mark.parametrize("is_pallas", [False, True])
def test_a_kernel_that_cannot_be_traced_misses_all(tmp_path: Path, *, is_pallas: bool) -> None:
    """Of a Pallas kernel it is said that nothing was reached, and of other functions nothing."""

    def function(*_: Any, **__: Any) -> None:
        raise ValueError("it wants numbers")

    job = Job(kernel="mine:kernel", sizes=SMALL, results=str(tmp_path / "lines"))
    watched = [lines.Reached({}, {})] * is_pallas
    names = {name: name for name in job.shape.options}
    trial = Trial(job, Subject("mine", function, names), {}, watched=watched)

    trial.begin_to_follow()

    *_, last = map(json.loads, Path(job.results).read_text("utf-8").splitlines())
    why = "it cannot be traced: ValueError"
    assert last.get("unknown") == (None if is_pallas else why)
    assert last.get("missed") == ([f"all of it: {why}"] if is_pallas else None)
    assert last.get("decides", False) == is_pallas


def test_a_reason_that_is_wrong_leaves_the_verdict_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is reached although a reason rules it out is listed, for any shape."""
    job = Job(kernel="tpu", sizes=SMALL, results=str(tmp_path / "lines"))
    trial = Trial(job, find("tpu"), block_sizes.variants("tpu", job.shape)[0][0])
    trial.begin_to_follow()
    everything = (unreachable.Reason("nothing is ever taken", ".*", "taken", scope=".*"),)
    monkeypatch.setattr(unreachable, "REASONS", everything)

    trial.tell_covered()

    *_, last = map(json.loads, Path(job.results).read_text("utf-8").splitlines())
    assert last["decides"]
    assert any(AGAINST in text for text in last["missed"])
