"""The page about the mutants of a group: its targets, operators and methods, and the survivors."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Final

from attrs import frozen

from conformance.mutation.explained import EQUIVALENT, MISSED
from conformance.mutation.fates import Fate, Fates
from conformance.mutation.methods import RAISING
from conformance.mutation.operators import Mutant
from conformance.mutation.targets import GROUPS, SEED, TESTS, UNIT_TESTS, eligible, mutants
from conformance.verdict import Verdict

ANY: Final = "any"
MOST_EQUIVALENT: Final = 0.1
"""With a larger share of equivalent mutants a result is undecided."""
TARGETS: Final[Mapping[tuple[tuple[str, ...], str], float]] = {
    (("metadata",), ANY): 0.95,
    (("metadata",), "fuzz"): 0.8,
    (("guards",), "fuzz"): 1.0,
    (("contents", "kernel"), ANY): 0.95,
    (("specification",), ANY): 0.95,
    (("kit",), ANY): 0.95,
}
"""For the samples of some groups together and a method, the least share of mutants that it kills.
"""
LATE: Final = ("gates", "served")
"""Methods that take long: they are asked only about the mutants that no other method kills."""
UNEXPLAINED: Final = "**not explained**"
Z: Final = 1.96
"""The quantile of the normal distribution for an interval of 95 %."""


@frozen
class Report:
    """The page, and whether every target is met."""

    text: str
    is_met: bool


@frozen
class Share:
    """A share of mutants that are killed. killed, whole: counts."""

    killed: int
    whole: int

    @property
    def value(self) -> float:
        """Between 0 and 1; 0 of nothing."""
        return self.killed / self.whole if self.whole else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of 95 % for the share in all mutants."""
        n, p = self.whole, self.value
        if not n:
            return 0.0, 1.0
        centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
        half = Z * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
        return max(0.0, centre - half), min(1.0, centre + half)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.killed} of {self.whole}: {self.value:.1%} ({low:.1%} to {high:.1%})"


def of_kit(methods: Sequence[str]) -> tuple[str, ...]:
    """The methods that judge any engine."""
    return tuple(one for one in methods if one != UNIT_TESTS)


@frozen
class Judged:
    """A sample of a group. killed: for each mutant and method, by what, where it is killed.

    methods: those that judged all that they were asked. refuted: the mutants that are explained as
    equivalent, and that any method kills, also one that has not judged the whole sample.
    """

    group: str
    sample: tuple[Mutant, ...]
    methods: tuple[str, ...]
    killed: Mapping[tuple[int, str], str]
    refuted: tuple[Mutant, ...]

    def share(self, method: str, *, kind: str | None = None) -> Share:
        """The share that a method kills, or ANY; equivalent mutants do not count."""
        counted = [one for one in self.sample if not self.why_equivalent(one)]
        counted = [one for one in counted if kind is None or one.kind == kind]
        return Share(sum(self.is_killed(one, method) for one in counted), len(counted))

    def is_killed(self, mutant: Mutant, method: str) -> bool:
        """Whether a method kills a mutant, or ANY of the kit's methods does."""
        methods = of_kit(self.methods) if method == ANY else (method,)
        return any((mutant.number, one) in self.killed for one in methods)

    def why_equivalent(self, mutant: Mutant) -> str | None:
        """Why a mutant that survives is equivalent, if that is explained."""
        return None if mutant in self.refuted else EQUIVALENT.get(mutant.id)

    @property
    def survivors(self) -> list[Mutant]:
        """The mutants that nothing kills."""
        return [one for one in self.sample if not self.is_killed(one, ANY)]

    @property
    def equivalent(self) -> Share:
        """The share of the sample that is equivalent."""
        found = sum(self.why_equivalent(one) is not None for one in self.sample)
        return Share(found, len(self.sample))


def asked(
    group: str, method: str, numbers: Sequence[int], fates: Fates, *, explained: bool = False
) -> list[int]:
    """The mutants of a sample that a method is to judge.

    explained: those too that are explained as equivalent, to refute the explanation.
    """
    every = mutants(group)
    numbers = [one for one in numbers if explained or every[one].id not in EQUIVALENT]
    if method not in LATE:
        return numbers
    others = [one for one in of_kit(GROUPS[group].methods) if one not in LATE]
    fate = fates.known.get
    return [
        one
        for one in numbers
        if all(fate((group, way, one), Fate(None)).killed is None for way in others)
    ]


