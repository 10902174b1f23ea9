"""Vectors: what the specification itself records of the histories that cover a suite."""

from collections import Counter
from functools import cached_property
from typing import Final

from attrs import evolve, field, frozen

from conformance.recordings.by_specification import BySpec
from conformance.recordings.fields import saw
from conformance.recordings.format import Header, Line
from conformance.rungs.registry import KITS, REFUSABLE
from conformance.vectors.cover import cover
from conformance.vectors.reach import Reach, Step, covered, pair
from conformance.vectors.suites import Suite

NOT_ONE_STEP: Final = frozenset(
    {"slot reused by a shorter, then a longer sequence", "poisoned dead cells read past"}
)
"""Corners that are no matter of one action."""


@frozen
class Vector:
    """One recording. name: of its files. covers: what it covers."""

    name: str
    header: Header
    lines: tuple[Line, ...]
    covers: frozenset[str]


@frozen
class Cover:
    """What became of a suite. reach: the whole graph. histories, vectors: those that cover it."""

    suite: Suite
    reach: Reach = field(repr=False)
    histories: list[list[Step]] = field(repr=False)
    vectors: tuple[Vector, ...]

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many vectors cover each thing that can be reached."""
        found = Counter(item for vector in self.vectors for item in vector.covers)
        return {item: found[item] for item in sorted(self.reach.coverable)}

    @property
    def missing(self) -> list[str]:
        """What can be reached and no vector covers."""
        return [item for item, times in self.counts.items() if not times]

    @property
    def unreachable(self) -> dict[str, str]:
        """What one might ask for and no history at this geometry shows, and why that is known."""
        everywhere = f"no move in any of the {len(self.reach.steps)} states shows it"
        after = f"in none of the {len(self.reach.steps)} states can the second follow the first"
        reasons = {reason for item in self.counts for reason in _one_by_one(item)}
        asked = {
            f"{name}: {reason.name}" for name in self.suite.names for reason in REFUSABLE[name]
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
    """Look at everything that a suite can reach, and record what covers it."""
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
    """The specification's own recording, with every change of every field."""
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
        ours = next(iter(done.results), None)
        lines.append(Line(action, None, ours, saw(machine.fields, done.changes)))
        state = suite.machine.effect(state, action)
    return Vector(name, header, tuple(lines), frozenset(covered(steps)))


def _one_by_one(item: str) -> list[str]:
    """An outcome with several reasons, as one with each."""
    name, _, reasons = item.partition(": ")
    return [f"{name}: {reason}" for reason in reasons.split("+")]
