"""Vectors: recordings of the specification itself, on the histories that cover a suite."""

from collections import Counter
from functools import cached_property
from typing import Final

from attrs import evolve, field, frozen

from conformance.recordings.by_specification import BySpec
from conformance.recordings.fields import saw
from conformance.recordings.format import Header, Line
from conformance.rungs.registry import KITS
from conformance.vectors.cover import cover
from conformance.vectors.reach import Reach, Step, covered, pair
from conformance.vectors.suites import Suite

NOT_ONE_STEP: Final = frozenset(
    {"slot reused by a shorter, then a longer sequence", "poisoned dead cells read past"}
)
"""Boundary cases that take more than one action."""


@frozen
class Vector:
    """One recording. name: of its files, without suffix. covers: the items that it covers."""

    name: str
    header: Header
    lines: tuple[Line, ...]
    covers: frozenset[str]


@frozen
class Cover:
    """The coverage of a suite. reach: its whole graph. histories, vectors: those that cover it."""

    suite: Suite
    reach: Reach = field(repr=False)
    histories: list[list[Step]] = field(repr=False)
    vectors: tuple[Vector, ...]

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of vectors that cover each item that can be reached, by item."""
        found = Counter(item for vector in self.vectors for item in vector.covers)
        return {item: found[item] for item in sorted(self.reach.coverable)}

    @property
    def missing(self) -> list[str]:
        """The items that can be reached and that no vector covers."""
        return [item for item, times in self.counts.items() if not times]

    @property
    def unreachable(self) -> dict[str, str]:
        """The items that no history at this geometry shows, each with the reason for that."""
        everywhere = f"no move in any of the {len(self.reach.steps)} states shows it"
        after = f"in none of the {len(self.reach.steps)} states can the second follow the first"
        reasons = {reason for item in self.counts for reason in _one_by_one(item)}
        machine = self.suite.machine
        asked = {
            f"{kind.__name__}: {reason.name}"
            for kind in machine.rules
            if kind.__name__ in self.suite.names
            for reason in machine.reasons(kind)
        }
        named = {
            name for kit in KITS if kit.rung in self.suite.machine.names for name in kit.corners
        }
        corners = named - {item.partition(" (")[0] for item in self.counts} - NOT_ONE_STEP
        kinds = sorted({step.kind for steps in self.reach.steps for step in steps.values()})
        pairs = {pair(one, other) for one in kinds for other in kinds}
        return {
            **dict.fromkeys(sorted(asked - reasons), everywhere),
            **dict.fromkeys(sorted(corners), everywhere),
            **dict.fromkeys(sorted(NOT_ONE_STEP), "not asked for: it takes more than one action"),
            **dict.fromkeys(sorted(pairs - self.counts.keys()), after),
        }


def build(suite: Suite) -> Cover:
    """Build the graph of a suite, choose histories that cover it, and record them as vectors."""
    reach = Reach(suite)
    histories = cover(reach)
    digits = len(str(len(histories)))
    return Cover(
        suite,
        reach,
        histories,
        tuple(
            _vector(f"{suite.name}-{number:0{digits}}", suite, steps)
            for number, steps in enumerate(histories, start=1)
        ),
    )


def _vector(name: str, suite: Suite, steps: list[Step]) -> Vector:
    """The recording of a history by the specification, with every change of every field."""
    instance, state, lines = suite.instance, suite.initial(), list[Line]()
    header = Header(geometry=instance.geometry, limits=instance.limits, cleanup=instance.cleanup)
    machine = BySpec(evolve(header, policy="lowest"), suite.machine)
    header = evolve(header, engine=name, policy="lowest", shows=tuple(machine.fields))
    for step in steps:
        action = suite.moves[step.move].action(state)
        assert action is not None
        reasons = machine.reasons(action)
        if reasons:
            lines.append(Line(action, reasons, None, {}))
            continue
        done = machine.do(Line(action, None, None, {}))
        only = next(iter(done.results)) if len(done.results) == 1 else None
        lines.append(Line(action, None, only, saw(machine.fields, done.changes)))
        state = suite.machine.effect(state, action)
    return Vector(name, header, tuple(lines), frozenset(covered(steps)))


def _one_by_one(item: str) -> list[str]:
    """An outcome with several reasons, as one outcome for each reason."""
    name, _, reasons = item.partition(": ")
    return [f"{name}: {reason}" for reason in reasons.split("+")]