def beside(group: str) -> tuple[str, ...]:
    """The groups that share a target with this one, itself among them."""
    sharing = (groups for groups, _ in TARGETS if group in groups)
    return tuple(dict.fromkeys((group, *chain.from_iterable(sharing))))


def report(group: str, samples: Mapping[str, Sequence[int]], fates: Fates) -> Report:
    """The page on the sample of a group. samples: of each group `beside` it.

    Methods that were not run on the whole of a sample are left out.
    """
    every = {one: _judged(one, numbers, fates) for one, numbers in samples.items()}
    judged, targets = every[group], list(_targets(group, every))
    parts = [
        *_head(judged, fates),
        *(f"- {text}" for text, _ in targets),
        *_alone(judged),
        *([] if targets else [_without_target(judged)]),
        "",
        *_matrix(judged),
        *_refuted(every.values()),
        *_survivors(judged, fates),
    ]
    met = all(verdict is Verdict.HOLDS for _, verdict in targets)
    met &= not any(one.refuted for one in every.values())
    return Report("\n".join(parts) + "\n", met)


def _head(judged: Judged, fates: Fates) -> Iterator[str]:
    yield f"# Mutants: {judged.group}"
    yield ""
    yield f"Written by `make mutants` on {datetime.now(UTC):%Y-%m-%d}. The digest of the sources on"
    yield "which each method depends:"
    yield ", ".join(f"{one} {_digests(judged, one, fates)}" for one in judged.methods) + "."
    if any(len(_of_sample(judged, one, fates)) > 1 for one in judged.methods):
        yield "A method with several digests was asked about some mutants again, with later code:"
        yield "the later fate counts."
    yield f"The group: {GROUPS[judged.group].what}."
    yield "A mutant is one mechanical change. Each module is in the sample in proportion to its"
    yield f"mutants; the seed is {SEED}."
    if TESTS not in GROUPS[judged.group].methods:
        yield "Mutants that raise as soon as an entry point is traced do not count, nor do those"
        yield "with which a small Llama of *served* raises, or a kernel does: in the first job of"
        yield "its bench, or in a later one while no job finds it wrong."
    for one in (way for way in RAISING if way in GROUPS[judged.group].methods):
        if one not in judged.methods:
            yield f"The sample may change: {one} has not judged it, and those with which it raises"
            yield "do not count."
    for one in (late for late in LATE if late in judged.methods):
        yield f"The method {one} is asked only about mutants that no other method kills."
    yield "Mutants that are explained as equivalent are judged with `--explained` alone."
    yield "Intervals are of 95 %."
    yield ""


def _of_sample(judged: Judged, method: str, fates: Fates) -> Counter[str]:
    """The digests of a method's fates of a sample, each with the number of its mutants."""
    keys = ((judged.group, method, one.number) for one in judged.sample)
    return Counter(fates.stamps[key] for key in keys if key in fates.stamps)


def _digests(judged: Judged, method: str, fates: Fates) -> str:
    """The digest of a method's fates of a sample; of several, how many mutants each has."""
    found = _of_sample(judged, method, fates).most_common()
    if len(found) > 1:
        return " and ".join(f"`{one}` for {count}" for one, count in found)
    return f"`{found[0][0] if found else fates.stamp(judged.group, method)}`"


def _without_target(judged: Judged) -> str:
    """What the methods that were run kill of a group of which nothing is asked."""
    by = " or ".join(of_kit(judged.methods)) or "no method yet"
    return f"- {judged.group}, killed by {by}: {judged.share(ANY)}; no target"


def _judged(group: str, numbers: Sequence[int], fates: Fates) -> Judged:
    every = mutants(group)
    done = tuple(
        method
        for method in GROUPS[group].methods
        if not fates.left(group, method, asked(group, method, numbers, fates))
    )
    killed = {
        (number, method): how
        for number in numbers
        for method in done
        if (fate := fates.known.get((group, method, number))) and (how := fate.killed) is not None
    }
    sample = tuple(every[number] for number in numbers)
    refuted = tuple(one for one in sample if one.id in EQUIVALENT and _dies(one, group, fates))
    return Judged(group, sample, done, killed, refuted)


def _dies(mutant: Mutant, group: str, fates: Fates) -> bool:
    """Whether some method kills a mutant, unit tests among them."""
    found = (fates.known.get((group, way, mutant.number)) for way in GROUPS[group].methods)
    return any(fate is not None and fate.killed is not None for fate in found)


