"""The digest of a traced program: two programs that may differ have different ones."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve
from deep import deep_after
from jax.experimental import pallas as pl

from conformance.kernels import interpret, trials
from conformance.kernels.batches import SIZES
from conformance.kernels.block_sizes import variants
from conformance.kernels.compile import traced
from conformance.kernels.jobs import plan
from conformance.kernels.kernel_under_test import Subject, find
from conformance.kernels.trials import Job, Trial
from conformance.lockstep.watchdog import Watchdog
from conformance.mutation.judges import kernel
from conformance.runtime import compiled_code

NUMBERS = np.arange(4.0)
"""More than a scalar, so that a program holds it as a constant."""


def plain(held: Any) -> Callable[[jax.Array], jax.Array]:
    """A function with a constant of its own."""
    return lambda x: x + held


def nested(held: Any) -> Callable[[jax.Array], jax.Array]:
    """The same in a function that is compiled by itself."""
    return lambda x: jax.jit(plain(held))(x) * 2


def chosen(held: Any) -> Callable[[jax.Array], jax.Array]:
    """The same in a branch."""
    return lambda x: jax.lax.cond(x[0] > 0, plain(held), lambda y: y, x)


def repeated(held: Any) -> Callable[[jax.Array], jax.Array]:
    """The same in a loop."""
    return lambda x: jax.lax.fori_loop(0, 3, lambda _, y: plain(held)(y), x)


def fingerprint(function: Callable[[jax.Array], jax.Array]) -> str:
    """Of the traced program."""
    return traced.fingerprint(jax.make_jaxpr(function)(jnp.zeros(4)))


@pytest.mark.parametrize("make", [plain, nested, chosen, repeated])
@pytest.mark.parametrize("other", [NUMBERS + np.eye(4)[3], NUMBERS.astype(np.float32), 2.0])
def test_a_constant_anywhere_makes_another_program(
    make: Callable[[Any], Callable[[jax.Array], jax.Array]], other: Any
) -> None:
    """A program that is traced again is the same, and one with another number is not."""
    first = fingerprint(make(jnp.asarray(NUMBERS, jnp.int32)))

    assert first == fingerprint(make(jnp.asarray(NUMBERS, jnp.int32)))
    assert first != fingerprint(make(jnp.asarray(other)))


def reading(*, stride: int = 1, column: int = 0, block: int = 0) -> Callable[[Any], Any]:
    """A kernel that reads a column of a block of an array, with a stride."""

    def kernel(numbers: Any, out: Any) -> None:
        out[...] = numbers[pl.ds(0, 4, stride=stride), column]

    place = pl.BlockSpec((8, 2), lambda _: (block, 0))
    return lambda x: pl.pallas_call(
        kernel,
        grid=(1,),
        in_specs=[place],
        out_specs=pl.BlockSpec((4,), lambda _: (0,)),
        out_shape=jnp.zeros(4),
    )(jnp.zeros((16, 2)) + x[0])


@pytest.mark.parametrize("other", [{"stride": 2}, {"column": 1}, {"block": 1}])
def test_what_a_kernel_reads_makes_another_program(other: dict[str, int]) -> None:
    """The text of a program shows neither the stride of a read nor the map of blocks."""
    assert fingerprint(reading()) == fingerprint(reading())
    assert fingerprint(reading()) != fingerprint(reading(**other))


def test_a_callback_that_holds_values_has_no_digest() -> None:
    """Two of one name may do different things, which nothing of the program says."""

    def added(more: float) -> Callable[[Any], Any]:
        def callback(x: Any) -> Any:
            return x + more

        kind = jax.typeof(jnp.zeros((), jnp.float32))
        return lambda x: jax.pure_callback(callback, kind, x)

    for more in (1.0, 2.0):
        program = jax.make_jaxpr(added(more))(jnp.float32(0))
        with pytest.raises(ValueError, match="holds values that a digest does not see"):
            traced.fingerprint(program)


@pytest.mark.parametrize("name", deep_after(1, ["reference", "tpu"]))
def test_every_job_of_a_kernel_has_programs_of_its_own_shapes(name: str) -> None:
    """A job with a twin has two, and another shape or other blocks make another program."""
    every = plan(find(name), cases=4, seed=0).jobs
    own = [job for job in every if job.mode == "on_wait" and not job.append]
    found = {}
    for job in own[:3] + [one for one in own if one.twin]:
        trial = Trial(job, find(name), variants(name, job.shape)[job.variant][0])
        found[job] = trial.programs()

    assert [1 + (job.twin is not None) for job in found] == [*map(len, found.values())]
    assert 3 == len({*map(found.get, own[:3])})
    twins = {job.twin: both for job, both in found.items() if job.twin}
    assert {"order": True} | dict.fromkeys(("pages", "padding", "head_dim"), False) == {
        name: both[0] == both[1] for name, both in twins.items()
    }


@pytest.mark.deep
def test_a_program_that_passed_a_job_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A kernel that has changed is run, and so is one that cannot be traced; in a later process
    too.
    """
    offset, ran = [0.0], list[Job]()
    right, every = find("reference"), plan(find("reference"), cases=1, seed=0)
    attend: Any = right.function

    def function(*given: Any, **options: Any) -> Any:
        if offset[0] < 0:
            raise ValueError("it cannot be traced")
        return attend(*given, **options) + offset[0]

    def run(trial: Trial) -> None:
        ran.append(trial.job)
        if offset[0]:
            trial.found = trials.Ended(ended="raised" if offset[0] < 0 else "finding")

    subject = Subject("reference", function, right.names)
    two = evolve(every, jobs=every.jobs[:2])
    monkeypatch.setattr(kernel, "plan", lambda *_, **__: two)
    monkeypatch.setattr(kernel, "find", lambda _: subject)
    monkeypatch.setattr(kernel, "run", run)
    monkeypatch.setattr(interpret, "unoptimised", lambda one: one)
    monkeypatch.setenv(compiled_code.VARIABLE, str(tmp_path))
    kernel._kept.cache_clear()

    told, counts = [], []
    with Watchdog(lambda *_: None) as watchdog:
        for offset[0] in (0.0, 0.0, 1.0, -1.0, 0.0):
            told.append(kernel.judge_reference(watchdog))
            counts.append(len(ran))
        kernel._kept.cache_clear()  # as another process begins, after one that was ended
        with (tmp_path / "kernel-jobs.jsonl").open("a", encoding="utf-8") as kept:
            kept.write('{"stamp": "cut')
        told.append(kernel.judge_reference(watchdog))
        counts.append(len(ran))
    kernel._kept.cache_clear()

    assert [None, None, "finding", "raised", None, None] == told
    assert [2, 2, 3, 4, 4, 4] == counts


