"""Our host as it serves a whole list of requests: as usual, in trouble, and in another thread."""

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Final

import jax
import numpy as np
from attrs import frozen

from conformance.engines.driving import entries_of, with_a_list
from conformance.engines.lost_state import calls_of_host, require_lost
from conformance.engines.snapshots import snapshots
from conformance.engines.trouble import (
    NEVER,
    RAISED,
    RestorableHost,
    Trouble,
    TroubledEngine,
    is_main_thread,
)
from conformance.protocol import EngineFailed
from impl.engine import Key, Output, StateLost
from impl.host import HostState, Stalled
from impl.state import State
from spec.fields import OutputEntry
from spec.vocabulary import Params, Reason, Refused, Request

ELSEWHERE_EVERY: Final = 5
"""One of so many times another thread serves."""


@frozen
class Serving:
    """An engine and its host."""

    engine: TroubledEngine
    host: RestorableHost

    def serve(self, requests: Sequence[Request]) -> tuple[OutputEntry, ...]:
        """The host's whole loop. It is served once more, from the same state, with trouble in it,
        or in another thread.

        What is returned is not kept: nothing is left to be taken.
        """
        before = self.engine.extract(), self.host.state
        number = self._number(requests)
        first = self._generated(requests)
        calls = self.engine.calls
        right = entries_of((*first, *self._rest(first)))
        if is_main_thread():
            after = self.engine.extract(), self.host.state
            kind, at = divmod(number, calls)
            given = self.put_back(*before)
            if kind % ELSEWHERE_EVERY:
                self._in_trouble(requests, right, kind, at)
            else:
                self._elsewhere(requests, right)
            require_there(given)
            self.put_back(*after)
        return right

    def _number(self, requests: Sequence[Request]) -> int:
        """A number by the state and the requests alone, so that each run has the same one."""
        snapshot = np.asarray(snapshots(self.engine.packed, cells=False))
        asked = repr((self.host.state, tuple(requests)))
        return zlib.crc32(asked.encode(), zlib.crc32(snapshot.tobytes()))

    def _in_trouble(
        self, requests: Sequence[Request], right: tuple[OutputEntry, ...], kind: int, at: int
    ) -> None:
        """Serve with trouble at the call of this number, and then reset or go on, by the kind.

        Raises EngineFailed unless the outputs are the right ones then.
        """
        trouble = (Trouble.CTRL_C, Trouble.ALARM, Trouble.CTRL_C, Trouble.TIMEOUT)[kind % 4]
        try:
            self._generated(requests, trouble, at)
        except RAISED[trouble]:
            is_lost = self.is_lost()
        else:
            raise EngineFailed(f"{trouble.value} in call {at} is lost", clause="ATOMIC")
        told = f"after {trouble.value} in call {at} of the host"
        if is_lost and trouble is Trouble.CTRL_C:
            raise EngineFailed(f"{told}, its state is lost", clause="ATOMIC")
        if is_lost or kind % 3 == 0:
            self._require_as_new(told)
            return
        self._require_ids_taken()
        rest, kept = self._unknown(requests), entries_of(self.host.state.finished)
        taken = self.host.take_outputs() if kind % 3 == 1 else ()
        first = self._generated(rest)
        served = entries_of((*taken, *first, *self._rest(first)))
        if Counter(served) != Counter(right):
            wrong = f"{told}, what is served is {[*served]}, and {[*right]} without it"
            raise EngineFailed(wrong, clause="OUT")
        if served[: len(kept)] != kept:
            wrong = f"{told}, what is served is {[*served]}, and had begun with {[*kept]}"
            raise EngineFailed(wrong, clause="OUT")

    def _elsewhere(self, requests: Sequence[Request], right: tuple[OutputEntry, ...]) -> None:
        """Serve in another thread. Raises EngineFailed unless the outputs are the right ones."""
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(self._generated, requests).result()
        served = entries_of((*first, *self._rest(first)))
        if served != right:
            wrong = f"in another thread {[*served]} is served, and {[*right]} in this one"
            raise EngineFailed(wrong, clause="OUT")

    def _rest(self, outputs: tuple[Output, ...]) -> tuple[Output, ...]:
        """What is served after these were taken, so that their ids are free."""
        rest: tuple[Output, ...] = ()
        while outputs and (self.host.state.waiting or self.engine.stats().queued):
            outputs = self._generated(())
            rest += outputs
        return rest

    def put_back(self, state: State, of_host: HostState) -> State:
        """Bring engine and host into a state. Returns the arrays that the engine was given."""
        given: State = jax.device_put(state)
        self.engine.inject(given)
        self.host.restore(of_host)
        return given

    def is_lost(self) -> bool:
        """Whether the host says that it must be reset. Raises EngineFailed if it goes on then."""
        try:
            self.host.stats()
        except StateLost:
            pass
        else:
            return False
        require_lost(calls_of_host(self.host))
        return True

    def _require_as_new(self, told: str) -> None:
        """Reset. Raises EngineFailed if something is left."""
        self.host.reset()
        left = self.host.settle()
        if self.host.state != HostState() or left.active or left.outputs or left.queued:
            wrong = f"{told} and a reset, {self.host.state} and {left} are left"
            raise EngineFailed(wrong, clause="RESET")

    def _unknown(self, requests: Sequence[Request]) -> tuple[Request, ...]:
        """Those that the host had not yet queued."""
        stats, state = self.host.stats(), self.host.state
        known = {one.id for one in (*state.waiting, *state.admitted)}
        known |= {one.request for one in state.finished}
        known |= {name for name, _ in stats.occupants | stats.untaken}
        return tuple(one for one in requests if one.id not in known)

    def _require_ids_taken(self) -> None:
        """Raise EngineFailed if the id of an output that the host keeps can be used again."""
        for output in self.host.state.finished:
            try:
                self.host.submit(Request(id=output.request, prompt=(0,), params=Params(max_new=1)))
            except Refused as refused:
                if Reason.CHOICE_TAKEN in refused.reasons:
                    continue
            raise EngineFailed(f"the id of {output}, which was not taken, is free", clause="OUT")

    def _generated(
        self,
        requests: Sequence[Request],
        trouble: Trouble = Trouble.CTRL_C,
        at: int = NEVER,
    ) -> tuple[Output, ...]:
        """Serve, in trouble at one call.

        Raises EngineFailed if it stalls without work, or ends with some, or with outputs that it
        does not return.
        """
        meets = self.engine.meets(trouble, at) if is_main_thread() else nullcontext()
        stalled: Stalled | None = None
        try:
            with meets:
                served = _named(with_a_list(self.host.generate, requests))
        except Stalled as error:
            served, stalled = _named(error.outputs), error
        waiting, queued = len(self.host.state.waiting), self.engine.stats().queued
        if (stalled is not None) != bool(waiting or queued):
            how = "is done" if stalled is None else "stalls"
            wrong = f"it {how} with {waiting} requests waiting and {queued} tokens queued"
            raise EngineFailed(wrong, clause="PROG")
        if stalled is not None:
            self._require_stalls(stalled)
        left = self.host.take_outputs()
        if left:
            raise EngineFailed(f"it ends without the outputs {[*left]}", clause="OUT")
        return served

    def _require_stalls(self, stalled: Stalled) -> None:
        """Raise EngineFailed unless the host tells what the rest waits for.

        It may be the name of an output that is taken now: then nothing is asked once more.
        """
        told = sorted(one.reason.name for one in stalled.refusals)
        waiting = self.host.state.waiting
        if any(
            name == one.id and choice < one.n_generations
            for one in waiting[:1]
            for name, choice in stalled.outputs
        ):
            if Reason.CHOICE_TAKEN.name not in told:
                wrong = f"it stalls for {told}, should be for CHOICE_TAKEN"
                raise EngineFailed(wrong, clause="PROG")
            return
        try:
            if waiting:
                self.host.admit()
            else:
                self.engine.round()
        except Refused as refused:
            wanted = sorted(one.reason.name for one in refused.refusals)
            if told != wanted:
                wrong = f"it stalls for {told}, should be for {wanted}"
                raise EngineFailed(wrong, clause="PROG") from None
            return
        raise EngineFailed("it stalls, and goes on if it is asked once more", clause="PROG")


def require_there(given: State) -> None:
    """Raise EngineFailed if the calls since a state was put back have taken its arrays."""
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(given)):
        raise EngineFailed("a call after inject() deletes what was injected", clause="RESET")


def _named(outputs: Mapping[Key, Output]) -> tuple[Output, ...]:
    """The outputs. Raises EngineFailed unless each has the key of its request and choice."""
    for key, output in outputs.items():
        if key != (output.request, output.choice):
            raise EngineFailed(f"the output {output} has the key {key}", clause="OUT")
    return tuple(outputs.values())
