"""A scheduler over the rungs chunks, prefix and preemption: continuous batching in arrival order.

Requests begin in order of arrival, each as soon as its known tokens fit beside those of the running
ones. A turn is one round: queued tokens first, then prompts in parts, under one budget of tokens.
Pages go to the oldest request first. A sequence that could write nothing takes the pages of newer
requests, which are preempted whole and go on later; if not even all of those are enough, it sits
the round out, and nobody is preempted. So every running request is older than every waiting one,
the oldest gets a token into every round, and each request ends. Source: docs/sources.md,
"Continuous batching" and "Preemption".

With a lag a turn dispatches a step in place of the round, and up to so many steps are in flight
after it. Pages that they name are not free. So before it preempts anybody the scheduler delivers
what is in flight: a victim whose pages are held would gain nothing. Source: docs/sources.md, "Steps
in flight".
"""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Final, NamedTuple

from attrs import evolve

from spec import index, pool
from spec.machines.actions import (
    Action,
    Allocate,
    Assign,
    Deliver,
    Dispatch,
    FreeFinished,
    Hit,
    MixedRound,
    Preempt,
    Publish,
    Purge,
    Replay,
    Reserve,
    Retire,
    Share,
)
from spec.machines.admission import fit_refusals
from spec.machines.flights import reach
from spec.machines.lifecycle import detail_of, taken_keys
from spec.machines.pages import pages_lacking, row_pages, used
from spec.machines.preemption import slots_of_request
from spec.machines.prefix import common, found
from spec.machines.scheduling import packed
from spec.machines.window import cells_in_ring, most_cells
from spec.rung import Machine
from spec.state import InFlight, Queued, State
from spec.table import Entry
from spec.vocabulary import LAG, InvalidInput, Reason, Refusal, Request, Tokens, refused

_TAKES: Final = frozenset({Assign, FreeFinished, MixedRound, Preempt, Purge, Replay, Reserve})
_FLIES: Final = frozenset({Deliver, Dispatch, Retire})
_SHARES: Final = frozenset({Hit, Publish, Share})
Do = Callable[[Action], State]
"""Takes an action, which nothing refuses, and returns the state after it."""


class Job(NamedTuple):
    """A request that has arrived and has not finished.

    kept: while it holds no slot, its choices that have not finished and the tokens that each has
    drawn; None while it runs.
    """

    request: Request
    kept: tuple[tuple[int, Tokens], ...] | None


Jobs = tuple[Job, ...]
"""In order of arrival, which a preemption does not change."""


def actions_of(machine: Machine, *, lag: int | None = None) -> frozenset[type[Action]]:
    """The actions that the scheduler takes; some of them only where there is an index."""
    takes = _TAKES if lag is None else (_TAKES - {MixedRound}) | _FLIES
    return takes | _SHARES if "prefix" in machine.names else takes


def arrive(machine: Machine, state: State, jobs: Jobs, request: Request) -> Jobs:
    """The jobs with one more. Raises Refused if it could not run alone, or its id is in use.

    Raises InvalidInput for a capacity policy that takes pages before there are tokens for them.
    """
    if state.capacity.lookahead or state.capacity.reserve != "none":
        raise InvalidInput(
            "capacity",
            seen=state.capacity,
            allowed='lookahead 0, and reserve "none"',
            remedy="Admit by the worst case: see the rung admission.",
        )
    widest = evolve(state.limits, prefill_tokens=max(1, len(request.prompt)))  # chunks read it
    refusals = [*fit_refusals(state.geometry, widest, request, state.capacity)]
    wanted, pages = pages_needed(machine, state, request), state.geometry.pages
    if not refusals and wanted > pages:
        refusals = [Refusal(Reason.NEVER_FITS, wanted, f"at most {pages} pages in the pool")]
    if request.id in {*(job.request.id for job in jobs), *(name for name, _ in taken_keys(state))}:
        refusals.append(Refusal(Reason.CHOICE_TAKEN, request.id, "an id that is not in use"))
    if refusals:
        raise refused(refusals)
    fresh = tuple((choice, ()) for choice in range(request.n_generations))
    return (*jobs, Job(request, fresh))