def test_what_passed_one_job_is_run_in_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same program with copies at once is another job, and every job of the plan is run."""
    every = plan(find("tpu"), cases=1, seed=0)
    jobs = [job for job in every.jobs if job.sizes == SIZES[0].name and not job.variant][:4]
    jobs += [next(job for job in every.jobs if job.append)]
    ran = list[Job]()
    monkeypatch.setattr(kernel, "plan", lambda *_, **__: evolve(every, jobs=jobs))
    monkeypatch.setattr(kernel, "run", lambda trial: ran.append(evolve(trial.job, results="")))
    monkeypatch.setattr(Trial, "programs", lambda _: ("the same",))
    monkeypatch.setenv(compiled_code.VARIABLE, str(tmp_path))
    kernel._kept.cache_clear()

    with Watchdog(lambda *_: None) as watchdog:
        assert kernel.judge_tpu(watchdog) is None
    kernel._kept.cache_clear()

    assert {"on_wait", "eager"} <= {job.mode for job in jobs}
    assert {evolve(job, shrink=False, results="") for job in jobs} == set(ran)


def test_a_job_hangs_if_it_takes_many_times_as_long() -> None:
    """Ten times as long as it took, within a minute and four."""
    (job, *_), kept = plan(find("tpu"), cases=1, seed=0).jobs, kernel._Kept(None, "a bench")
    assert kernel.JOB_SECONDS == kernel._seconds_of(job, kept)
    for number, (took, limit) in enumerate(((1.0, 60.0), (9.0, 90.0), (30.0, 240.0))):
        kept.keep(job, str(number), took)
        assert limit == kernel._seconds_of(job, kept)


@pytest.mark.parametrize(
    ("ends", "told", "tried"),
    [
        ((None, None, None), None, 3),
        ((None, "raised", "finding"), "finding", 3),
        ((None, "raised", None), "raised", 3),
        (("raised", "finding", "finding"), "raised", 1),
        ((None, "finding", "raised"), "finding", 2),
    ],
)
def test_what_raises_in_a_later_job_may_still_be_found(
    ends: tuple[str | None, ...], told: str | None, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant that raises at once is no finding, and one that raises later is tried further."""
    every = plan(find("reference"), cases=1, seed=0)
    jobs = sorted(every.jobs, key=kernel._order)[:3]
    ran = list[Job]()

    def ended(job: Job, _: Watchdog) -> str | None:
        ran.append(job)
        return ends[jobs.index(job)]

    monkeypatch.setattr(kernel, "plan", lambda *_, **__: evolve(every, jobs=jobs))
    monkeypatch.setattr(kernel, "_ended", ended)
    monkeypatch.setattr(kernel, "_FOUND", Counter[Job]())

    with Watchdog(lambda *_: None) as watchdog:
        assert told == kernel.judge_reference(watchdog)
        assert jobs[:tried] == ran
        ran.clear()
        kernel.judge_reference(watchdog)
    best = [job for job, end in zip(jobs, ends, strict=True) if end == "finding" and job in ran]
    assert ran[0] == jobs[0]
    assert best == [] or ran[1] == best[0]
