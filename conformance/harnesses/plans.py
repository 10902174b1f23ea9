"""The harness of planned steps: a scheduler's plans must give each request its tokens alone.

    python -m conformance.harnesses.plans conformance.harnesses.vllm_scheduler:make

A scheduler with its cache manager is driven without a model: a worker of the kit runs its plans and
knows nothing else (`conformance.harnesses.planned`). Requests arrive and are aborted at any time,
also between the dispatch of a step and its delivery. What is judged:

- a planned position has a page in each group, and a known token (ROW, Q);
- two rows of a step write no common cell (WX);
- what a query can see is what its own prefix wrote, whoever computed it (READ);
- a page that is found by its key holds what the key says, once the planned steps have run (PC);
- a step has no more tokens, requests and drafts than it may have (KNOB);
- nothing is planned for a request that has ended before (FENCE);
- each request ends once, with the tokens and the reason of naive generation alone (ALONE, OUT);
- a request does not begin before one that arrived sooner and waits, or has a higher priority; one
  that has not ended is counted as such; at the end of a history all are served within a bound, and
  a step is planned as long as one has not ended (PROG);
- when all have ended, no page is held, and the worker was told to forget all of them (CONS).

An exception of the engine is ATOMIC.

A history is a list of such events; at its end all requests are served to their end.
"""

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Set
from typing import Final

from attrs import Factory, define, evolve, frozen
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from conformance.fuzzing.campaign import HOME
from conformance.harnesses import command
from conformance.harnesses.planned import (
    Drawn,
    Finished,
    Plan,
    Schedules,
    Worker,
    next_token,
)
from conformance.harnesses.search import Search, lacking
from conformance.harnesses.workloads import COMMON, Broken, alone
from conformance.verdict import Verdict
from spec.machines import naive
from spec.vocabulary import FinishReason, InvalidInput, Params, Request, Tokens

NEEDED: Final = (
    *("arrived with a step open", "preempted", "resumed", "hit", "hit while another runs"),
    *("chunk inside a page", "chunk at a page boundary", "chunks beside decodes"),
    *("aborted while it waits", "aborted while it runs", "aborted with a step open"),
    *("stopped", "reached its limit", "longest sequence", "pool full", "forget"),
    *("forget while requests run", "do not forget while requests run"),
    *("aborted several at once", "aborted after its end", "fewer tokens than asked for"),
)
"""The coverage that a run needs to hold."""
NEEDED_OF_LAG: Final = ("several steps open", "late result of an aborted request",
                        "late result of an ended request",
                        "forget with a step open")  # fmt: skip
"""The same for an engine whose steps may be open when another is dispatched."""
NEEDED_OF_DRAFTS: Final = ("drafts kept", "drafts rejected", "a page begun by rejected drafts",
                           "ended inside the drafts that were kept")  # fmt: skip
"""The same for an engine that tries drafts."""
NEEDED_OF_OPEN_DRAFTS: Final = ("planned behind rejected drafts",)
"""The same for one that does so while steps are open."""
ABORT: Final = "abort"
FORGET: Final = "forget"
"""Kinds of events that a run can do without; what they lead to has these in its name."""
MOST_EMPTY: Final = 10
"""So many plans without a row may follow each other, such as those that only preempt."""
MOST_STEPS: Final = 20
"""So many steps for each position of all requests are enough to serve them."""


@frozen
class Arrive:
    """A request arrives. Its id is its place among those that arrive.

    context: what beside its tokens decides what its cells hold.
    """

    prompt: Tokens
    params: Params
    priority: int = 0
    context: int = 0


@frozen
class Abort:
    """Some requests are aborted in one call, of which some may have ended; nothing without any.

    which: the place of the first, those that have not ended before the others. more: so many after
    it.
    """

    which: int
    more: int = 0


@frozen
class Dispatch:
    """A step is planned and run; before it the oldest is delivered if no more may be open."""


@frozen
class Deliver:
    """The oldest open step is delivered, if there is one."""


@frozen
class Forget:
    """The contents of all pages are forgotten, as after a change of the weights.

    preempts: what runs is preempted for it; else nothing comes of it while requests hold pages.
    """

    preempts: bool = True


Event = Arrive | Abort | Dispatch | Deliver | Forget
History = tuple[Event, ...]