def pages_needed(machine: Machine, state: State, request: Request) -> int:
    """The pages that a request holds in the worst case, where its choices are never cloned.

    They share whole pages of the prompt but the last token, which each of them computes. Without
    the rung prefix they share none. Nor do they if a ring has given those pages up.
    """
    length, ring = len(request.prompt) + request.params.max_new, state.capacity.ring
    if state.capacity.ring_start(row_pages(state, length, 0)):
        return request.n_generations * ring
    unshared = len(request.prompt) // state.geometry.page_size - _shared(machine, state, request)
    more = (request.n_generations - 1) * unshared
    return request.pages_needed(state.geometry, state.capacity) + more


def turn(machine: Machine, state: State, jobs: Jobs, do: Do, *, lag: int | None = None) -> Jobs:
    """Begin what fits and run one round, or step; return the jobs that have not finished.

    The caller takes the outputs between turns. Nothing is done if nothing can be.

    lag: how many steps are in flight at most after the turn, which dispatches one; None: a round.
    It may change from turn to turn. Raises InvalidInput if it is above `LAG`, or the machine has
    no steps in flight.
    """
    _check_lag(machine, lag)
    state = _deliver_beyond(machine, state, lag or 0, do)
    state, jobs = _begin(machine, state, jobs, do)
    if lag is None:
        state = _reuse(machine, state, jobs, do)
        state, jobs = _round(machine, state, jobs, do)
    else:
        state, jobs = _step(machine, state, jobs, do)
        state = _deliver_beyond(machine, state, lag, do)
    if state.finished:
        state = do(FreeFinished())
    return tuple(job for job in jobs if job.kept or slots_of_request(state, job.request.id))


def next_round(machine: Machine, state: State, jobs: Jobs) -> tuple[Action, ...]:
    """The next round, or what is done before it is planned again; nothing if no sequence runs.

    Before it newer requests are preempted, or the queued token of a slot is taken back: the slot
    sits the round out, and reads that token later as a chunk.
    """
    order, leaving = running(state, jobs), {one.slot: one.position for one in packed(state)}
    room = state.limits.round_tokens - len(leaving)
    ends = state.limits.outputs - len(state.outputs)
    batch, chunks = tuple[Entry, ...](), list[tuple[int, int]]()
    for request in order:
        for slot in slots_of_request(state, request):
            known = len(used(state, slot).tokens)
            wanted = _wanted(machine, state, slot, leaving, room)
            if not ends and wanted and wanted[-1][1] == known - 1:
                wanted = wanted[:-1]
            entries = _fitting(machine, state, batch, wanted)
            if wanted and not entries:
                newer = victims(machine, state, order, request, (*batch, wanted[0]))
                if newer:
                    return tuple(map(Preempt, newer))
            if not entries:
                if slot in leaving:
                    return (Purge(slot),)
                continue
            batch += entries
            ends -= entries[-1][1] == known - 1
            if slot not in leaving:
                chunks.append((slot, len(entries)))
                room -= len(entries)
    ahead = _ahead_of_oldest(state, order, batch)
    if ahead is not None:
        return (Purge(ahead),)
    return (MixedRound(tuple(chunks)),) if batch else ()


def next_step(
    machine: Machine, state: State, jobs: Jobs, sitting: frozenset[int] = frozenset()
) -> tuple[Action, ...]:
    """The next step, or what is done before it is planned again; nothing if none can be dispatched
    and none is in flight.

    Before it newer requests are preempted, or a step is delivered: where a preemption might gain a
    page, and where nothing can be dispatched.

    sitting: slots that sit the step out, so that others have their place in the budget.
    """
    order = running(state, jobs)
    plan = _planned(machine, state, order, sitting)
    for request in order:
        for slot in slots_of_request(state, request):
            wanted = () if slot in sitting else _unsent(machine, state, slot, plan.room_of(slot))
            wanted = plan.drawn_within(state, wanted)
            entries = _fitting(machine, state, plan.batch, wanted)
            if wanted and not entries:
                before = _before_another(machine, state, order, request, (*plan.batch, wanted[0]))
                if before:
                    return before
            if not entries and slot in plan.decoding:
                return next_step(machine, state, jobs, sitting | {slot})
            plan = plan.with_entries(state, entries)
        if request == order[0]:
            plan = plan.with_place_for(slots_of_request(state, request))
    oldest = {slot for request in order[:1] for slot in slots_of_request(state, request)}
    ahead = _ahead_in_step(machine, state, plan, oldest)
    if ahead is not None:
        return next_step(machine, state, jobs, sitting | {ahead})
    if plan.batch:
        return (Dispatch(plan.chunks),)
    return (Deliver(),) if state.flights else ()


