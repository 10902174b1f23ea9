"""What an engine shows besides its view, compared with the specification.

Statistics, the events of the index, the log-probabilities of outputs, and the cells after a
physical reset; each only if the adapter has the method for it. Source: docs/sources.md, "Decode
statistics", "Page statistics", "Prefix cache", "Sampling" and "Logical and physical reset".
"""

from collections.abc import Iterator
from itertools import zip_longest

from conformance.lockstep.comparer import (
    Difference,
    erased_difference,
    event_difference,
    logprob_difference,
    statistic_difference,
    untold_difference,
)
from conformance.protocol import Action, Counts, Emits, Engine, Erases, Scores
from spec import events, model
from spec.events import Keys
from spec.machines.actions import Clone, Commit, Enqueue, Replay, Reset, TakeOutputs
from spec.machines.lifecycle import Key, detail_of, taken_keys
from spec.machines.pages import used
from spec.rung import Machine
from spec.state import State
from spec.stats import NAMED, Totals
from spec.view import View
from spec.vocabulary import ResetMode


def statistics_differences(
    step: object, engine: Engine, machine: Machine, state: State, totals: Totals
) -> Iterator[Difference]:
    """The errors in the statistics that an engine shows after a step."""
    if not isinstance(engine, Counts):
        return
    for name, seen in engine.statistics().items():
        if NAMED[name].owner in machine.names:
            expected = NAMED[name].of(state, totals)
            found = statistic_difference(step, name, seen=seen, expected=expected)
            if found is not None:
                yield found


class Told:
    """The keys of the index as the events of an engine tell them."""

    def __init__(self) -> None:
        self._stored = Keys()

    def differences(self, engine: Engine, state: State) -> Iterator[Difference]:
        """Take the events since the last call, which lead to the index of a state."""
        if not isinstance(engine, Emits):
            return
        told = engine.events()
        for event in told:
            missing = events.unfit(self._stored, event, state.geometry.page_size)
            if missing:
                yield event_difference(event, missing)
            self._stored = events.fold(self._stored, event)
        indexed = events.keys(state.indexed)
        for key in sorted(indexed ^ self._stored.keys()):
            yield untold_difference(key, expected=key in indexed)


class Given:
    """The tokens of each choice that were not drawn: enqueued and replayed ones, and drafts that
    were committed.

    They have no log-probability.
    """

    def __init__(self) -> None:
        self._positions: dict[Key, frozenset[int]] = {}

    def add(self, before: State, action: Action, after: State) -> None:
        """Follow an action that was done; a choice is forgotten when its output is taken."""
        match action:
            case Enqueue(int(slot)) | Commit(int(slot)) | Replay(int(slot)):
                first, end = len(used(before, slot).tokens), len(used(after, slot).tokens)
                key = _key(after, slot)
                self._positions[key] = self.of(key).union(range(first, end))
            case Clone(int(parent), choice=choice) if self._positions:
                key = _key(before, parent)
                self._positions[key[0], choice] = self.of(key)
        if self._positions:
            kept = taken_keys(after)
            self._positions = {key: at for key, at in self._positions.items() if key in kept}

    def of(self, key: Key) -> frozenset[int]:
        """The positions of those of one choice."""
        return self._positions.get(key, frozenset())


def differences(
    engine: Engine, given: Given, before: State, action: Action, seen: View
) -> Iterator[Difference]:
    """The errors in what an engine shows after an action that was done.

    given: until that action. before: the state before it. seen: the view after it.
    """
    match action:
        case TakeOutputs() if isinstance(engine, Scores):
            yield from _wrong_logprobs(engine, given, before)
        case Reset(ResetMode.PHYSICAL) if isinstance(engine, Erases):
            yield from _not_erased(engine, seen)


def _wrong_logprobs(engine: Scores, given: Given, before: State) -> Iterator[Difference]:
    for output, shown in zip_longest(before.outputs, engine.logprobs()):
        key = (output.request, output.choice) if output else (-1, -1)
        prompt = output.prompt if output else ()
        right = model.logprobs(prompt, output.tokens, before.geometry.window) if output else ()
        for position, (seen, expected) in enumerate(zip_longest(shown or (), right)):
            if len(prompt) + position in given.of(key):
                continue
            found = logprob_difference(key, position, seen=seen, expected=expected)
            if found is not None:
                yield found


def _key(state: State, slot: int) -> Key:
    detail = detail_of(state, slot)
    return detail.request, detail.choice


def _not_erased(engine: Erases, seen: View) -> Iterator[Difference]:
    erased = engine.erased()
    for cell in range(len(seen.cells or ())):
        assert seen.cells is not None
        found = erased_difference(cell, seen=seen.cells[cell], erased=erased)
        if found is not None:
            yield found
