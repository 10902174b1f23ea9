"""Coverage of a run: actions with their outcomes, and corner states, where bugs live.

A sampled "holds" needs both the budget spent and every required item reached; the report names the
items that were not reached. Source: docs/sources.md, "Verdicts" and "Conditions that bugs need".
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from attrs import evolve

from conformance.protocol import Action, Engine, Poisonable
from conformance.rungs.record import AHEAD, LAZY
from conformance.rungs.registry import CORNERS, REFUSABLE, corners
from spec import ladder, pool
from spec.state import State
from spec.table import Sequence
from spec.vocabulary import Reason

POISON: Final = "PoisonDead"
MACHINE: Final = ladder.machine(ladder.SERVING)
"""The rules of the actions that may be refused for lack of pages."""
_CONDITIONS: Final = frozenset({POISON, LAZY, AHEAD})
"""What decides about corners beside the names of actions."""


class Coverage:
    """Counts of actions, outcomes and corner states of one run."""

    def __init__(self) -> None:
        self.actions: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.corners: Counter[str] = Counter()
        self._previous: dict[int, list[int]] = {}

    def record(
        self,
        before: State,
        action: Action,
        reasons: frozenset[Reason],
        after: State,
    ) -> None:
        """Count one step."""
        name = type(action).__name__
        self.actions[name] += 1
        if reasons:
            for reason in reasons:
                self.outcomes[f"{name}: {reason.name}"] += 1
            if Reason.OUT_OF_PAGES in reasons:
                self.corners.update(_short(before, action))
            return
        self.outcomes[f"{name}: done"] += 1
        self.corners.update(corners(before, action, after))
        self._reuse(before, after)

    def poisoned(self) -> None:
        """Count a poisoning of dead cells."""
        self.corners["poisoned dead cells read past"] += 1

    def coverable(self, names: Iterable[str]) -> list[str]:
        """Every outcome and corner state that a run must reach with the actions of these names.

        POISON is among the names if the dead cells of the engine can be overwritten, and LAZY and
        AHEAD are if it has these policies.
        """
        offered, wanted = set(names), []
        for name in offered - _CONDITIONS:
            wanted.append(f"{name}: done")
            wanted += [f"{name}: {reason.name}" for reason in REFUSABLE[name]]
        if LAZY in offered and AHEAD not in offered and "Clone" in offered:
            wanted.remove("Clone: OUT_OF_PAGES")  # such a clone takes no page
        return sorted(wanted) + [
            corner
            for corner, needs in CORNERS.items()
            if all(offered.intersection(need.split("|")) for need in needs)
        ]

    def coverable_on(self, engine: Engine) -> list[str]:
        """Every outcome and corner state that a run of this engine must reach."""
        profile, poisonable = engine.profile, isinstance(engine, Poisonable)
        names = [action.__name__ for action in profile.actions]
        conditions = {POISON: poisonable, LAZY: profile.copy == "lazy", AHEAD: profile.lookahead}
        return self.coverable(names + [name for name, holds in conditions.items() if holds])

    def covered(self, coverable: list[str]) -> list[str]:
        """The items of `coverable` that the run has reached."""
        return [item for item in coverable if self.outcomes[item] or self.corners[item]]

    def _reuse(self, before: State, after: State) -> None:
        """Count a slot with sequences that were longer, shorter, and longer again."""
        for slot, (old, new) in enumerate(zip(before.sequences, after.sequences, strict=True)):
            lengths = self._previous.setdefault(slot, [])
            if old is not None and old.written and _ended(old, new):
                lengths.append(old.written)
            if new is not None and len(lengths) > 1 and lengths[-2] > lengths[-1] < new.written:
                self.corners["slot reused by a shorter, then a longer sequence"] += 1
                lengths.clear()


def _ended(old: Sequence, new: Sequence | None) -> bool:
    """Whether the slot lost its sequence. A truncation keeps the tokens: it ends nothing."""
    return new is None or new.tokens[: len(old.tokens)] != old.tokens


def _short(state: State, action: Action) -> Iterator[str]:
    """The corners of an action that is refused for lack of pages, by an engine."""
    free = pool.free_count(state.counts)
    if Reason.OUT_OF_PAGES not in {found.reason for found in MACHINE.refusals(state, action)}:
        return
    if MACHINE.pages_wanted(state, action) != free + 1:
        return
    yield "one page short"
    nothing_ahead = state._replace(capacity=evolve(state.capacity, lookahead=0))
    if MACHINE.pages_wanted(nothing_ahead, action) <= free:
        yield "one page short of what is taken ahead"