def victims(
    machine: Machine, state: State, order: tuple[int, ...], requester: int, batch: tuple[Entry, ...]
) -> tuple[int, ...]:
    """The shortest run of requests, from the newest, whose pages together let a batch be allocated.

    All are newer than the requester. Empty if all newer ones are not enough. order: the ids of the
    running requests, by arrival.
    """
    chosen: tuple[int, ...] = ()
    for request in reversed(order[order.index(requester) + 1 :]):
        state, chosen = machine.effect(state, Preempt(request)), (*chosen, request)
        if _allocatable(machine, state, batch):
            return chosen
    return ()


def running(state: State, jobs: Jobs) -> tuple[int, ...]:
    """The ids of the requests with a choice in a slot that has not finished, by arrival."""
    names = (job.request.id for job in jobs)
    return tuple(name for name in names if slots_of_request(state, name))


def ranks(state: State, jobs: Jobs, arrived: Iterable[int]) -> dict[int, int]:
    """How many tokens of each request are still to be written and drawn at most, by arrival.

    The rank of the oldest request falls in every turn that begins with room for an output, or it
    has ended; with a lag, in one of `lag` + 1 such turns in a row. Cells of a step in flight count
    as written. arrived: the ids in order of arrival, which the caller keeps: the order of the jobs
    is the scheduler's own.
    """
    found = {job.request.id: _remaining(state, job) for job in jobs}
    return {name: found[name] for name in arrived if name in found}


def oldest_stalls(before: dict[int, int], after: dict[int, int]) -> bool:
    """Whether the rank of the oldest request has not fallen in a turn, and it has not ended.

    Without a lag never, if the turn began with room for an output: PROG. before, after: `ranks`
    around the turn.
    """
    oldest = next(iter(before), None)
    return oldest is not None and after.get(oldest, 0) >= before[oldest]


def turns_stalled(earlier: int, before: dict[int, int], after: dict[int, int]) -> int:
    """In how many turns in a row the rank of the oldest request has not fallen.

    It is at most the lag, over turns that begin with room for an output: PROG. earlier: the number
    before this turn. before, after: `ranks` around it.
    """
    return earlier + 1 if oldest_stalls(before, after) else 0


def in_flight(state: State) -> frozenset[int]:
    """The ids of the requests of which a step in flight has tokens."""
    slots = {part.slot for flight in state.flights for part in flight.parts if part.current}
    return frozenset(detail_of(state, slot).request for slot in slots)


def overtaken(before: dict[int, int], after: dict[int, int]) -> tuple[int, ...]:
    """The requests whose rank has not fallen in a turn in which that of a newer one has.

    Without a lag the oldest is never overtaken, so a request is overtaken only while an older one
    has not ended. With a lag a request may also wait for what is `in_flight`.
    """
    late, overtakes = list[int](), False
    for request, rank in reversed(before.items()):
        fell = after.get(request, 0) < rank
        overtakes |= fell
        if overtakes and not fell:
            late.append(request)
    return tuple(reversed(late))


def _remaining(state: State, job: Job) -> int:
    whole = len(job.request.prompt) + job.request.params.max_new
    if job.kept is not None:
        return whole * len(job.kept)
    slots = slots_of_request(state, job.request.id)
    return sum(whole - used(state, slot).allocated for slot in slots)


def _begin(machine: Machine, state: State, jobs: Jobs, do: Do) -> tuple[State, Jobs]:
    """Begin waiting requests, from the oldest, as long as the next one fits."""
    for number, job in enumerate(jobs):
        if job.kept is None:
            continue
        if not _fits(machine, state, job):
            break
        for choice, drawn in job.kept:
            slot, request = state.unused_slots[0], job.request
            do(Reserve(slot))
            state = do(Assign(slot, request.prompt, request.params, request.id, choice))
            if drawn:
                state = do(Replay(slot, drawn))
        jobs = (*jobs[:number], job._replace(kept=None), *jobs[number + 1 :])
        state = _reuse(machine, state, jobs, do)
    return state, jobs