def _targets(group: str, every: Mapping[str, Judged]) -> Iterator[tuple[str, Verdict]]:
    for (groups, method), least in TARGETS.items():
        if group in groups:
            together = [every[one] for one in groups]
            verdict = _verdict(together, method, least)
            lacking = " and ".join(one.group for one in together if not _is_judged(one, method))
            share = f"{lacking} not judged whole" if lacking else _share(together, method)
            by = "some method" if method == ANY else method
            names = " and ".join(groups)
            yield f"{names}, killed by {by}: {share}; target {least:.0%}: {verdict.value}", verdict


def _alone(judged: Judged) -> Iterator[str]:
    """The share of a group by itself, where it has its target together with others."""
    if len(beside(judged.group)) > 1 and _is_judged(judged, ANY):
        yield f"- {judged.group} alone: {judged.share(ANY)}"


def _share(together: Iterable[Judged], method: str) -> Share:
    return _sum(one.share(method) for one in together)


def _sum(shares: Iterable[Share]) -> Share:
    """The share in samples together."""
    killed, whole = zip(*((one.killed, one.whole) for one in shares), strict=True)
    return Share(sum(killed), sum(whole))


def _verdict(together: Sequence[Judged], method: str, least: float) -> Verdict:
    decided = all(_is_judged(one, method) for one in together)
    equivalent = _sum(one.equivalent for one in together)
    if not decided or equivalent.value > MOST_EQUIVALENT:
        return Verdict.UNDECIDED
    return Verdict.HOLDS if _share(together, method).value >= least else Verdict.FAILS


def _is_judged(judged: Judged, method: str) -> bool:
    """Whether a sample was judged whole by a method, or by each that ANY stands for."""
    needed = of_kit(GROUPS[judged.group].methods) if method == ANY else (method,)
    return bool(judged.sample) and set(needed) <= set(judged.methods)


def _matrix(judged: Judged) -> Iterator[str]:
    apart = (UNIT_TESTS,) if UNIT_TESTS in judged.methods else ()
    columns = (*of_kit(judged.methods), ANY, *apart)
    yield "## Operators and methods"
    yield ""
    yield (
        f"{len(judged.sample)} of {len(eligible(judged.group))} mutants; "
        f"{judged.equivalent.killed} of them are equivalent and are left out of the shares."
    )
    yield ""
    yield "| operator | mutants | " + " | ".join(columns) + " |"
    yield "|---|---|" + "---|" * len(columns)
    kinds = sorted({one.kind for one in judged.sample})
    for kind in (*kinds, None):
        shares = [judged.share(method, kind=kind) for method in columns]
        cells = " | ".join(f"{one.killed} ({one.value:.0%})" for one in shares)
        yield f"| {kind or 'all'} | {shares[0].whole if shares else 0} | {cells} |"
    yield ""


def _refuted(together: Iterable[Judged]) -> Iterator[str]:
    """The explanations that cannot be right, of every group with this target."""
    wrong = [one for judged in together for one in judged.refuted]
    if not wrong:
        return
    yield "## Refuted explanations"
    yield ""
    yield "Explained as equivalent in `conformance/mutation/equivalent.json`, and killed:"
    yield ""
    yield from (f"- `{one.id}`" for one in wrong)
    yield ""


def _survivors(judged: Judged, fates: Fates) -> Iterator[str]:
    yield "## Survivors"
    yield ""
    for one in sorted(judged.survivors, key=lambda one: (one.module, one.number)):
        why = judged.why_equivalent(one)
        methods = of_kit(GROUPS[judged.group].methods)
        tried = all((judged.group, way, one.number) in fates.known for way in methods)
        said = "equivalent" if tried else "equivalent, not judged"
        yield f"- `{one.id}`: " + (f"{said}: {why}" if why else _why_missed(one.id))
    yield ""


def explained_anew(text: str) -> str:
    """A page on which the reasons of survivors are those of today; none counts otherwise for it."""
    counted = re.compile(f"^- `(.*)`: (?:{re.escape(UNEXPLAINED)}|missed: .*)$", re.MULTILINE)
    text = counted.sub(lambda found: f"- `{found[1]}`: {_why_missed(found[1])}", text)
    left_out = re.compile("^- `(.*)`: (equivalent|equivalent, not judged): (.*)$", re.MULTILINE)
    return left_out.sub(
        lambda found: f"- `{found[1]}`: {found[2]}: {EQUIVALENT.get(found[1], found[3])}", text
    )


def _why_missed(name: str) -> str:
    """Why the kit misses a mutant that is not equivalent, if that is known."""
    return f"missed: {MISSED[name]}" if name in MISSED else UNEXPLAINED
