"""The shapes of the bench: any two features that a call can have are tried together."""

from functools import cache
from typing import Final

import jax
import pytest
from attrs import evolve

from conformance.kernels import features, jobs
from conformance.kernels.batches import PLAIN, SIZES, Options, Sizes
from conformance.kernels.block_sizes import variants
from conformance.kernels.kernel_under_test import find, find_appending
from conformance.kernels.processes import Tried
from conformance.kernels.seeded_bugs import MUTANTS, planted
from conformance.kernels.trials import Job, Trial

PLANNED: Final = jobs.plan(find("tpu"), cases=3, seed=0).jobs
SHAPES: Final = {(job.sizes, job.append): (job.shape, job.append) for job in PLANNED}


def test_any_two_features_are_tried_together() -> None:
    """Of our kernel, in some job of the whole command."""
    assert features.possible() == features.tried(SHAPES.values())


def test_each_shape_that_is_here_for_its_features_is_needed() -> None:
    """Without any of them some pair is not tried; they are named after heads, pages and dtypes."""
    added = [sizes.name for sizes in SIZES if " on " in sizes.name]

    assert 16 == len(added)
    for name in added:
        rest = features.tried(shape for shape in SHAPES.values() if shape[0].name != name)
        assert features.possible() > rest, name


def test_a_run_says_how_many_pairs_it_tried() -> None:
    """Of shapes of which a batch was judged."""
    tried = [Tried(job) for job in PLANNED]
    assert 0 == jobs.pairs_of(tried)["tried"]
    for one in tried:
        one.cases = 1
    assert jobs.pairs_of(tried) == {"tried": 623, "of": 623}
    tried[0].cases, names = 0, len([*features.EVERY])
    assert names * (names - 1) // 2 == jobs.pairs_of(tried[1:2])["tried"]


def test_features_are_read_from_a_shape() -> None:
    """Each value from a shape that has it."""
    options = Options(scale=-0.1, sliding_window=9, soft_cap=2.0, v_scale=0.5)
    shape = Sizes(
        name="",
        heads=(30, 10, 192),
        page_size=12,
        kinds=("float16", "float8_e5m2"),
        options=options,
        sinks=True,
        scales=True,
    )
    found = features.of(shape, append=True)
    plain = evolve(shape, heads=(2, 2, 64), page_size=1, options=PLAIN, sinks=False, scales=False)

    assert ("more", "another", "another", "no power of two", "float16", "float8") == tuple(
        found[name] for name in [*features.EVERY][:6]
    )
    assert {"yes", "0 or below", "another"} == {found[name] for name in [*features.EVERY][6:]}
    plainly = features.of(plain, append=False)
    assert ("2", "1", "below 128", "1") == tuple(plainly[name] for name in [*features.EVERY][:4])
    assert {"no", "above 0", "1"} == {plainly[name] for name in [*features.EVERY][6:]}


def test_what_cannot_be_copied_is_no_pair() -> None:
    """Three heads of a page of one cell fill neither tiles nor a part of one; scales need 128."""
    possible = features.possible()

    assert ("KV heads", "odd", "page", "1") not in possible
    assert ("page", "1", "scales", "yes") not in possible
    assert ("KV heads", "odd", "page", "no power of two") in possible
    assert ("KV heads", "1", "scales", "yes") in possible


def test_every_planted_bug_is_in_a_job_of_the_command() -> None:
    """One that only another job catches would count as caught by a command that misses it."""
    planned = {(job.sizes, job.variant, job.mode, job.append) for job in PLANNED}
    for name, one in MUTANTS.items():
        assert (one.sizes, one.variant, one.mode, one.append) in planned, name


def program(job: Job) -> tuple[str, ...]:
    """What it traces anew."""
    own, _ = variants(job.kernel, job.shape)[job.variant]
    subject = find_appending(job.kernel) if job.append else find(job.kernel)
    assert subject is not None
    jax.clear_caches()  # type: ignore[no-untyped-call]
    return Trial(job, subject, own).programs()


@cache
def right_program(sizes: str, variant: int, *, append: bool) -> tuple[str, ...]:
    """That of the kernel without a bug."""
    return program(Job(kernel="tpu", sizes=sizes, variant=variant, append=append))


@pytest.mark.deep
@pytest.mark.parametrize("name", MUTANTS)
def test_every_planted_bug_is_traced(name: str) -> None:
    """One that raises when it is traced, as after a change of the kernel, is planted in nothing."""
    (job,) = jobs.of_mutants(cases=3, names=[name])
    right = right_program(job.sizes, job.variant, append=job.append)
    with planted(name):
        assert right != program(job)


def test_of_another_kernel_every_shape_is_tried_without_new_cells() -> None:
    """Which shapes need not be, is known of our kernel alone."""
    foreign = jobs.plan(find("reference"), cases=3, seed=0)
    attended = {job.sizes for job in foreign.jobs if not job.append}

    assert {sizes.name for sizes in SIZES} - foreign.left_out.keys() == attended
    assert not all(sizes.attend for sizes in SIZES)
    assert Job(kernel="tpu", sizes=SIZES[3].name).shape is SIZES[3]