def _fits(machine: Machine, state: State, job: Job) -> bool:
    """Whether there are slots, and pages for the known tokens of a request and of all that run.

    Choices of a request share pages of its prompt. Pages of the index that a row names are there.
    """
    request, kept = job.request, job.kept or ()
    shared = (len(kept) - 1) * _shared(machine, state, request) + _named(machine, state, request)
    cells = [len(request.prompt) + len(drawn) for _, drawn in kept]
    longest = state.capacity.longest_row(state.geometry)
    wanted = sum(min(row_pages(state, count, 0), longest) for count in cells) - shared
    for slot in state.live:
        lacking = pages_lacking(state, slot, _cells_to_come(state, slot))
        wanted += min(lacking, longest - len(used(state, slot).pages))
    return len(kept) <= len(state.unused_slots) and wanted <= pool.free_count(state.in_use)


def _cells_to_come(state: State, slot: int) -> int:
    """The cells of the tokens that are known, or drawn in flight: the last one is never written."""
    detail = detail_of(state, slot)
    return min(reach(state, slot), detail.prompt_len + detail.params.max_new - 1)


def _shared(machine: Machine, state: State, request: Request) -> int:
    """How many pages of its prompt each choice of a request takes from the first one.

    None if the prompt is longer than a ring, which has given the first ones up.
    """
    if state.capacity.ring_start(row_pages(state, len(request.prompt), 0)):
        return 0
    return (len(request.prompt) - 1) // state.geometry.page_size * ("prefix" in machine.names)


def _named(machine: Machine, state: State, request: Request) -> int:
    """How many of the first pages of a prompt are in the index, and named by a row."""
    size, pages = state.geometry.page_size, 0
    for entry in range(_shared(machine, state, request)):
        page = index.find(state.indexed, 0, request.prompt[: (entry + 1) * size])
        if page is None or pool.is_free(state.counts, page):
            break
        pages += 1
    return pages


def _reuse(machine: Machine, state: State, jobs: Jobs, do: Do) -> State:
    """Give sequences without cells the pages that an earlier choice has of them, or the index."""
    if "prefix" not in machine.names:
        return state
    for request in running(state, jobs):
        for slot in slots_of_request(state, request):
            if used(state, slot).allocated or _waits(machine, state, slot):
                continue
            cells = min(len(used(state, slot).tokens) - 1, cells_in_ring(state, 0))
            most = cells // state.geometry.page_size
            choices = _earlier(state, slot)
            parent = max(choices, key=lambda one: len(common(state, one, slot)), default=slot)
            shared = min(most, len(common(state, parent, slot))) if choices else 0
            indexed = len(found(state, slot, most))
            # Another copy in the index would leave the choices with fewer pages in common than
            # `pages_needed` counts on.
            if shared:
                state = do(Share(parent, slot, shared * state.geometry.page_size))
            elif indexed:
                state = do(Hit(slot, indexed * state.geometry.page_size))
    return state


def _round(machine: Machine, state: State, jobs: Jobs, do: Do) -> tuple[State, Jobs]:
    """Make room for a round, run it, and publish the prompts that it has read to their end."""
    while True:
        actions = _queued_early(state, packed(state)) or next_round(machine, state, jobs)
        for action in actions:
            if isinstance(action, Preempt):
                jobs = tuple(_stopped(state, job, action.request) for job in jobs)
            before, state = state, do(action)
        if not actions or isinstance(actions[-1], MixedRound):
            break
    read = [slot for one in actions if isinstance(one, MixedRound) for slot, _ in one.chunks]
    for slot in read if "prefix" in machine.names else ():
        state = _publish(before, state, slot, do)
    return state, jobs


def _step(machine: Machine, state: State, jobs: Jobs, do: Do) -> tuple[State, Jobs]:
    """Make room for a step, dispatch it, and let it retire."""
    while True:
        state = _reuse(machine, state, jobs, do)
        actions = _queued_early(state, state.queue) or next_step(machine, state, jobs)
        for action in actions:
            if isinstance(action, Preempt):
                jobs = tuple(_stopped(state, job, action.request) for job in jobs)
            delivers = isinstance(action, Deliver)
            state = _deliver(machine, state, do) if delivers else do(action)
        if not actions:
            return state, jobs
        if isinstance(actions[-1], Dispatch):
            return do(Retire()), jobs


def _deliver_beyond(machine: Machine, state: State, most: int, do: Do) -> State:
    """Deliver the oldest steps until at most so many are in flight."""
    while len(state.flights) > most:
        state = _deliver(machine, state, do)
    return state


def _deliver(machine: Machine, state: State, do: Do) -> State:
    """Deliver the oldest step, publish the prompts that it has read to their end, and clean up."""
    if not state.flights[0].retired:
        state = do(Retire())
    before, state = state, do(Deliver())
    for part in before.flights[0].parts if "prefix" in machine.names else ():
        if part.current and _ends_prompt(before, part):
            state = _publish_whole(before, state, part.slot, do)
    return do(FreeFinished()) if state.finished else state


