"""Shorter histories by what the specification says of their steps: sequences, and folds of steps.

A history names slots. Which sequence a slot holds depends on every step before. So the history is
run through the specification, and each step is kept with the sequences that its slots hold. It can
then be changed, and run again for the slots that these sequences have now.

`Rule.parts` says of which parts a prefill or a round is a fold. Where an engine offers such an
action, it stands for the steps that do its parts one after another.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final

from attrs import evolve, frozen

from conformance.history import Attend, History, PoisonDead, Step
from conformance.protocol import Profile
from conformance.rungs.registry import simpler_steps
from spec.machines import actions as act
from spec.rung import Machine
from spec.state import State
from spec.table import Batch
from spec.vocabulary import Params, Request, Tokens

SLOTS: Final = ("slot", "parent", "child")
"""Fields of actions that name a slot."""
Sequences = Mapping[int, int]
"""The sequence that each slot in use holds; sequences are numbered as they begin."""


@frozen
class Told:
    """A step with the sequences that its slots hold.

    state, held: the state before it, and the sequence of each slot in use. done: whether the
    specification does it. begins: the sequences that begin by it, by slot. flight: the number of
    the step in flight that it dispatches, retires or delivers. matters: whether a history without
    it is not worth a try.
    """

    step: Step
    state: State
    held: Sequences
    done: bool
    begins: tuple[int, ...] = ()
    flight: int | None = None
    matters: bool = False

    @property
    def names(self) -> set[int]:
        """The sequences that it names."""
        return {self.held[slot] for slot in named(self.step) if slot in self.held}


Changed = tuple[Told, ...]


def shorter_by_specification(
    history: History, profile: Profile
) -> Iterator[Callable[[], History | None]]:
    """Histories that are smaller by `size_of`, with no action that the engine does not offer.

    Each is made when it is called; None stands for a history that is not worth a try.
    """
    told, size = told_of(history, profile), size_of(history)
    for changed in chain(
        _without_refused(told),
        _without_a_sequence(told),
        _without_a_flight(told),
        _without_a_run(told),
        _without_contexts(told),
        _folded(told, profile),
        _all_folded(told, profile),
        _landed(told, profile),
        _prefilled_further(told),
        _joined(told, profile),
        _folded_and_less(told, profile),
        _unnamed(told),
    ):
        yield partial(_if_smaller, changed, profile, size)


def size_of(history: History) -> tuple[int, int, int]:
    """The steps; then the choices of the requests; then the slots and contexts that steps choose.

    Prompts may become longer where one of these becomes less.
    """
    choices = chosen = 0
    for step in history:
        match step:
            case act.Prefill(requests):
                choices += sum(request.n_generations for request in requests)
            case act.Reserve(slot, context):
                chosen += (slot is not None) + bool(context)
            case act.Clone(_, child):
                chosen += child is not None
    return len(history), choices, chosen


def _if_smaller(changed: Changed, profile: Profile, size: tuple[int, int, int]) -> History | None:
    history = with_slots(changed, profile)
    return history if history is not None and size_of(history) < size else None


def named(step: Step) -> set[int]:
    """The slots that a step names."""
    fields = {getattr(step, name, None) for name in SLOTS}
    pairs = (*getattr(step, "batch", ()), *getattr(step, "chunks", ()))
    entries = {pair[0] for pair in pairs if pair is not None}
    return {slot for slot in fields | entries if type(slot) is int}


def relabelled(step: Step, rename: Callable[[int], int]) -> Step:
    """The same step with its slots renamed."""
    changes: dict[str, Any] = {
        name: rename(slot) for name in SLOTS if type(slot := getattr(step, name, None)) is int
    }
    if isinstance(step, act.Allocate | act.Write):
        changes["batch"] = tuple(entry and (rename(entry[0]), entry[1]) for entry in step.batch)
    if isinstance(step, act.MixedRound | act.Dispatch):
        changes["chunks"] = tuple((rename(slot), count) for slot, count in step.chunks)
    changed: Step = evolve(step, **changes)
    return changed


def told_of(history: History, profile: Profile) -> Changed:
    """Each step with the sequences that its slots hold, as in the specification."""
    machine, state = profile.machine, _initial(profile)
    held, number, dispatched, told = dict[int, int](), 0, 0, list[Told]()
    for step in history:
        after, done = _taken(machine, state, step)
        begun = _begun(state, after)
        begins = tuple(range(number, number + len(begun)))
        flight = _flight_of(step, state, dispatched) if done else None
        dispatched += isinstance(step, act.Dispatch) and done
        told.append(Told(step, state, dict(held), done, begins, flight))
        held = {slot: held[slot] for slot in held if after.sequences[slot] is not None}
        held |= dict(zip(begun, begins, strict=True))
        state, number = after, number + len(begun)
    return (*told[:-1], *(evolve(last, matters=True) for last in told[-1:]))


def with_slots(told: Changed, profile: Profile) -> History | None:
    """The steps with the slots that the sequences have when these steps are taken.

    What was done before and is refused now is left out. None if a step that matters is not done as
    before, or if the last one is gone.
    """
    if not told or not told[-1].matters:
        return None
    machine, state = profile.machine, _initial(profile)
    slots, history = dict[int, int](), list[Step]()
    for one in told:
        step = relabelled(one.step, partial(_slot_now, slots, one.held))
        step = _as_much(one, step, state)
        after, done = _taken(machine, state, step)
        if done == one.done:
            history.append(step)
        elif one.matters:
            return None
        slots |= dict(zip(one.begins, _begun(state, after), strict=False))
        state = after
    return tuple(history)


def _slot_now(slots: Sequences, held: Sequences, slot: int) -> int:
    return slots.get(held[slot], slot) if slot in held else slot


def _as_much(one: Told, step: Step, state: State) -> Step:
    """A publication of all that was committed stays one."""
    match one.step, step:
        case act.Publish(then, length), act.Publish(now) if one.done:
            if length == one.state.committed[then] and now < len(state.committed):
                return act.Publish(now, state.committed[now])
    return step


def _flight_of(step: Step, state: State, dispatched: int) -> int | None:
    """The number of the step in flight that a step is about. dispatched: how many were so far."""
    oldest = dispatched - len(state.flights)
    match step:
        case act.Dispatch():
            return dispatched
        case act.Retire():
            return oldest + [flight.retired for flight in state.flights].index(False)
        case act.Deliver():
            return oldest
    return None


def _initial(profile: Profile) -> State:
    return profile.machine.initial(
        profile.geometry, profile.limits, profile.cleanup, profile.capacity
    )


def _taken(machine: Machine, state: State, step: Step) -> tuple[State, bool]:
    """The state after a step, and whether it is done; a step of the harness changes nothing."""
    if isinstance(step, PoisonDead | Attend):
        return state, True
    if machine.refusals(state, step):
        return state, False
    return machine.effect(state, step), True


def _begun(before: State, after: State) -> list[int]:
    """The slots in which a sequence begins."""
    pairs = enumerate(zip(before.sequences, after.sequences, strict=True))
    return [slot for slot, (old, new) in pairs if old is None and new is not None]


def _without_refused(told: Changed) -> Iterator[Changed]:
    """Without all that is refused and all steps of the harness, but for the last step."""
    yield tuple(one for one in told if one.matters or (one.done and _is_action(one)))


def _is_action(one: Told) -> bool:
    return not isinstance(one.step, PoisonDead | Attend)


def _without_contexts(told: Changed) -> Iterator[Changed]:
    """Every sequence under context 0, which is that of a prefill."""
    if any(isinstance(one.step, act.Reserve) and one.step.context for one in told):
        yield tuple(evolve(one, step=_of_no_context(one.step)) for one in told)


def _of_no_context(step: Step) -> Step:
    return evolve(step, context=0) if isinstance(step, act.Reserve) else step


def _without_a_run(told: Changed) -> Iterator[Changed]:
    """Without ever shorter runs of steps."""
    size = len(told) // 2
    while size:
        for start in range(0, len(told) - size + 1, size):
            yield told[:start] + told[start + size :]
        size //= 2


def _without_a_sequence(told: Changed) -> Iterator[Changed]:
    """Without the steps of a sequence, or of the choices of a request, and of their clones.

    Then the same with longer prompts, which take the pages that the sequence took.
    """
    for at, begin in enumerate(told):
        for gone, left in _lacking(begin):
            fewer = _without(told, at, gone, left)
            yield fewer
            yield tuple(_as_long_as_may_be(one) for one in fewer)


def _without_a_flight(told: Changed) -> Iterator[Changed]:
    """Without a step in flight: its dispatch, and what retires and delivers it."""
    for number in dict.fromkeys(one.flight for one in told if one.flight is not None):
        yield tuple(one for one in told if one.flight != number)


def _landed(told: Changed, profile: Profile) -> Iterator[Changed]:
    """A round in the place of a step in flight, at its dispatch or at its delivery."""
    for at, begin in enumerate(told):
        if not isinstance(begin.step, act.Dispatch) or begin.flight is None:
            continue
        ends = [place for place, one in enumerate(told) if one.flight == begin.flight]
        whole = _whole(begin, _as_round(begin.step, begin.state), ())
        if type(whole.step) not in profile.actions:
            continue
        for place in {at, ends[-1]}:
            before, after = told[:place], told[place:]
            yield (
                *(one for one in before if one.flight != begin.flight),
                whole,
                *(one for one in after if one.flight != begin.flight),
            )


def _as_round(step: act.Dispatch, state: State) -> act.Action:
    """A round with the same chunks, but for queued tokens, which it packs."""
    queued = {one.slot for one in state.queue}
    chunks = tuple(chunk for chunk in step.chunks if chunk[0] not in queued)
    return act.MixedRound(chunks) if chunks else act.Round()


def _lacking(begin: Told) -> Iterator[tuple[Sequence[int], Told | None]]:
    """Sequences that begin by a step, and the step without them; None if nothing is left of it."""
    if not isinstance(begin.step, act.Prefill):
        if begin.begins:
            yield begin.begins, None
        return
    requests, start = begin.step.requests, 0
    for which, request in enumerate(requests):
        end = start + request.n_generations
        others, rest = requests[:which] + requests[which + 1 :], begin.begins[:start]
        rest += begin.begins[end:]
        left = evolve(begin, step=act.Prefill(others), begins=rest) if others else None
        yield begin.begins[start:end], left
        start = end


def _without(told: Changed, at: int, sequences: Sequence[int], left: Told | None) -> Changed:
    """The steps without those that name these sequences; `left` is what begins at their place."""
    gone, kept, flights = {*sequences}, list[Told](), set[int | None]()
    for one in told[at + 1 :]:
        fewer = _without_entries(one, gone)
        if one.flight is not None and (fewer is None or one.flight in flights):
            flights.add(one.flight)
        elif fewer is None or fewer.names & gone:
            gone |= {*one.begins}
        else:
            kept.append(fewer)
    return (*told[:at], *([left] if left else []), *kept)


def _as_long_as_may_be(one: Told) -> Told:
    """A prefill of one request with as many tokens as a prefill may have."""
    match one.step:
        case act.Prefill((request,)):
            sizes, limits = one.state.geometry, one.state.limits
            most = min(limits.prefill_tokens, sizes.max_len - request.params.max_new)
            more = most - len(request.prompt)
            prompt = request.prompt + request.prompt[-1:] * max(0, more)
            return evolve(one, step=act.Prefill((evolve(request, prompt=prompt),)))
    return one


def _other_chunks(
    one: Told, step: act.MixedRound | act.Dispatch, gone: Collection[int]
) -> tuple[tuple[int, int], ...]:
    """The chunks of a round that are not of these sequences."""
    return tuple(chunk for chunk in step.chunks if one.held.get(chunk[0]) not in gone)


def _without_entries(one: Told, gone: Collection[int], below: int | None = None) -> Told | None:
    """The step without the entries of these sequences in its batch; None if no entry is left.

    A round loses its chunks of these sequences, and stays. below: only the entries of positions
    below this one.
    """
    if isinstance(one.step, act.MixedRound) and below is None:
        return evolve(one, step=act.MixedRound(_other_chunks(one, one.step, gone)))
    if isinstance(one.step, act.Dispatch) and below is None:
        others = _other_chunks(one, one.step, gone)
        return evolve(one, step=act.Dispatch(others)) if others else None
    if not isinstance(one.step, act.Allocate | act.Write):
        return one
    kept = tuple(
        entry
        for entry in one.step.batch
        if entry is None
        or one.held.get(entry[0]) not in gone
        or (below is not None and entry[1] >= below)
    )
    if kept == one.step.batch:
        return one
    return evolve(one, step=evolve(one.step, batch=kept)) if any(kept) else None


def _folded(told: Changed, profile: Profile) -> Iterator[Changed]:
    """One action in the place of the first or the last of the steps that do its parts."""
    return chain.from_iterable(_folded_at(told, at, profile) for at in range(len(told)))


def _folded_and_less(told: Changed, profile: Profile) -> Iterator[Changed]:
    """The same, and a simpler last step: a prefill queues a token, which leaves it less room."""
    for changed in _folded(told, profile):
        for step in simpler_steps(changed[-1].step):
            yield (*changed[:-1], evolve(changed[-1], step=step))


def _folded_at(told: Changed, at: int, profile: Profile) -> Iterator[Changed]:
    """The same for the parts of which the first is this step."""
    begin, machine = told[at], profile.machine
    for action in _wholes(told, at):
        if type(action) not in profile.actions or machine.refusals(begin.state, action):
            continue
        parts = tuple(part for part, _ in machine.parts(begin.state, action))
        rest, last = _without_parts(told[at + 1 :], begin.begins, parts)
        whole = _whole(begin, action, begin.begins)
        yield (*told[:at], whole, *rest)
        if last:
            yield (*told[:at], *rest[:last], whole, *rest[last:])


def _all_folded(told: Changed, profile: Profile) -> Iterator[Changed]:
    """A prefill in the place of each reservation, and as few allocations as then may be.

    A prefill alone may save no step: it takes as many as the reservation, while others allocate
    beside it.
    """
    changed = told
    for at in reversed(range(len(told))):
        if isinstance(told[at].step, act.Reserve):
            one_folded = next(_folded_at(changed, at, profile), None)
            changed = changed if one_folded is None else one_folded
    yield _fewer_allocations(changed)


def _fewer_allocations(told: Changed) -> Changed:
    """Each allocation joined to the next one, where one may have so many cells."""
    kept, at, earlier = list[Told](), 0, Batch()
    for one in told:
        if isinstance(one.step, act.Allocate):
            batch = earlier + one.step.batch
            if earlier and len(batch) <= one.state.limits.prefill_tokens:
                del kept[at]
            else:
                batch = one.step.batch
            at, earlier = len(kept), batch
            kept.append(evolve(one, step=act.Allocate(batch)))
        else:
            kept.append(one)
    return tuple(kept)


def _wholes(told: Changed, at: int) -> Iterator[act.Action]:
    """Actions that may stand for a step and others after it.

    A sequence that goes on must not end with the token that its prefill draws.
    """
    begin = told[at]
    if isinstance(begin.step, act.Pack):
        yield act.Round()
    if isinstance(begin.step, act.Reserve) and begin.begins:
        request = _assigned(told, begin.begins[0]) or _as_long(told, at)
        if request is not None:
            if request.params.max_new == 1:
                yield act.Prefill((_that_goes_on(request, begin.state.geometry.max_len),))
            yield act.Prefill((request,))


def _that_goes_on(request: Request, most: int) -> Request:
    """The same request with a second token to draw, cut to so many tokens in all."""
    params = evolve(request.params, max_new=2)
    return evolve(request, prompt=request.prompt[: most - 2] or request.prompt, params=params)


def _assigned(told: Changed, sequence: int) -> Request | None:
    """The request of a sequence with a prompt; None if it has none."""
    for one in told:
        match one.step:
            case act.Assign(slot, prompt, params, name) if one.held.get(slot) == sequence:
                return Request(id=name, prompt=prompt, params=params)
    return None


def _as_long(told: Changed, at: int) -> Request | None:
    """A request for a sequence without a prompt, with as many cells as a request may have."""
    sequence, most = told[at].begins[0], told[at].state.geometry.max_len - 2
    cells = sum(
        one.held.get(entry[0]) == sequence
        for one in told
        if isinstance(one.step, act.Allocate)
        for entry in one.step.batch
        if entry
    )
    if min(cells, most) < 1:
        return None
    return Request(id=_unused(told), prompt=(0,) * min(cells, most), params=Params(max_new=1))


def _unused(told: Changed) -> int:
    """The least id that no request of the history has."""
    names = set[int]()
    for one in told:
        match one.step:
            case act.Assign():
                names.add(one.step.request)
            case act.Prefill(requests):
                names |= {request.id for request in requests}
            case act.Submit(request):
                names.add(request.id)
    return next(name for name in range(1, len(names) + 2) if name not in names)


def _without_parts(
    told: Changed, sequences: tuple[int, ...], parts: tuple[act.Action, ...]
) -> tuple[Changed, int]:
    """The steps without what these parts do; and how many are left before the last such step.

    sequences: those that begin by the parts, and lose their cells if they have no prompt. Without
    one, the slots are those of the parts.
    """
    prompts = [part for part in parts if isinstance(part, act.Assign)]
    assigned = any(isinstance(one.step, act.Assign) and one.names & {*sequences} for one in told)
    below = max(len(part.prompt) for part in prompts) if prompts and assigned else None
    kinds = {type(part) for part in parts}
    kept, last = list[Told](), 0
    for one in told:
        left: Told | None = one
        if not sequences:
            left = None if one.step in parts else one
        elif isinstance(one.step, act.Allocate | act.Write):
            left = _without_entries(one, sequences, below)
        elif isinstance(one.step, act.MixedRound) and below is not None:
            others = _other_chunks(one, one.step, sequences)
            if others != one.step.chunks:
                left = evolve(one, step=act.MixedRound(others)) if others else None
        elif type(one.step) in kinds and one.names == {*sequences}:
            left = None
        if left is not one:
            last = len(kept)
        if left is not None:
            kept.append(left)
    return tuple(kept), last


def _prefilled_further(told: Changed) -> Iterator[Changed]:
    """A longer prompt in the place of tokens that a sequence got and wrote later.

    First only what wrote them is left out, then all that the sequence did until then.
    """
    for at, begin in enumerate(told):
        if isinstance(begin.step, act.Prefill):
            for which, sequence in _single(begin.step, begin.begins):
                request = begin.step.requests[which]
                text, then = _last_written(told, sequence)
                if len(text) > len(request.prompt):
                    whole = _whole(begin, _longer(begin, begin.step, which, text), begin.begins)
                    rest = _without_its_text(told[at + 1 :], sequence, len(text))
                    yield (*told[:at], whole, *rest)
                    alone = (one for one in told[at + 1 : then] if not _is_alone(one, sequence))
                    yield (*told[:at], whole, *alone, *told[then:])


def _single(prefill: act.Prefill, begins: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """The requests with one choice, by their place, and their sequences."""
    sequences = iter(begins)
    for which, request in enumerate(prefill.requests):
        mine = [*islice(sequences, request.n_generations)]
        if len(mine) == request.n_generations == 1:
            yield which, mine[0]


def _longer(begin: Told, prefill: act.Prefill, which: int, text: Tokens) -> act.Prefill:
    """With this text for a prompt. Behind it is room for one more token: that which is drawn."""
    request = prefill.requests[which]
    end = min(len(request.prompt) + request.params.max_new + 1, begin.state.geometry.max_len)
    params = evolve(request.params, max_new=max(2, end - len(text)))
    longer = evolve(request, prompt=text, params=params)
    return act.Prefill((*prefill.requests[:which], longer, *prefill.requests[which + 1 :]))


def _last_written(told: Changed, sequence: int) -> tuple[Tokens, int]:
    """The longest text of a sequence that is written, and the step before which it is."""
    text: Tokens = ()
    then = 0
    for at, one in enumerate(told):
        for slot, held in one.held.items():
            there = one.state.sequences[slot]
            if held == sequence and there is not None:
                written = there.tokens[: there.written]
                if len(written) > len(text):
                    text, then = written, at
    return text, then


def _is_alone(one: Told, sequence: int) -> bool:
    """Whether a step is about this sequence alone, or takes tokens from the queue."""
    return isinstance(one.step, act.Pack) or one.names == {sequence}


def _without_its_text(told: Changed, sequence: int, length: int) -> Changed:
    """The steps without those that gave a sequence its text up to this length."""
    kept = (
        _without_entries(one, {sequence}, length)
        for one in told
        if not isinstance(one.step, act.Enqueue) or sequence not in one.names
    )
    return tuple(one for one in kept if one is not None)


def _joined(told: Changed, profile: Profile) -> Iterator[Changed]:
    """One action for two steps, in the place of either."""
    for late, two in enumerate(told):
        for early, one in enumerate(told[:late]):
            whole = _whole_of(one, two)
            if whole is not None and type(whole.step) in profile.actions:
                before, between, after = told[:early], told[early + 1 : late], told[late + 1 :]
                yield (*before, whole, *between, *after)
                yield (*before, *between, whole, *after)


def _whole_of(one: Told, two: Told) -> Told | None:
    """One step for both; None if there is no such step."""
    begins = one.begins + two.begins
    match one.step, two.step:
        case act.Prefill(first), act.Prefill(second):
            return _whole(one, act.Prefill(first + second), begins)
        case act.Prefill((request,)), act.Clone() if {*one.begins} & two.names:
            more = evolve(request, n_generations=request.n_generations + 1)
            return _whole(one, act.Prefill((more,)), begins)
        case act.Assign(_, prompt, params), act.Enqueue(_, token) if one.names == two.names:
            less = evolve(params, max_new=max(1, params.max_new - 1))
            return _whole(one, evolve(one.step, prompt=(*prompt, token), params=less), begins)
        case act.Submit(request), act.Admit():
            return _whole(two, act.Prefill((request,)), begins)
        case ((act.Round() | act.Generate()), (act.Round() | act.Generate())):
            return _whole(one, act.Generate(), begins)
    return None


def _whole(one: Told, action: act.Action, begins: tuple[int, ...]) -> Told:
    return evolve(one, step=action, begins=begins, done=True, matters=True)


def _unnamed(told: Changed) -> Iterator[Changed]:
    """New sequences take the lowest unused slots: all of them, or one."""
    chosen = [at for at, one in enumerate(told) if one.begins and _lowest(one.step) != one.step]
    for which in ({*chosen}, *({at} for at in chosen)):
        if which:
            yield tuple(
                evolve(one, step=_lowest(one.step)) if at in which else one
                for at, one in enumerate(told)
            )


def _lowest(step: Step) -> Step:
    match step:
        case act.Reserve():
            return evolve(step, slot=None)
        case act.Clone():
            return evolve(step, child=None)
    return step
