"""What a run reached: actions with their outcomes, and the states where bugs live.

A sampled "holds" needs both the budget spent and every required item reached; the report names what
was not. Source: DESIGN, section 6; `research/bugs.md`, section 3.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from conformance.protocol import Action, Engine, Poisonable
from spec.machines import scheduling
from spec.machines.actions import (
    Allocate,
    Clone,
    Free,
    Prefill,
    Round,
    Write,
)
from spec.state import State
from spec.table import Sequence, by_slot
from spec.vocabulary import Reason

SLOT_REASONS: Final = (Reason.SLOT_RANGE, Reason.SLOT_UNUSED)
REFUSABLE: Final[Mapping[str, tuple[Reason, ...]]] = {
    "Reserve": (Reason.SLOT_RANGE, Reason.SLOT_USED, Reason.NO_FREE_SLOT),
    "Assign": (
        *SLOT_REASONS,
        Reason.SLOT_ASSIGNED,
        Reason.TOO_LONG,
        Reason.CHOICE_TAKEN,
    ),
    "Allocate": (
        Reason.SLOT_RANGE,
        Reason.BATCH_POSITIONS,
        Reason.TOO_LONG,
        Reason.OUT_OF_PAGES,
    ),
    "Write": (Reason.SLOT_RANGE, Reason.SLOT_EMPTY, Reason.BATCH_POSITIONS),
    "Clone": (
        *SLOT_REASONS,
        Reason.SLOT_USED,
        Reason.NO_FREE_SLOT,
        Reason.UNWRITTEN,
        Reason.CHOICE_TAKEN,
        Reason.OUT_OF_PAGES,
    ),
    "Free": SLOT_REASONS,
    "FreeFinished": (),
    "Reset": (),
    "TakeOutputs": (),
    "Enqueue": (*SLOT_REASONS, Reason.SLOT_EMPTY, Reason.TOO_LONG),
    "Pack": (),
    "Purge": SLOT_REASONS,
    "Prefill": (
        Reason.PREFILL_WIDTH,
        Reason.TOO_LONG,
        Reason.NO_FREE_SLOT,
        Reason.OUT_OF_PAGES,
        Reason.OUTPUTS_FULL,
    ),
    "Round": (Reason.QUEUE_EMPTY, Reason.OUT_OF_PAGES, Reason.OUTPUTS_FULL),
    "Generate": (),
    "Submit": (Reason.TOO_LONG, Reason.NEVER_FITS, Reason.CHOICE_TAKEN),
    "Admit": (Reason.QUEUE_EMPTY, Reason.NO_FREE_SLOT, Reason.OUT_OF_PAGES),
}
"""For each action the refusals that a run must reach; rarer ones are counted when they happen."""

POISON: Final = "PoisonDead"
_GROWS: Final = "Allocate|Prefill"
_FILLS: Final = "Write|Prefill"
_BATCH: Final = "Allocate|Write"
CORNERS: Final[Mapping[str, tuple[str, ...]]] = {
    "finish at a page boundary": ("Round|Prefill",),
    "finish inside a page": ("Round|Prefill",),
    "clone at a page boundary": ("Clone", _FILLS),
    "clone inside a page": ("Clone", _FILLS),
    "free at a page boundary": ("Free", _FILLS),
    "free a parent before its clone": ("Free", "Clone", _FILLS),
    "holes in the slot ids of a batch": (_BATCH,),
    "pool exactly full": (_GROWS,),
    "one page short": (_GROWS,),
    "slot reused by a shorter, then a longer sequence": (_FILLS,),
    "batch with padding inside": (_BATCH,),
    "batch not sorted": (_BATCH,),
    "several slots in one batch": (_BATCH,),
    "poisoned dead cells read past": (POISON,),
    "page size 1": (),
}
"""The states where bugs live, and of which actions an engine must offer one each to get there."""


class Coverage:
    """Counts of actions, outcomes and corners of one run."""

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
            if Reason.OUT_OF_PAGES in reasons and _one_short(before, action):
                self.corners["one page short"] += 1
            return
        self.outcomes[f"{name}: done"] += 1
        self.corners.update(_corners(before, action, after))
        self._reuse(before, after)

    def poisoned(self) -> None:
        """Count a poisoning of dead cells."""
        self.corners["poisoned dead cells read past"] += 1

    def coverable(self, names: Iterable[str]) -> list[str]:
        """Every outcome and corner that a run must reach with these actions, POISON being one."""
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
        """The same for what this engine offers."""
        names = sorted(action.__name__ for action in engine.profile.actions)
        return self.coverable(names + [POISON] * isinstance(engine, Poisonable))

    def covered(self, coverable: list[str]) -> list[str]:
        """Those of them that it did reach."""
        return [item for item in coverable if self.outcomes[item] or self.corners[item]]

    def _reuse(self, before: State, after: State) -> None:
        """A slot whose last tenants' lengths went down, then up."""
        for slot, (old, new) in enumerate(zip(before.sequences, after.sequences, strict=True)):
            lengths = self._previous.setdefault(slot, [])
            if old is not None and (new is None or new.written < old.written) and old.written:
                lengths.append(old.written)
            if new is not None and len(lengths) > 1 and lengths[-2] > lengths[-1] < new.written:
                self.corners["slot reused by a shorter, then a longer sequence"] += 1
                lengths.clear()


def _corners(before: State, action: Action, after: State) -> Iterator[str]:
    size = before.geometry.page_size
    if size == 1:
        yield "page size 1"
    if before.counts.count(0) and not after.counts.count(0):
        yield "pool exactly full"
    match action:
        case Allocate(batch) | Write(batch):
            yield from _batch_corners(batch)
        case Clone(parent):
            yield "clone " + _where(before.sequences[parent], size)
        case Free(int(slot)):
            yield from _free_corners(before, slot, size)
        case Round() | Prefill():
            yield from _finish_corners(before, after, size)
        case _:
            return


def _batch_corners(batch: tuple[tuple[int, int] | None, ...]) -> Iterator[str]:
    entries = [entry for entry in batch if entry is not None]
    slots = list(by_slot(batch))
    if None in batch[:-1] and entries:
        yield "batch with padding inside"
    if entries != sorted(entries):
        yield "batch not sorted"
    if len(slots) > 1:
        yield "several slots in one batch"
    if slots and slots != list(range(len(slots))):
        yield "holes in the slot ids of a batch"


def _free_corners(before: State, slot: int, size: int) -> Iterator[str]:
    sequence = before.sequences[slot]
    if sequence is None or not sequence.written:
        return
    if sequence.written % size == 0:
        yield "free at a page boundary"
    counts = before.counts
    if any(counts[page] > 1 for page in sequence.row):
        yield "free a parent before its clone"


def _finish_corners(before: State, after: State, size: int) -> Iterator[str]:
    for output in after.outputs[len(before.outputs) :]:
        boundary = (len(output.prompt) + len(output.tokens)) % size == 0
        yield "finish at a page boundary" if boundary else "finish inside a page"


def _where(sequence: Sequence | None, size: int) -> str:
    boundary = sequence is not None and sequence.written % size == 0
    return "at a page boundary" if boundary else "inside a page"


def _one_short(state: State, action: Action) -> bool:
    """Whether exactly one more free page would have been enough."""
    free = state.counts.count(0)
    size = state.geometry.page_size
    match action:
        case Allocate(batch):
            return sum(entry is not None and entry[1] % size == 0 for entry in batch) == free + 1
        case Prefill(requests):
            wanted = sum(scheduling.prefill_pages(state.geometry, one) for one in requests)
            return wanted == free + 1
        case Clone():
            return True
        case _:
            return False
