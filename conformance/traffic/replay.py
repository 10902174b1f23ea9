"""Replay of real traffic through an engine in lockstep, every output compared with naive decoding.

The traffic has lengths and no text; `conformance.traffic.traces` makes prompts from it. A few
requests always wait, so that admission has a choice to make; or they begin with the pages that are
found of their prompts, see `conformance.traffic.hits`; or the scheduler of the specification serves
them, see `conformance.traffic.scheduled`.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from attrs import define, field

from conformance.history import Step
from conformance.lockstep.called import Called
from conformance.lockstep.lockstep import Lockstep, Violation
from conformance.lockstep.run import Finding, compares_statistics, take
from conformance.lockstep.watchdog import LARGE_SECONDS, Watchdog
from conformance.protocol import Engine
from conformance.traffic import traces
from conformance.traffic.hits import Do, Sharing, must_take
from conformance.traffic.scheduled import (
    CHUNK,
    GAINS_NOTHING,
    LATE,
    NO_FURTHER,
    WAITING,
    Scheduled,
)
from spec import model
from spec.index import Index
from spec.machines import naive
from spec.machines.actions import Admit, Generate, Submit, TakeOutputs
from spec.vocabulary import (
    FinishReason,
    Geometry,
    InvalidInput,
    Limits,
    Params,
    Reason,
    Request,
    Tokens,
)
from spec.vocabulary.integers import VOCABULARY

STALLS: Final = "no step changes anything, should serve the requests that are left"
NOT_OF_A_STEP: Final = frozenset({STALLS, NO_FURTHER, LATE, GAINS_NOTHING})
"""What is wrong though no step violates a clause, so that it cannot be shrunk."""
Serve = Callable[[Lockstep, Do, dict[int, Request]], int]
"""Begins requests and runs rounds. Returns how many requests came; they are added to the others."""


@define
class Tally:
    """The counts of a replay, current at any time.

    requests: finished. tokens: read in prompts and generated, of these. refused: admissions that
    did not fit. leaked_pages: that a row names after everything has finished. held_pages: that a
    step in flight names then. evicted: pages that left the index. sharing: what was found of the
    prompts; None where nothing is looked up. scheduled: what the scheduler did; None where requests
    are admitted by their worst case.
    """

    requests: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    steps: int = 0
    refused: int = 0
    seconds: float = 0.0
    leaked_pages: int | None = None
    held_pages: int | None = None
    evicted: int = 0
    sharing: Sharing | None = None
    scheduled: Scheduled | None = None
    history: list[Step] = field(factory=list, repr=False)
    finding: Finding | None = None


def requests(
    path: Path,
    format: str,
    *,
    page_size: int,
    skip: int = 0,
    limit: int | None = None,
    new_divisor: int | None = None,
) -> Iterator[Request]:
    """The requests of a trace, scaled, in order of arrival, with generated prompts.

    skip: how many are left out at the start. new_divisor: of new tokens; None for that of prompts.
    """
    for index, row in _rows(path, format, skip, limit):
        length, new = traces.scale(row, page_size=page_size, new_divisor=new_divisor)
        prompt = traces.prompt_tokens(
            index, length, row.blocks, page_size=page_size, vocabulary=VOCABULARY
        )
        temperature = float(index % 2)
        params = Params(max_new=new, temperature=temperature, seed=index)
        yield Request(id=index, prompt=prompt, params=params)


def _rows(
    path: Path, format: str, skip: int, limit: int | None
) -> Iterator[tuple[int, traces.TraceRequest]]:
    """Requests of a trace, each with its number in the trace."""
    stop = None if limit is None else skip + limit
    return islice(enumerate(traces.load(path, format)), skip, stop)


def geometry_for(
    path: Path,
    format: str,
    *,
    page_size: int,
    slots: int,
    skip: int = 0,
    limit: int | None = None,
    new_divisor: int | None = None,
    pages: int | None = None,
    preempts: bool = False,
) -> tuple[Geometry, Limits, traces.Totals]:
    """Sizes that fit the longest request of a trace, and the scaled trace's totals.

    Raises InvalidInput if no request is left.

    pages: of the pool; None for twice the longest request, or 12 for each slot if that is more.
    preempts: whether rounds read prompts too, and have room for them.
    """
    scaled = [
        traces.scale(row, page_size=page_size, new_divisor=new_divisor)
        for _, row in _rows(path, format, skip, limit)
    ]
    if not scaled:
        raise InvalidInput(
            "skip",
            seen=skip,
            allowed="fewer requests than the trace has",
            remedy="Leave out fewer.",
        )
    totals = traces.totals(scaled)
    width = -(-totals.longest // page_size)
    chosen = max(2 * width, 12 * slots) if pages is None else pages
    geometry = Geometry(pages=chosen, page_size=page_size, slots=slots, pages_per_seq=width)
    longest_prompt = max(prompt for prompt, _ in scaled)
    limits = Limits(
        queue=slots,
        prefill_tokens=max(longest_prompt, 256),
        prefill_seqs=min(slots, 8),
        round_tokens=slots + CHUNK * preempts,
        rounds=8,
        stops=1,
        stop_len=1,
        outputs=2 * slots,
    )
    return geometry, limits, totals


def replay(
    engine: Engine,
    traffic: Iterable[Request],
    *,
    tally: Tally,
    update: Callable[[int], None],
    step_seconds: float = LARGE_SECONDS,
    watchdog: Watchdog | None = None,
    hits: bool = False,
    preempts: bool = False,
    lag: int | None = None,
) -> None:
    """Serve the traffic to the end or to the first violation; `tally` is kept current.

    step_seconds: the time limit of a step. watchdog: notified of each step. hits: whether prompts
    are looked up in the index; else requests are submitted and admitted. preempts: whether the
    scheduler of the specification serves them, and preempts the newest where pages lack. lag: of
    its turns.
    """
    started = time.perf_counter()
    lockstep = Lockstep(Called(lambda: engine))

    def do(step: Step) -> frozenset[Reason]:
        tally.steps += 1
        tally.history.append(step)
        before = lockstep.state.indexed
        try:
            if watchdog is not None:
                watchdog.begin(tally.history, step_seconds)
            compares = compares_statistics(tally.steps)
            return take(lockstep, step, seconds=step_seconds, statistics=compares, events=compares)
        finally:
            tally.evicted += _evicted(before, lockstep.state.indexed)
            if watchdog is not None:
                watchdog.end()

    coming, known = iter(traffic), dict[int, Request]()
    serve = _server(coming, tally, hits=hits, preempts=preempts, lag=lag)
    try:
        while True:
            before = lockstep.state
            brought = serve(lockstep, do, known)
            if not known:
                break
            rests = lockstep.state == before
            if rests or 2 * len(lockstep.state.outputs) >= lockstep.state.limits.outputs:
                _collect(lockstep, do, known, tally)
            if not brought and rests and lockstep.state == before:
                tally.finding = Finding(tuple(tally.history), "PROG", STALLS)
                return  # no clause is violated by a step of it, so it cannot be shrunk
            tally.seconds = time.perf_counter() - started
            update(tally.requests)
        counts = lockstep.seen.counts
        tally.leaked_pages = None if counts is None else len(counts) - counts.count(0)
        held = lockstep.seen.held
        tally.held_pages = None if held is None else len(held) - held.count(0)
    except Violation as violation:
        history = tuple(tally.history)
        tally.finding = Finding(history, violation.clause, violation.message, violation)
    finally:
        tally.seconds = time.perf_counter() - started


def alone(request: Request, choice: int) -> tuple[Tokens, FinishReason]:
    """What `naive.generate` gives: the output of a choice of a request that is served alone.

    Rows of the model stay as they are when the text grows. So one pass over a text that grows by
    what is drawn from its last row is as good as a pass over each prefix, and costs less.
    """
    text = [*request.prompt]
    rows = islice(model.forward(text), len(text) - 1, None)
    while True:
        _, hidden = next(rows)
        drawn = model.draw(request.params, choice=choice, position=len(text))
        text.append(model.unembed(hidden, drawn))
        generated = tuple(text[len(request.prompt) :])
        reason = naive.finish(generated, request.params)
        if reason is not None:
            return generated, reason


def _evicted(before: Index, after: Index) -> int:
    """How many pages have left an index."""
    if before is after:
        return 0
    return sum(old is not None and new is None for old, new in zip(before, after, strict=True))


def _server(
    coming: Iterator[Request], tally: Tally, *, hits: bool, preempts: bool, lag: int | None
) -> Serve:
    """How requests are served; what it counts is in the tally."""
    if preempts:
        tally.scheduled = Scheduled(coming, lag=lag)
        return tally.scheduled.turn
    if hits:
        tally.sharing = Sharing(coming)
        return _then_generate(tally.sharing.bring)
    return _then_generate(partial(_submit, coming, tally))


def _then_generate(bring: Serve) -> Serve:
    def serve(lockstep: Lockstep, do: Do, known: dict[int, Request]) -> int:
        brought = bring(lockstep, do, known)
        if known:
            do(Generate())
        return brought

    return serve


def _submit(
    coming: Iterator[Request],
    tally: Tally,
    lockstep: Lockstep,
    do: Do,
    known: dict[int, Request],
) -> int:
    """Submit requests until enough are waiting, and admit; return how many were submitted."""
    arrivals = list(islice(coming, WAITING - len(lockstep.state.waiting)))
    for request in arrivals:
        known[request.id] = request
        must_take(do, Submit(request), of=f"request {request.id}")
    if do(Admit()) - {Reason.QUEUE_EMPTY}:
        tally.refused += 1
    return len(arrivals)


def _collect(lockstep: Lockstep, do: Do, known: dict[int, Request], tally: Tally) -> None:
    """Take the outputs, if any, and compare each with naive decoding of its request alone.

    A request has finished when nothing of it is left in the specification.
    """
    outputs = lockstep.state.outputs
    if not outputs:
        return
    do(TakeOutputs())
    for output in outputs:
        request = known[output.request]
        was_queued = tally.sharing is not None and request.id in tally.sharing.queued
        tokens = output.tokens[was_queued:]
        wanted = alone(request, output.choice)
        if (tokens, output.reason) != wanted:
            wrong = f"request {request.id} got {tokens}, alone it gets {wanted[0]}"
            seen = lockstep.seen
            raise Violation("ALONE", wrong, action=TakeOutputs(), before=seen, after=seen)
        tally.new_tokens += len(tokens)
    running = {request.id for request in (*lockstep.state.waiting, *lockstep.state.admitted)}
    for name in {output.request for output in outputs} - running:
        tally.requests += 1
        tally.prompt_tokens += len(known.pop(name).prompt)