def _ends_prompt(state: State, part: InFlight) -> bool:
    """Whether a step reads the last token of the prompt of a slot."""
    return part.first < detail_of(state, part.slot).prompt_len <= part.end


def _queued_early(state: State, queue: tuple[Queued, ...]) -> tuple[Action, ...]:
    """Take back the tokens that a caller has queued before the text ahead of them is read."""
    early = {one.slot for one in queue if one.position > used(state, one.slot).allocated}
    return tuple(map(Purge, sorted(early)))


def _publish(before: State, state: State, slot: int, do: Do) -> State:
    """Publish the whole pages of a slot whose chunk was the last of its prompt."""
    ended = state.committed[slot] == len(used(before, slot).tokens)
    return _publish_whole(before, state, slot, do) if ended else state


def _publish_whole(before: State, state: State, slot: int, do: Do) -> State:
    """Publish the whole pages of a slot, if it still has the sequence that it had before."""
    detail, size = state.details[slot], state.geometry.page_size
    if detail is None or detail is not before.details[slot] or state.stale[slot]:
        return state
    pages = state.committed[slot] // size
    return do(Publish(slot, pages * size)) if pages else state


def _stopped(state: State, job: Job, request: int) -> Job:
    """The job of a request that is about to be preempted, with what its choices have drawn."""
    if job.request.id != request:
        return job
    slots, start = slots_of_request(state, request), len(job.request.prompt)
    return job._replace(
        kept=tuple(
            (detail_of(state, slot).choice, used(state, slot).tokens[start:]) for slot in slots
        )
    )


def _wanted(
    machine: Machine, state: State, slot: int, leaving: dict[int, int], room: int
) -> tuple[Entry, ...]:
    """The queued token of a slot if it leaves the queue, or the longest chunk in the room left."""
    if slot in leaving:
        return ((slot, leaving[slot]),)
    if any(queued.slot == slot for queued in state.queue) or _waits(machine, state, slot):
        return ()
    start = used(state, slot).allocated
    end = min(len(used(state, slot).tokens), start + room, most_cells(state, slot))
    return tuple((slot, position) for position in range(start, end))


def _fitting(
    machine: Machine, state: State, batch: tuple[Entry, ...], wanted: tuple[Entry, ...]
) -> tuple[Entry, ...]:
    """The first of the wanted cells: as many as there are pages for, beside the batch."""
    size = state.geometry.page_size
    while wanted and not _allocatable(machine, state, batch + wanted):
        wanted = wanted[: -1 - wanted[-1][1] % size]  # up to the page boundary below
    return wanted


def _allocatable(machine: Machine, state: State, batch: tuple[Entry, ...]) -> bool:
    ready = machine.prepared(state, Allocate(batch))
    return machine.pages_wanted(state, Allocate(batch)) <= pool.free_count(ready.in_use)


def _waits(machine: Machine, state: State, slot: int) -> bool:
    """Whether an earlier choice still reads pages that a slot without cells will share."""
    tokens, size = used(state, slot).tokens, state.geometry.page_size
    if "prefix" not in machine.names or used(state, slot).allocated:
        return False
    for other in _earlier(state, slot):
        same = _same(tokens[:-1], used(state, other).tokens)
        if state.committed[other] < same - same % size:
            return True
    return False


def _earlier(state: State, slot: int) -> list[int]:
    """The slots of the choices of the same request before that of a slot."""
    detail = detail_of(state, slot)
    slots = slots_of_request(state, detail.request)
    return [one for one in slots if detail_of(state, one).choice < detail.choice]


