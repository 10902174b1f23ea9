"""What an engine shows besides its view, compared with the specification.

Statistics, the log-probabilities of outputs, and the cells after a physical reset; each only if the
adapter has the method for it. Source: docs/sources.md, "Decode statistics", "Page statistics",
"Sampling" and "Logical and physical reset".
"""

from collections.abc import Iterator
from itertools import zip_longest

from conformance.lockstep.comparer import (
    Difference,
    erased_difference,
    logprob_difference,
    statistic_difference,
)
from conformance.protocol import Action, Counts, Engine, Erases, Scores
from spec import model
from spec.machines.actions import Clone, Commit, Enqueue, Reset, TakeOutputs
from spec.machines.lifecycle import Key, detail_of, taken_keys
from spec.machines.pages import used
from spec.rung import Machine
from spec.state import State
from spec.stats import NAMED
from spec.view import View
from spec.vocabulary import ResetMode


def statistics_differences(
    step: object, engine: Engine, machine: Machine, state: State
) -> Iterator[Difference]:
    """The errors in the statistics that an engine shows after a step."""
    if not isinstance(engine, Counts):
        return
    for name, seen in engine.statistics().items():
        if NAMED[name].owner in machine.names:
            found = statistic_difference(step, name, seen=seen, expected=NAMED[name].of(state))
            if found is not None:
                yield found


class Besides:
    """What an engine shows after some actions, and what was given to its sequences until then.

    A log-probability belongs to a token that was drawn. A token that was enqueued, and a draft that
    was committed, was given.
    """

    def __init__(self, engine: Engine) -> None:
        self._scores = engine if isinstance(engine, Scores) else None
        self._erases = engine if isinstance(engine, Erases) else None
        self._given: dict[Key, frozenset[int]] = {}

    def differences(
        self, before: State, action: Action, after: State, seen: View
    ) -> Iterator[Difference]:
        """The errors in what an action that was done shows. seen: the view after it."""
        match action:
            case TakeOutputs() if self._scores is not None:
                yield from self._wrong_logprobs(self._scores, before)
            case Reset(ResetMode.PHYSICAL) if self._erases is not None:
                yield from _not_erased(self._erases, seen)
        if self._scores is not None:
            self._follow(before, action, after)

    def _follow(self, before: State, action: Action, after: State) -> None:
        """Keep the positions of the tokens that were given to each choice, until it is taken."""
        match action:
            case Enqueue(int(slot)) | Commit(int(slot)):
                first, end = len(used(before, slot).tokens), len(used(after, slot).tokens)
                key = _key(after, slot)
                given = self._given.get(key, frozenset())
                self._given[key] = given.union(range(first, end))
            case Clone(int(parent), choice=choice) if _key(before, parent) in self._given:
                key = _key(before, parent)
                self._given[key[0], choice] = self._given[key]
        if self._given:
            kept = taken_keys(after)
            self._given = {key: given for key, given in self._given.items() if key in kept}

    def _wrong_logprobs(self, engine: Scores, before: State) -> Iterator[Difference]:
        for output, shown in zip_longest(before.outputs, engine.logprobs(), fillvalue=None):
            key = (output.request, output.choice) if output else (-1, -1)
            prompt = output.prompt if output else ()
            right = model.logprobs(prompt, output.tokens, before.geometry.window) if output else ()
            for position, (seen, expected) in enumerate(zip_longest(shown or (), right)):
                if len(prompt) + position in self._given.get(key, ()):
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
