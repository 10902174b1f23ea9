"""Coverage of a run: actions with their outcomes, and corner states, where bugs live.

A sampled "holds" needs both the budget spent and every required item reached; the report names the
items that were not reached. Source: docs/sources.md, "Verdicts" and "Conditions that bugs need".
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from conformance.protocol import Action, Engine, Poisonable
from conformance.rungs.pages import PAGE_REUSED, REFUSED, SHORT, SLOT_REUSED
from conformance.rungs.registry import ACTIONS, CORNERS, REFUSABLE, corners
from conformance.rungs.sharing import SHARED
from spec import pool
from spec.state import State
from spec.table import Sequence
from spec.vocabulary import Reason

POISON: Final = "PoisonDead"
POISONED: Final = "poisoned dead cells read past"


class Coverage:
    """Counts of actions, outcomes and corner states of one run."""

    def __init__(self) -> None:
        self.corners: Counter[str] = Counter()
        self._steps: dict[tuple[type, frozenset[Reason]], int] = {}
        self._previous: dict[int, list[int]] = {}
        self._released: set[int] = set()

    @property
    def actions(self) -> Counter[str]:
        """How often each action was taken or refused, by its name."""
        found: Counter[str] = Counter()
        for (kind, _), times in self._steps.items():
            found[kind.__name__] += times
        return found

    @property
    def outcomes(self) -> Counter[str]:
        """How often each action was done, or refused for a reason."""
        found: Counter[str] = Counter()
        for (kind, reasons), times in self._steps.items():
            for outcome in [reason.name for reason in reasons] or ["done"]:
                found[f"{kind.__name__}: {outcome}"] += times
        return found

    def begin(self) -> None:
        """Another engine begins: none of its pages has been released."""
        self._released.clear()

    def record(
        self,
        before: State,
        action: Action,
        reasons: frozenset[Reason],
        after: State,
    ) -> None:
        """Count one step."""
        if reasons:
            short = Reason.OUT_OF_PAGES in reasons and _one_short(before, action)
            self.count(type(action), reasons, [SHORT] * short)
            return
        found = [*corners(before, action, after), *self._reuse(before, after)]
        self.count(type(action), reasons, [*found, *self._pages(before, after)])

    def count(self, kind: type, reasons: frozenset[Reason], found: Iterable[str]) -> None:
        """Count one step of an action. reasons: why it was refused. found: the corners reached."""
        self._steps[kind, reasons] = self._steps.get((kind, reasons), 0) + 1
        if reasons:
            self.corners[REFUSED] += 1
        for corner in found:
            self.corners[corner] += 1

    def poisoned(self) -> None:
        """Count a poisoning of dead cells."""
        self.corners[POISONED] += 1

    def coverable(self, names: Iterable[str]) -> list[str]:
        """Every outcome and corner state that a run must reach with the actions of these names.

        POISON is among the names if the dead cells of the engine can be overwritten.
        """
        offered, wanted = set(names), []
        for name in offered - {POISON}:
            wanted.append(f"{name}: done")
            wanted += [f"{name}: {reason.name}" for reason in REFUSABLE[name]]
        return sorted(wanted) + [
            corner
            for corner, needs in CORNERS.items()
            if all(offered.intersection(need.split("|")) for need in needs)
        ]

    def coverable_on(self, engine: Engine) -> list[str]:
        """Every outcome and corner state that a run of this engine must reach."""
        names = sorted(action.__name__ for action in engine.profile.actions)
        return self.coverable(names + [POISON] * isinstance(engine, Poisonable))

    def covered(self, coverable: list[str]) -> list[str]:
        """The items of `coverable` that the run has reached."""
        reached = self.outcomes + self.corners
        return [item for item in coverable if reached[item]]

    def _reuse(self, before: State, after: State) -> Iterator[str]:
        """A slot with sequences that were longer, shorter, and longer again."""
        for slot, (old, new) in enumerate(zip(before.sequences, after.sequences, strict=True)):
            lengths = self._previous.setdefault(slot, [])
            if old is not None and old.written and _ended(old, new):
                lengths[:] = [*lengths[-1:], old.written]
            if new is not None and len(lengths) > 1 and lengths[-2] > lengths[-1] < new.written:
                yield SLOT_REUSED
                lengths.clear()

    def _pages(self, before: State, after: State) -> Iterator[str]:
        """A page that has one more name and is shared; a page that is taken after its release."""
        if before.counts is after.counts:
            return
        shared = reused = False
        for page, (old, new) in enumerate(zip(before.counts, after.counts, strict=True)):
            shared |= new > max(old, 1)
            reused |= new > old == 0 and page in self._released
            if old > new == 0:
                self._released.add(page)
        yield from [SHARED] * shared + [PAGE_REUSED] * reused


def _ended(old: Sequence, new: Sequence | None) -> bool:
    """Whether the slot lost its sequence. A truncation keeps the tokens: it ends nothing."""
    return new is None or new.tokens[: len(old.tokens)] != old.tokens


def _one_short(state: State, action: Action) -> bool:
    """Whether exactly one more free page would have been enough."""
    wanted = ACTIONS[type(action)].pages_wanted(state, action)
    return wanted == pool.free_count(state.counts) + 1