def _same(one: Tokens, other: Tokens) -> int:
    """With how many equal tokens two texts begin."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _ahead_of_oldest(state: State, order: tuple[int, ...], batch: tuple[Entry, ...]) -> int | None:
    """The slot of the newest queued token of a round that has no token of the oldest request."""
    slots = [slot for request in order for slot in slots_of_request(state, request)]
    of_oldest = {slot for request in order[:1] for slot in slots_of_request(state, request)}
    leaving = {queued.slot for queued in packed(state)}
    if any(slot in of_oldest for slot, _ in batch):
        return None
    return next((slot for slot in reversed(slots) if slot in leaving), None)


# A step in flight.


class _Plan(NamedTuple):
    """A step that is planned. batch: its cells, by arrival. room: what is left of the budget.

    decoding: slots that have a place in the budget for their next token. drawing: slots that draw
    in it, or in a step in flight. outputs: how many may. full: whether no place is left for chunks.
    """

    decoding: frozenset[int]
    drawing: frozenset[int]
    room: int
    outputs: int
    full: bool
    batch: tuple[Entry, ...] = ()

    @property
    def chunks(self) -> tuple[tuple[int, int], ...]:
        """How many cells each slot has, by arrival."""
        return tuple(Counter(slot for slot, _ in self.batch).items())

    def room_of(self, slot: int) -> int:
        """How many tokens of a slot the budget has room for."""
        return 1 if slot in self.decoding else self.room

    def drawn_within(self, state: State, wanted: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """The wanted cells, without the last if what it draws has no place in the outputs."""
        drawing = _drawing(state, wanted)
        fits = len(self.drawing | drawing) <= self.outputs
        return wanted[:-1] if drawing and not fits else wanted

    def with_entries(self, state: State, entries: tuple[Entry, ...]) -> "_Plan":
        """The plan with these cells of a slot."""
        spent = sum(slot not in self.decoding for slot, _ in entries)
        return self._replace(
            batch=self.batch + entries,
            room=self.room - spent,
            drawing=self.drawing | _drawing(state, entries),
        )

    def with_place_for(self, oldest: tuple[int, ...]) -> "_Plan":
        """The plan in which newer requests leave the oldest one a place in the outputs."""
        return self._replace(outputs=self.outputs - self.drawing.isdisjoint(oldest))


def _planned(
    machine: Machine, state: State, order: tuple[int, ...], sitting: frozenset[int]
) -> _Plan:
    """A step without cells, in which slots that decode have places in the budget, the oldest first.

    They are those with a queued token, or whose last token is drawn in flight.
    """
    drawing = state.promised
    next_ones = drawing | {one.slot for one in state.queue}
    slots = (slot for request in order for slot in slots_of_request(state, request))
    ready = (slot for slot in slots if slot in next_ones and _unsent(machine, state, slot, 1))
    decoding = [*ready][: state.limits.round_tokens]
    room = state.limits.round_tokens - len({*decoding} - sitting)
    outputs = state.limits.outputs - len(state.outputs)
    return _Plan(frozenset(decoding) - sitting, drawing, room, outputs, full=not room)


def _unsent(machine: Machine, state: State, slot: int, room: int) -> tuple[Entry, ...]:
    """The next cells of a slot that no step has, as many as the room left allows."""
    if _waits(machine, state, slot):
        return ()
    start = used(state, slot).allocated
    end = min(_cells_to_come(state, slot), start + room, most_cells(state, slot))
    return tuple((slot, position) for position in range(start, end))


def _drawing(state: State, entries: tuple[Entry, ...]) -> frozenset[int]:
    """The slot of these cells, if the token behind the last one is drawn."""
    return frozenset(slot for slot, position in entries[-1:] if position + 1 == reach(state, slot))


def _before_another(
    machine: Machine, state: State, order: tuple[int, ...], requester: int, batch: tuple[Entry, ...]
) -> tuple[Action, ...]:
    """What may let a batch be allocated: preemptions, and before any of them a delivery.

    Pages that steps in flight hold are free after it, and a request may turn out to have ended.
    """
    newer = victims(machine, state._replace(flights=()), order, requester, batch)
    if newer and state.flights:
        return (Deliver(),)
    return tuple(map(Preempt, newer))


def _ahead_in_step(machine: Machine, state: State, plan: _Plan, oldest: set[int]) -> int | None:
    """The newest slot that decodes in a step that has no room for a chunk of the oldest request."""
    if any(slot in oldest for slot, _ in plan.batch):
        return None
    newest = [slot for slot, _ in plan.batch if slot in plan.decoding][-1:]
    reads = plan.full and any(_unsent(machine, state, slot, 1) for slot in oldest)
    return newest[0] if newest and reads else None


def _check_lag(machine: Machine, lag: int | None) -> None:
    if lag is not None and ("flights" not in machine.names or not 0 <= lag <= LAG):
        raise InvalidInput(
            "lag",
            seen=lag,
            allowed=f"0 to {LAG}, in a machine with the rung flights",
            remedy="Leave it out: a round is known at once.",
        )
