"""The jobs of a run of the bench, and their totals."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final, TypedDict

from attrs import frozen

from conformance.kernels import features
from conformance.kernels.batches import SIZES, BatchData, Sizes
from conformance.kernels.block_sizes import variants
from conformance.kernels.coverage import lines
from conformance.kernels.kernel_under_test import NEW_CELLS, OURS, Subject, find_appending
from conformance.kernels.metamorphic import TWINS
from conformance.kernels.processes import Tried
from conformance.kernels.seeded_bugs import MUTANTS
from conformance.kernels.trials import Job

FEWEST: Final = 3
SHARE: Final = 4
"""Other block sizes, eager copies and each twin get the cases divided by this."""


class Errors(TypedDict):
    """The largest errors: over the bound, and of right batches over the probabilistic one."""

    max_error_over_bound: float
    max_error_over_probable_bound: float


class Place(TypedDict):
    """What a job tries: the fields of `Job` by which a reader finds it again."""

    sizes: str
    variant: int
    mode: str
    twin: str | None
    append: bool


class Loose(TypedDict):
    """Batches that are right, and farther off than rounding would likely be."""

    sizes: str
    variant: int
    mode: str
    twin: str | None
    append: bool
    batches: int
    cases: int
    max_error_over_probable_bound: float
    batch: BatchData | None


class Finding(TypedDict):
    """What is wrong with a kernel, and the batch that shows it."""

    what: list[str]
    sizes: str
    variant: int
    mode: str
    twin: str | None
    append: bool
    batch: BatchData | None
    text: str


class Reached(TypedDict):
    """What the batches of a job have reached of its kernel's branches and loops; see `Covered`."""

    sizes: str
    variant: int
    mode: str
    twin: str | None
    append: bool
    reached: int
    of: int
    unreachable: int
    missed: list[str]
    decides: bool


class Lines(TypedDict):
    """The lines of the functions of a kernel, and those that tracing reached for no shape."""

    of: int
    missed: list[str]


class Pairs(TypedDict):
    """Two features at once: those of the shapes that were tried, of all; see `features`."""

    tried: int
    of: int


class Totals(TypedDict):
    """The numbers of the report of a run."""

    cases: int
    pairs: Pairs
    reached: list[Reached]
    lines: Lines
    max_error_over_bound: float
    max_error_over_probable_bound: float
    shapes: dict[str, Errors]
    loose: list[Loose]
    out_of_bounds: int | None
    findings: list[Finding]


class MutantScore(TypedDict):
    """The outcome of a planted bug: under the bench, and under conventional tests."""

    mutant: str
    what: str
    caught: bool
    by: list[str]
    cases: int
    caught_by_usual_tests: bool


@frozen
class Plan:
    """jobs, and the options that the function lacks, for each shape that is left out."""

    jobs: Sequence[Job]
    left_out: Mapping[str, str]


