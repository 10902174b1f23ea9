"""The harness of requests served together: each must get the tokens of being served alone.

    python -m conformance.harnesses.requests conformance.harnesses.levanter_requests:llama

An engine that takes a list of requests and runs them all to the end cannot be stepped. It is driven
by lists, and judged by what can still be observed:

- every choice of a request is the naive generation of that request alone (ALONE), with one answer
  for each choice (OUT);
- a request that can never fit is refused, no other is, and a refusal changes nothing (ATOMIC);
- the pages that a call leaves behind satisfy the clauses of all views, and none is left where the
  engine promises that (CONS);
- after a reset no page is held (RESET).

A history is several calls to one engine, so that leftovers of one call can spoil the next.

An engine names its known findings, and the run reproduces each of them first: if one does not occur
again, the run is undecided. After that the run avoids all of them. Decoding is greedy.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from hypothesis.configuration import set_hypothesis_home_dir

from conformance.fuzzing.campaign import HOME
from conformance.harnesses import command
from conformance.harnesses.search import Search, lacking
from conformance.harnesses.workloads import (
    Answers,
    Broken,
    Call,
    Factory,
    Generates,
    History,
    alone,
    histories,
    shorter,
)
from conformance.lockstep.comparer import Difference, names, refusal_difference
from conformance.verdict import Verdict
from spec import clauses
from spec.machines import admission
from spec.view import View
from spec.vocabulary import (
    INVALID,
    CleanupMode,
    Geometry,
    InvalidInput,
    Params,
    Reason,
    Refused,
    Request,
)

GEOMETRY: Final = Geometry(pages=8, page_size=4, slots=3, pages_per_seq=4)
"""Two of the longest sequences fill the pool, and a third slot is left."""
NEEDED: Final = ("several requests", "several choices", "pages exactly full", "longest sequence",
                 "common page", "stopped", "refused", "served after a refusal", "reset",
                 "more sequences than slots")  # fmt: skip
"""The coverage that a run needs to hold; the last only for an engine that queues."""
JUDGED: Final = frozenset({"OUT"})
"""Clauses that are judged from the answers, without a view."""
COMPILING: Final = (Call((Request(id=0, prompt=(1,), params=Params(max_new=2)),)),)
"""A warm-up history, before the time starts."""
KNOWN_SECONDS: Final = 60.0
"""Time limit to reproduce a known finding and to shrink it."""


def unfit(engine: Generates, request: Request) -> frozenset[Reason]:
    """The reasons why this request can never be served."""
    found = admission.fit_refusals(engine.geometry, engine.limits, request)
    return frozenset(refusal.reason for refusal in found)


def play(engine: Generates, history: History, seen: Counter[str]) -> None:
    """Run a history; raises Broken."""
    refused = False
    for call in history:
        if call.reset:
            _reset(engine)
            seen["reset"] += 1
        waiting = tuple(request for request in call.requests if _kept(engine, request, seen))
        while waiting:
            count = engine.room(waiting)
            done = _serve(engine, waiting[:count], seen)
            seen["served after a refusal"] += done and refused
            refused = not done
            waiting = waiting[count:]
    _reset(engine)


def _kept(engine: Generates, request: Request, seen: Counter[str]) -> bool:
    met = engine.meets(request)
    if met is None and not unfit(engine, request):
        met = (
            None
            if alone(engine.next_token, request.prompt, request.params) is not None
            else "near tie"
        )
    if met is not None:
        seen[f"left out: {met}"] += 1
    return met is None


def _serve(engine: Generates, requests: Sequence[Request], seen: Counter[str]) -> bool:
    """Make one call; return whether it was served."""
    before = engine.observe()
    expected = frozenset[Reason]().union(*(unfit(engine, request) for request in requests))
    try:
        answers = engine.generate(requests)
    except Refused as error:
        _judge_refusal(engine, before, expected, error.reasons)
        seen["refused"] += 1
        return False
    _require_none(refusal_difference(None, expected, refuses="exact"))
    _judge(engine, requests, answers)
    _note(engine, requests, answers, seen)
    left = engine.observe()
    for clause, wrong in clauses.violations(left):
        raise Broken(clause, wrong)
    if engine.cleanup is not CleanupMode.NONE and left != _emptied(left):
        raise Broken("CONS", f"the call is over, and holds {_held(left)}")
    return True


def _require_none(found: Difference | None) -> None:
    if found is not None:
        raise Broken(found.clause, str(found))


def _judge_refusal(
    engine: Generates, before: View, expected: frozenset[Reason], given: frozenset[Reason]
) -> None:
    """Pages of an earlier call may be returned by a refusal: its answers are out."""
    kept = (before, _emptied(before)) if engine.cleanup is CleanupMode.NONE else (before,)
    if engine.observe() not in kept:
        raise Broken("ATOMIC", f"refused: {names(given)}, and pages changed")
    _require_none(refusal_difference(given, expected, refuses="exact"))


def _judge(engine: Generates, requests: Sequence[Request], answers: Answers) -> None:
    if [len(choices) for choices in answers] != [one.n_generations for one in requests]:
        raise Broken("OUT", f"choices: {[len(choices) for choices in answers]}")
    for request, choices in zip(requests, answers, strict=True):
        right = alone(engine.next_token, request.prompt, request.params)
        for choice, tokens in enumerate(choices):
            where = f"request {request.id}, choice {choice}"
            if not tokens:
                raise Broken("OUT", f"{where} has no answer, should be {right}")
            if tokens != right:
                _require_none(Difference("ALONE", where, tokens, right))


def _note(
    engine: Generates, requests: Sequence[Request], answers: Answers, seen: Counter[str]
) -> None:
    size, most = engine.geometry.page_size, engine.geometry.max_len
    firsts = Counter(one.prompt[:size] for one in requests if len(one.prompt) >= size)
    seen["requests"] += len(requests)
    seen["several requests"] += len(requests) > 1
    seen["common page"] += any(count > 1 for count in firsts.values())
    sequences = sum(request.n_generations for request in requests)
    seen["more sequences than slots"] += sequences > engine.geometry.slots
    for request, (tokens, *_) in zip(requests, answers, strict=True):
        whole = len(request.prompt) + len(tokens)
        seen["several choices"] += request.n_generations > 1
        seen["pages exactly full"] += not len(request.prompt) % size
        seen["longest sequence"] += whole == most
        seen["stopped"] += len(tokens) < request.params.max_new


def _reset(engine: Generates) -> None:
    engine.reset()
    left = engine.observe()
    if left != _emptied(left):
        raise Broken("RESET", f"after a reset the engine holds {_held(left)}")


def _emptied(view: View) -> View:
    """The same engine, with nothing allocated."""
    return View(
        geometry=view.geometry,
        counts=None if view.counts is None else (0,) * len(view.counts),
        used=(False,) * len(view.used),
        rows=((INVALID,) * view.geometry.pages_per_seq,) * len(view.rows),
        allocated=None if view.allocated is None else (0,) * len(view.allocated),
    )


def _held(view: View) -> str:
    pages = [page for page, count in enumerate(view.counts or ()) if count]
    return f"slots {[slot for slot, used in enumerate(view.used) if used]}, pages {pages}"


def replay(
    make: Factory, history: History, seen: Counter[str], *, meet: str | None
) -> Broken | None:
    """Run a history on a new engine; return the violation, if there is one."""
    try:
        play(make(GEOMETRY, meet=meet), history, seen)
    except Broken as broken:
        return broken
    except InvalidInput:
        raise
    except Exception as error:
        return Broken("ATOMIC", f"the engine raised {type(error).__name__}: {str(error)[:200]}")
    return None


def search(make: Factory, chosen: int, *, meet: str | None = None) -> Search[History]:
    """A search among random histories of one engine. chosen: the seed. meet: see `Factory`."""
    return Search(
        drawn=lambda: histories(make(GEOMETRY)),
        judge=lambda history, seen: replay(make, history, seen, meet=meet),
        shorter=shorter,
        first=COMPILING,
        chosen=chosen,
    )


def told(history: History, broken: Broken) -> Iterator[str]:
    """A history and its violation, as lines of text."""
    for call in history:
        yield "  reset, then generate" if call.reset else "  generate"
        for request in call.requests:
            params = request.params
            stops = f", stops {params.stops}" if params.stops else ""
            yield (
                f"    request {request.id}: prompt {request.prompt}, {request.n_generations} "
                f"choices of at most {params.max_new}{stops}"
            )
    yield f"  {broken}"


def check(make: Factory, *, chosen: int, seconds: float) -> tuple[Verdict, int]:
    """Reproduce the known findings, then search for others; the verdict and number of histories.

    chosen: the seed. seconds: for the search of unknown findings.
    """
    set_hypothesis_home_dir(HOME)
    print(GEOMETRY)
    engine = make(GEOMETRY)
    hidden = [clause for clause in clauses.not_checked(engine.observe()) if clause not in JUDGED]
    print(f"not checked: {', '.join(hidden)}: the engine does not show enough")
    gone = [name for name in engine.known if not _still(make, name, chosen)]
    found = search(make, chosen)
    found.run(seconds)
    if found.least is not None:
        print("\n".join(told(*found.least)))
        return Verdict.FAILS, found.count
    missing = lacking(found.seen, needed(engine))
    for name in gone:
        print(f"not found again, so its page may be out of date: {name}")
    return Verdict.UNDECIDED if missing or gone else Verdict.HOLDS, found.count


def needed(engine: Generates) -> Sequence[str]:
    """The coverage that a run needs to hold."""
    return NEEDED if engine.queues else NEEDED[:-1]


def _still(make: Factory, name: str, chosen: int) -> bool:
    """Whether a known finding still occurs when the engine does not avoid it."""
    found = search(make, chosen, meet=name)
    found.run(KNOWN_SECONDS)
    if found.least is not None:
        print(f"known: {name}, again after {found.count} histories")
        print("\n".join(told(*found.least)))
    return found.least is not None


if __name__ == "__main__":
    sys.exit(
        command.main(
            check,
            module="conformance.harnesses.requests",
            told=__doc__,
            engine="a conformance.harnesses.requests.Factory",
            not_checked="draws at a temperature, scores, attention on an accelerator",
        )
    )
