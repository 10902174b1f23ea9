"""A search among random histories of one engine, and the shrinking of what it finds."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Final, Generic, TypeVar

from attrs import define, field
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.strategies import SearchStrategy

from conformance.harnesses.workloads import Broken
from conformance.runtime.draws_by_seed import by_seed_alone

H = TypeVar("H")
EXAMPLES: Final = 100
"""Histories in one turn; each turn draws others."""
TURNS: Final = 1_000_000
"""More turns than a run has, so that no two seeds draw the same histories."""


@define
class Search(Generic[H]):
    """Random histories of one engine.

    drawn: makes the strategy of histories. judge: runs a history on a new engine, counts what it
    reaches, and returns the violation, if there is one. shorter: shorter versions of a history, the
    shortest first. first: a history before the time starts. chosen: the seed. seen: the coverage.
    count: histories so far. least: the shortest history that violates a clause.
    """

    drawn: Callable[[], SearchStrategy[H]]
    judge: Callable[[H, Counter[str]], Broken | None]
    shorter: Callable[[H], Iterator[H]]
    first: H
    chosen: int
    seen: Counter[str] = field(factory=Counter)
    count: int = 0
    least: tuple[H, Broken] | None = None

    def run(self, seconds: float) -> None:
        """Search until a violation, then shrink it; for at most this many seconds."""
        self.judge(self.first, Counter())
        ended, turn = monotonic() + seconds, 0

        def test(history: H) -> None:
            if monotonic() > ended:
                raise _Over
            self.count += 1
            broken = self.judge(history, self.seen)
            if broken is not None:
                self.least = history, broken
                raise _Over

        while True:
            drawn = given(self.drawn())(test)
            try:
                with by_seed_alone():
                    seed(self.chosen * TURNS + turn)(_quiet(drawn))()
            except _Over:
                break
            turn += 1
        while self.least and monotonic() < ended and self.smaller():
            pass

    def smaller(self) -> bool:
        """Shrink once; return whether anything could be left out."""
        assert self.least is not None
        history, broken = self.least
        for fewer in self.shorter(history):
            found = self.judge(fewer, Counter())
            if found is not None and found.clause == broken.clause:
                self.least = fewer, found
                return True
        return False


def lacking(seen: Counter[str], needed: Iterable[str]) -> list[str]:
    """Print how often each thing was reached; return what is needed and was not, printed too."""
    for name, count in sorted(seen.items()):
        print(f"  {count:>8}  {name}")
    missing = [name for name in needed if not seen[name]]
    for name in missing:
        print(f"not reached: {name}")
    return missing


class _Over(BaseException):
    """The end of drawing: an exception that Hypothesis passes on."""


def _quiet(test: Callable[[], None]) -> Callable[[], None]:
    return settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )(test)