def plan(subject: Subject, *, cases: int, seed: int) -> Plan:
    """Every shape with its block sizes, and the twins.

    Copies at once, and new cells, are tried with every shape; of our own kernel with those that
    name them, since others would copy alike.
    """
    left_out = {
        sizes.name: ", ".join(missing) for sizes in SIZES if (missing := subject.lacks(sizes.asked))
    }
    few = max(FEWEST, -(-cases // SHARE))
    jobs = [*_jobs(subject.name, left_out, cases, few, seed)]
    if find_appending(subject.name) is None:
        left_out |= {"new cells, written by the kernel": ", ".join(NEW_CELLS)}
    else:
        jobs += _appending(subject.name, left_out, few, seed)
    return Plan(jobs, left_out)


def _appending(name: str, left_out: Mapping[str, str], cases: int, seed: int) -> Iterator[Job]:
    """Jobs that write new cells, for every shape, with late and immediate copies."""
    for sizes, mode in product(SIZES, ("on_wait", "eager")):
        alike = name == OURS and not (sizes.append and (sizes.races or mode == "on_wait"))
        if sizes.name not in left_out and not alike:
            yield Job(kernel=name, sizes=sizes.name, mode=mode, cases=cases, seed=seed, append=True)
            yield from _others(name, sizes, mode=mode, append=True, seed=seed)


def _others(name: str, sizes: Sizes, *, mode: str, append: bool, seed: int) -> Iterator[Job]:
    """The other block sizes of a shape; immediate copies show races of two cores."""
    for index in range(1, len(variants(name, sizes))):
        yield Job(
            kernel=name,
            sizes=sizes.name,
            variant=index,
            mode=mode,
            cases=FEWEST,
            seed=seed,
            append=append,
        )


def _jobs(name: str, left_out: Mapping[str, str], cases: int, few: int, seed: int) -> Iterator[Job]:
    for sizes in SIZES:
        if sizes.name not in left_out and (sizes.attend or name != OURS):
            yield Job(kernel=name, sizes=sizes.name, cases=cases, seed=seed)
            races = sizes.races or name != OURS
            if races:
                yield Job(kernel=name, sizes=sizes.name, mode="eager", cases=few, seed=seed)
            for mode in ("on_wait", "eager") if races else ("on_wait",):
                yield from _others(name, sizes, mode=mode, append=False, seed=seed)
    if SIZES[0].name not in left_out:
        for twin in TWINS:
            yield Job(kernel=name, sizes=SIZES[0].name, twin=twin, cases=few, seed=seed)


def of_mutants(*, cases: int, seed: int = 0, names: Sequence[str] | None = None) -> list[Job]:
    """Jobs for our kernel with each of these bugs, or with any."""
    return [
        Job(
            kernel="tpu",
            sizes=MUTANTS[name].sizes,
            variant=MUTANTS[name].variant,
            mode=MUTANTS[name].mode,
            append=MUTANTS[name].append,
            cases=cases,
            seed=seed,
            mutant=name,
            shrink=False,
        )
        for name in (MUTANTS if names is None else names)
    ]


def totals(tried: Sequence[Tried]) -> Totals:
    """The numbers of the report. Unfinished jobs count as far as they came."""
    found = Counter(what for one in tried for what in one.what)
    return {
        "cases": sum(one.cases for one in tried),
        "reached": [
            Reached(**_place(one), **one.covered) for one in tried if one.covered is not None
        ],
        "pairs": pairs_of(tried),
        "lines": lines_of(tried),
        **_largest(tried),
        "shapes": {
            sizes.name: _largest(those)
            for sizes in SIZES
            if (those := [one for one in tried if one.job.sizes == sizes.name and one.cases])
        },
        "loose": [_describe_loose(one) for one in tried if one.loose],
        "out_of_bounds": found["out_of_bounds"] if any(one.pallas for one in tried) else None,
        "findings": [describe(one) for one in tried if one.wrong],
    }


def pairs_of(tried: Sequence[Tried]) -> Pairs:
    """The pairs of features of the shapes of which batches were judged."""
    possible = features.possible()
    shapes = {(one.job.sizes, one.job.append): one.job for one in tried if one.cases}
    found = features.tried((job.shape, job.append) for job in shapes.values())
    return Pairs(tried=len(found & possible), of=len(possible))


def lines_of(tried: Sequence[Tried]) -> Lines:
    """The lines of the kernels that were traced."""
    of, missed = lines.missed(one for each in tried for one in each.lines)
    return Lines(of=of, missed=missed)


def _largest(tried: Sequence[Tried]) -> Errors:
    """The largest errors, relative to each of the two bounds."""
    return {
        "max_error_over_bound": round(max((one.ratio for one in tried), default=0.0), 4),
        "max_error_over_probable_bound": round(max((one.looseness for one in tried), default=0), 4),
    }


def _describe_loose(one: Tried) -> Loose:
    """Right batches beyond the probabilistic bound, as plain data."""
    return {
        **_place(one),
        "batches": one.loose,
        "cases": one.cases,
        "max_error_over_probable_bound": round(one.looseness, 4),
        "batch": one.loosest,
    }


def score(kit: Tried, usual: Tried) -> MutantScore:
    """The outcome of a planted bug: under the bench, and under conventional tests."""
    name = str(kit.job.mutant)
    return {
        "mutant": name,
        "what": MUTANTS[name].what,
        "caught": kit.ended in {"finding", "hangs"},
        "by": kit.what or [kit.ended],
        "cases": kit.cases,
        "caught_by_usual_tests": usual.wrong,
    }


def describe(one: Tried) -> Finding:
    """A finding as plain data."""
    return {
        "what": one.what or [one.ended],
        **_place(one),
        "batch": one.batch,
        "text": one.text,
    }


def _place(one: Tried) -> Place:
    job = one.job
    return Place(
        sizes=job.sizes, variant=job.variant, mode=job.mode, twin=job.twin, append=job.append
    )
