"""Actions of the specification as calls of our engine, and what those return."""

from collections.abc import Callable, Sequence
from typing import Any, Never, TypeVar

from conformance.protocol import Action, EngineFailed, Result, Rounds
from impl.engine import Engine, Output
from impl.models.protocol import BatchPlan as DevicePlan
from impl.setup import Setup
from spec.fields import OutputEntry
from spec.machines import actions as act
from spec.table import BatchPlan
from spec.vocabulary import INVALID

T = TypeVar("T")
R = TypeVar("R")


def drive(engine: Engine, action: Action) -> Result:  # noqa: C901, PLR0912 - a table
    """Apply an action of the specification to the engine, without a host."""
    match action:
        case act.Reserve(slot):
            return engine.reserve(slot, context=action.context)  # type: ignore[arg-type]
        case act.Assign(slot, prompt, params):
            engine.assign(slot, prompt, params, request=action.request, choice=action.choice)
        case act.Allocate(batch):
            return host_plan(with_a_list(engine.allocate, batch))
        case act.Write(batch):
            engine.write(batch)
        case act.Clone(parent, child):
            return engine.clone(parent, child, choice=action.choice)
        case act.Free(slot):
            engine.free(slot)  # type: ignore[arg-type]
        case act.Enqueue(slot, token):
            engine.enqueue(slot, token)
        case act.Pack():
            return engine.pack()
        case act.Purge(slot):
            engine.purge(slot)
        case act.Propose(slot, tokens):
            engine.propose(slot, tokens)
        case act.Commit(slot, length):
            engine.commit(slot, length)
        case act.Truncate(slot, length):
            engine.truncate(slot, length)
        case act.Release(slot, before):
            engine.release(slot, before)
        case act.Hit(slot, length):
            engine.hit(slot, length)
        case act.Share(parent, slot, length):
            engine.share_prefix(parent, slot, length)
        case act.Publish(slot, length):
            engine.publish(slot, length)
        case act.Merge(slot, entry):
            engine.merge(slot, entry)
        case act.Evict(tokens):
            engine.evict(tokens, context=action.context)
        case act.Prefill(requests):
            with_a_list(engine.prefill, requests)
        case act.MixedRound(chunks):
            with_a_list(engine.mixed_round, chunks)
        case act.Dispatch(chunks):
            with_a_list(engine.dispatch, chunks)
        case act.Preempt(request):
            engine.preempt(request)
        case act.Replay(slot, tokens):
            engine.replay(slot, tokens)
        case act.Generate():
            return Rounds(*engine.generate())
        case act.Reset(mode):
            engine.reset(mode)
        case _:
            return _drive_simple(engine, action)
    return None


def _drive_simple(engine: Engine, action: Action) -> Result:
    match action:
        case act.Round():
            engine.round()
        case act.Retire():
            engine.retire()
        case act.Deliver():
            engine.deliver()
        case act.FreeFinished():
            engine.free_finished()
        case act.Drop():
            engine.drop()
        case act.TakeOutputs():
            return entries_of(engine.take_outputs())
        case _:
            raise TypeError(action)
    return None


def with_a_list(call: Callable[[Sequence[T]], R], given: Sequence[T]) -> R:
    """Call with a list of what is given, or with what is none as it is.

    Raises EngineFailed if the call changes what the caller has given.
    """
    if not isinstance(given, list | tuple):
        return call(given)
    ours = [*given]
    try:
        return call(ours)
    finally:
        if ours != [*given]:
            raise EngineFailed(f"a call changes the list {[*given]} to {ours}", clause="ATOMIC")


def entries_of(outputs: Sequence[Output]) -> tuple[OutputEntry, ...]:
    """Outputs as the specification has them. Raises EngineFailed unless numbers are Python's."""
    for one in outputs:
        kinds = {type(number) for number in (one.request, one.choice, *one.tokens)}
        if kinds != {int} or not {float}.issuperset(map(type, one.logprobs)):
            raise EngineFailed(f"the numbers of {one} are not those of Python", clause="OUT")
    return tuple(
        (output.request, output.choice, output.tokens, output.reason) for output in outputs
    )


class _Recorded(Exception):
    """The call that a driver is about to make."""

    def __init__(self, name: str, given: tuple[Any, ...]) -> None:
        super().__init__(name)
        self.name, self.arguments = name, given


class _Recorder(Engine):
    """The driver without device state: it records its call instead of making it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def _call(self, name: str, *rest: Any) -> Never:
        raise _Recorded(name, rest)


def call_of(setup: Setup, action: Action) -> tuple[str, tuple[Any, ...]]:
    """The entry point that an action calls, and its arguments after weights and state.

    Raises Refused where the driver itself refuses.
    """
    try:
        drive(_Recorder(setup), action)
    except _Recorded as recorded:
        return recorded.name, recorded.arguments
    raise AssertionError(f"{action} calls no entry point")


def host_plan(plan: DevicePlan) -> BatchPlan:
    """The plan without its padding. Raises EngineFailed unless that names no slot and no cell."""
    count = int(plan.num_seqs[0])
    ends = plan.cu_q_lens[: count + 1].tolist()
    past = {*plan.slot_ids[count:].tolist(), *plan.destinations[ends[-1] :].tolist()}
    if not past <= {INVALID}:
        raise EngineFailed(f"the padding of a plan names {past}", clause="DET")
    rows = [_to_last_page(row) for row in plan.page_indices[:count].tolist()]
    return BatchPlan(
        slot_ids=tuple(plan.slot_ids[:count].tolist()),
        page_indices=tuple(rows),
        kv_lens=tuple(plan.kv_lens[:count].tolist()),
        cu_q_lens=tuple(ends),
        num_seqs=count,
        order=tuple(plan.order[: ends[-1]].tolist()),
        destinations=tuple(plan.destinations[: ends[-1]].tolist()),
    )


def _to_last_page(row: list[int]) -> tuple[int, ...]:
    """A table row without what follows its last page."""
    while row and row[-1] == INVALID:
        row = row[:-1]
    return tuple(row)