Makes = Callable[[], Schedules]
"""Makes a new scheduler."""


@define
class Run:
    """A history in progress.

    live: requests that have not ended. ended: the others. began: those that a step was planned for,
    with the positions that are computed. open: the steps that are not delivered, each with what it
    has drawn. ranks: the order in which requests begin.
    """

    engine: Schedules
    worker: Worker
    seen: Counter[str]
    live: dict[int, Request] = Factory(dict)
    ended: set[int] = Factory(set)
    began: dict[int, int] = Factory(dict)
    open: deque[tuple[Plan, dict[int, Drawn]]] = Factory(deque)
    arrived: int = 0
    ranks: dict[int, tuple[int, int]] = Factory(dict)

    def take(self, event: Event) -> None:
        """Do what an event says; raises Broken."""
        match event:
            case Arrive(prompt, params, priority, context):
                request = Request(id=self.arrived, prompt=prompt, params=params)
                self.arrived += 1
                self.live[request.id] = request
                self.ranks[request.id] = priority if self.engine.priorities else 0, request.id
                self.worker.contexts[request.id] = context
                self.engine.arrive(request, priority=priority, context=context)
                self.seen["arrived with a step open"] += bool(self.open)
            case Abort(which, more) if self.arrived:
                self._abort(which, more)
            case Dispatch():
                self.dispatch()
            case Deliver() if self.open:
                self.deliver()
            case Forget(preempts):
                self._forget(preempts=preempts)
        self._judge_busy()

    def drain(self) -> None:
        """Serve all requests to their end; raises Broken. As many steps are open as may be."""
        positions = sum(len(one.prompt) + one.params.max_new for one in self.live.values())
        empty = 0
        for _ in range(MOST_STEPS * (1 + positions)):
            if not self.live and not self.open:
                break
            planned = self.dispatch()
            empty = 0 if planned or self.open else empty + 1
            if self.live and empty > MOST_EMPTY:
                raise Broken("PROG", f"nothing is planned, and {sorted(self.live)} have not ended")
            if self.open and not planned:
                self.deliver()
        else:
            raise Broken("PROG", f"{sorted(self.live)} have not ended after many steps")
        self._judge_plan(self.engine.dispatch())  # it tells the worker what has ended last
        held, known = self.engine.held(), self.engine.known()
        if held:
            raise Broken("CONS", f"all requests have ended, and pages {sorted(held)} are held")
        if known:
            raise Broken("CONS", f"all requests have ended, and the worker has {sorted(known)}")

    def dispatch(self) -> bool:
        """Plan a step and run it; whether there was one."""
        if len(self.open) > self.engine.lag:
            self.deliver()
        plan = self.engine.dispatch()
        if plan:
            self._judge_plan(plan)
            self._note(plan)
            self.open.append((plan, self.worker.run(plan, self._rejected(plan))))
            self._note_drawn(*self.open[-1])
            self.seen["planned steps"] += 1
            self.seen["several steps open"] += len(self.open) > 1
            self.began |= {row.request: row.start + row.count for row in plan}
            self.worker.check(self.engine.published())
        return bool(plan)

    def _rejected(self, plan: Plan) -> Counter[int]:
        """The drafts that were not kept, by request, of open steps that a row still counts on."""
        rejected = Counter[int]()
        anew = {row.request for row in plan if row.text is not None}
        for _, drawn in self.open:
            for request in anew & drawn.keys():
                drawn[request] = evolve(drawn[request], rejected=0)
            rejected.update({request: one.rejected for request, one in drawn.items()})
        self.seen["planned behind rejected drafts"] += any(rejected[row.request] for row in plan)
        return rejected

    def deliver(self) -> None:
        """Deliver the oldest open step; judge the requests that end."""
        plan, drawn = self.open.popleft()
        late = {row.request for row in plan} - self.live.keys()
        self.seen["late result of an ended request"] += bool(late & self.ended)
        self.seen["late result of an aborted request"] += bool(late - self.ended)
        for request, finished in self.engine.deliver(drawn).items():
            inside = len(drawn[request].tokens) > 1 if request in drawn else False
            self.seen["ended inside the drafts that were kept"] += inside
            self._judge_end(request, finished)
        self.worker.check(self.engine.published())

    def _abort(self, which: int, more: int) -> None:
        names = [*sorted(self.live), *sorted(set(range(self.arrived)) - self.live.keys())]
        chosen = names[which % len(names) :][: 1 + more]
        self.engine.abort(chosen)
        self.seen["aborted several at once"] += len(chosen) > 1
        self.seen["aborted after its end"] += bool(self.ended.intersection(chosen))
        for request in self.live.keys() & chosen:
            del self.live[request]
            runs = request in self.began
            in_flight = any(row.request == request for plan, _ in self.open for row in plan)
            self.seen["aborted while it runs" if runs else "aborted while it waits"] += 1
            self.seen["aborted with a step open"] += in_flight

    def _forget(self, *, preempts: bool) -> None:
        runs, held = bool(self.began.keys() & self.live.keys()), bool(self.engine.held())
        if self.engine.forget(preempts=preempts):
            self.worker.cells.clear()
            self.seen["forget while requests run" if runs else "forget"] += 1
            self.seen["forget with a step open"] += bool(self.open)
        elif preempts or not held:
            raise Broken("PROG", "the contents of pages are not forgotten, and no request runs")
        else:
            self.seen["do not forget while requests run"] += 1

    def _judge_busy(self) -> None:
        if self.live and not self.engine.is_busy():
            raise Broken("PROG", f"{sorted(self.live)} have not ended, and none is said to wait")

    def _judge_plan(self, plan: Plan) -> None:
        names, tokens = [row.request for row in plan], sum(row.count for row in plan)
        gone = set(names) - self.live.keys()
        if gone:
            raise Broken("FENCE", f"a step is planned for {sorted(gone)}, which have ended")
        self._judge_order({*names} - self.began.keys())
        if len(set(names)) != len(names):
            raise Broken("KNOB", f"a step is planned for {names}: one of them is there twice")
        for seen, most, what in (
            (tokens, self.engine.tokens, "tokens"),
            (len(plan), self.engine.slots, "requests"),
        ):
            if seen > most:
                raise Broken("KNOB", f"a step has {seen} {what}, should be {most} at most")
        for row in plan:
            if len(row.drafts) > self.engine.drafts:
                raise Broken("KNOB", f"a step tries {row.drafts} of request {row.request}")

    def _judge_order(self, begins: set[int]) -> None:
        """Who has never begun goes on waiting for nobody behind it."""
        last = max(begins, key=self.ranks.__getitem__, default=None)
        waits = self.live.keys() - self.began.keys() - begins
        ahead = [one for one in waits if last is not None and self.ranks[one] < self.ranks[last]]
        if ahead:
            raise Broken("PROG", f"request {last} begins, and {sorted(ahead)} go on waiting")

    def _judge_end(self, request: int, finished: Finished) -> None:
        if request not in self.live:
            raise Broken("OUT", f"request {request} has ended before, and ends again")
        asked = self.live.pop(request)
        self.ended.add(request)
        room = self.engine.max_len - len(asked.prompt)
        params = evolve(asked.params, max_new=min(asked.params.max_new, room))
        right = _right(asked.prompt, params)
        if finished != right:
            raise Broken("ALONE", f"request {request} has {finished}, should have {right}")
        stopped = right.reason is FinishReason.STOP
        self.seen["stopped" if stopped else "reached its limit"] += 1
        length = len(asked.prompt) + len(right.tokens)
        self.seen["longest sequence"] += length == self.engine.max_len
        self.seen["fewer tokens than asked for"] += room < asked.params.max_new

    def _note(self, plan: Plan) -> None:
        size, chunks, decodes = self.engine.groups[0].page_size, 0, 0
        for row in plan:
            end, first = row.start + row.count, row.request not in self.began
            goes_on = end < len(self.live[row.request].prompt)
            chunks, decodes = chunks + goes_on, decodes + (row.count == 1 + len(row.drafts))
            self.seen["hit"] += first and row.start > 0
            others = self.began.keys() & self.live.keys() - {row.request}
            self.seen["hit while another runs"] += bool(first and row.start and others)
            self.seen["chunk inside a page"] += goes_on and end % size > 0
            self.seen["chunk at a page boundary"] += goes_on and end % size == 0
            again = row.text is not None and row.start < self.began.get(row.request, 0)
            self.seen["preempted"] += again
            self.seen["resumed"] += not first and row.text is not None
        self.seen["chunks beside decodes"] += bool(chunks and decodes)
        self.seen["pool full"] += len(self.engine.held()) == self.engine.pages

    def _note_drawn(self, plan: Plan, drawn: dict[int, Drawn]) -> None:
        size = self.engine.groups[0].page_size
        for row in plan:
            one = drawn.get(row.request)
            if one is None or not row.drafts:
                continue
            end = len(self.worker.texts[row.request]) - 1
            self.seen["drafts kept"] += len(one.tokens) > 1
            self.seen["drafts rejected"] += one.rejected > 0
            begun = -(-(end + one.rejected) // size) > -(-end // size)
            self.seen["a page begun by rejected drafts"] += begun


def _right(prompt: Tokens, params: Params) -> Finished:
    """How a request ends that is served alone."""
    tokens = alone(next_token, prompt, params) or ()
    reason = naive.finish(tokens, params)
    assert reason is not None, "the integer model has a next token of every text"
    return Finished(tokens, reason)


def play(engine: Schedules, history: History, seen: Counter[str]) -> None:
    """Run a history, and then serve what has not ended; raises Broken."""
    run = Run(engine, Worker(engine.groups, engine.drafts), seen)
    for event in history:
        run.take(event)
    run.drain()


def replay(make: Makes, history: History, seen: Counter[str]) -> Broken | None:
    """Run a history on a new scheduler; return the violation, if there is one."""
    try:
        play(make(), history, seen)
    except Broken as broken:
        return broken
    except InvalidInput:
        raise
    except Exception as error:
        return Broken("ATOMIC", f"the engine raised {type(error).__name__}: {str(error)[:200]}")
    return None


@st.composite
def arrivals(draw: st.DrawFn, engine: Schedules) -> Arrive:
    """A request around page boundaries, often a long one, which begins like others.

    It may stop early.
    """
    size, most = engine.groups[0].page_size, engine.max_len
    lengths = _lengths(size, most - 1)
    longest = lengths[-len(lengths) // 4 :]
    length = draw(st.sampled_from(draw(st.sampled_from((lengths, lengths, longest)))))
    common = COMMON * (length // len(COMMON) + 1)
    shared = min(length, draw(st.sampled_from((0, size, 2 * size, most))))
    rest = length - shared
    prompt = (*common[:shared], *draw(st.lists(st.integers(0, 2), min_size=rest, max_size=rest)))
    room = most - length
    new = draw(st.sampled_from([*_lengths(size, room), room, room + 1 + size]))
    params = Params(max_new=new)
    if draw(st.integers(0, 3)) == 0 and engine.stops:
        answer = _right(prompt, evolve(params, max_new=min(new, room))).tokens
        stops = draw(
            st.lists(st.sampled_from(answer), min_size=1, max_size=engine.stops, unique=True)
        )
        params = evolve(params, stops=tuple((stop,) for stop in stops))
    rank = draw(st.sampled_from((0, 0, 1, 2)))
    context = draw(st.sampled_from((0, 0, 0, 1))) if engine.contexts else 0
    return Arrive(prompt, params, rank, context)


def _lengths(size: int, most: int) -> list[int]:
    near = {edge + step for edge in range(0, most + 1, size) for step in (-1, 0, 1)}
    return sorted(length for length in near | {2, most} if 1 <= length <= most)


@st.composite
def histories(draw: st.DrawFn, engine: Schedules, without: Set[str] = frozenset()) -> History:
    """Events in any order; most of them steps, so that requests meet in any part of their lives.

    Many histories lack one kind of event or another, which would undo what the rest leads to.
    without: what all of them lack, beside what the engine has no call for.
    """
    without = without | engine.lacks
    arrive = arrivals(engine)
    steps: list[Event] = [*[Dispatch()] * 6, Deliver()]
    kinds: list[st.SearchStrategy[Event]] = [arrive, arrive, *map(st.just, steps)]
    if draw(st.booleans()) and ABORT not in without:
        kinds.append(st.builds(Abort, st.integers(0, 7), st.sampled_from((0, 0, 1))))
    if draw(st.booleans()) and FORGET not in without:
        kinds.append(st.builds(Forget, preempts=st.booleans()))
    return tuple(draw(st.lists(st.one_of(kinds), min_size=15, max_size=60)))


def shorter(history: History) -> Iterator[History]:
    """Shorter versions of a history: without half of it, without one event, with a lesser one."""
    middle = len(history) // 2
    if middle:
        yield from (history[middle:], history[:middle])
    for index, event in enumerate(history):
        before, after = history[:index], history[index + 1 :]
        yield (*before, *after)
        for less in _lesser(event):
            yield (*before, less, *after)


def _lesser(event: Event) -> Iterator[Event]:
    match event:
        case Abort(which, more):
            if which:
                yield evolve(event, which=which - 1)
            if more:
                yield evolve(event, more=more - 1)
        case Arrive():
            yield from _lesser_arrival(event)


def _lesser_arrival(event: Arrive) -> Iterator[Event]:
    prompt, params = event.prompt, event.params
    for part in (prompt[: len(prompt) // 2], prompt[:-1]):
        if part:
            yield evolve(event, prompt=part)
    for new in (1, params.max_new - 1):
        if 0 < new < params.max_new:
            yield evolve(event, params=evolve(params, max_new=new))
    if params.stops:
        yield evolve(event, params=evolve(params, stops=params.stops[1:]))
    if event.context:
        yield evolve(event, context=event.context - 1)
    if event.priority:
        yield evolve(event, priority=event.priority - 1)


def told(history: History, broken: Broken) -> Iterator[str]:
    """A history and its violation, as lines of text."""
    number = 0
    for event in history:
        match event:
            case Arrive(prompt, params, priority, context):
                stops = f", stops {params.stops}" if params.stops else ""
                rank = f", priority {priority}" if priority else ""
                under = f", context {context}" if context else ""
                asked = f"{prompt}, at most {params.max_new} tokens{stops}{rank}{under}"
                yield f"  request {number}: {asked}"
                number += 1
            case Abort(which, more):
                after = f" and {more} after it" if more else ""
                yield f"  abort the request at place {which}{after}, those that have ended last"
            case Forget(preempts=False):
                yield "  forget, if no request holds pages"
            case _:
                yield f"  {type(event).__name__.lower()}"
    yield f"  then all are served: {broken}"


def search(make: Makes, chosen: int, without: Set[str] = frozenset()) -> Search[History]:
    """A search among random histories of one scheduler. chosen: the seed."""
    return Search(
        drawn=lambda: histories(make(), without),
        judge=lambda history, seen: replay(make, history, seen),
        shorter=shorter,
        first=(),
        chosen=chosen,
    )


def check(
    make: Makes, *, chosen: int, seconds: float, without: Set[str] = frozenset()
) -> tuple[Verdict, int]:
    """Search for a violation; the verdict and number of histories.

    chosen: the seed. without: kinds of events that are left out.
    """
    set_hypothesis_home_dir(HOME)
    engine = make()
    print(f"{engine.pages} pages, {engine.slots} slots, {engine.tokens} tokens in a step, "
          f"lag {engine.lag}, drafts {engine.drafts}, groups {list(engine.groups)}")  # fmt: skip
    if engine.lacks:
        print(f"not checked: {', '.join(sorted(engine.lacks))}: the engine has no such thing")
    found = search(make, chosen, without)
    found.run(seconds)
    if found.least is not None:
        print("\n".join(told(*found.least)))
        return Verdict.FAILS, found.count
    missing = lacking(found.seen, needed(engine, without))
    return Verdict.UNDECIDED if missing else Verdict.HOLDS, found.count


def needed(engine: Schedules, without: Set[str] = frozenset()) -> tuple[str, ...]:
    """The coverage that a run needs to hold."""
    without = without | engine.lacks
    every = (
        *NEEDED,
        *(NEEDED_OF_LAG if engine.lag else ()),
        *(NEEDED_OF_DRAFTS if engine.drafts else ()),
        *(NEEDED_OF_OPEN_DRAFTS if engine.lag and engine.drafts else ()),
    )
    return tuple(one for one in every if not any(kind in one for kind in without))


if __name__ == "__main__":
    sys.exit(
        command.main(
            check,
            module="conformance.harnesses.plans",
            told=__doc__,
            engine="a conformance.harnesses.plans.Makes",
            kinds=(ABORT, FORGET),
            not_checked="draws at a temperature, transfers, values of attention, several "
            "choices, the order of preempted requests, what a worker reads beyond rows and texts",
        )
    )
