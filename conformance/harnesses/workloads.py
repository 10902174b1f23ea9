"""The protocol of an engine that takes a list of requests, and generators of such lists.

Prompts end around page boundaries, begin alike, and have several choices; stop sequences are taken
from the request's own answer.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from attrs import evolve, frozen
from hypothesis import strategies as st

from spec.machines import naive
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, Limits, Params, Request, Tokens

COMMON: Final = (3, 1, 4, 1, 5, 9, 2, 6)
"""A text; prompts begin with a part of it, so that they share prefixes."""

Answers = Sequence[Sequence[Tokens]]
"""For each request, in order, the generated tokens of each of its choices."""


class Broken(AssertionError):
    """A violated clause. clause: its id."""

    def __init__(self, clause: str, wrong: str) -> None:
        super().__init__(f"{clause}: {wrong}")
        self.clause = clause


class Generates(Protocol):
    """An engine that takes all its requests at once.

    cleanup: when a call returns its pages; NONE: at the next call or reset. queues: whether a call
    may have more sequences than there are slots. known: names of findings.
    """

    geometry: Geometry
    limits: Limits
    cleanup: CleanupMode
    queues: bool
    known: Sequence[str]

    def meets(self, request: Request) -> str | None:
        """The known finding that this request would trigger; None if there is none to avoid."""
        ...

    def room(self, requests: Sequence[Request]) -> int:
        """How many of these requests, from the first, fit into one call, at least 1."""
        ...

    def generate(self, requests: Sequence[Request]) -> Answers:
        """Serve them to the end, or raise `spec.vocabulary.Refused` and change nothing."""
        ...

    def next_token(self, text: Tokens) -> int | None:
        """The next token of its model without a cache; None if the best two nearly tie."""
        ...

    def observe(self) -> View:
        """The pages and slots held now: used, rows and, if possible, counts and allocated."""
        ...

    def reset(self) -> None:
        """Return all pages and slots."""
        ...


class Factory(Protocol):
    """Makes a new engine. meet: a known finding that it must not avoid."""

    def __call__(self, geometry: Geometry, *, meet: str | None = None) -> Generates:
        """Make an engine."""
        ...


@frozen
class Call:
    """A list of requests, with ids from 0. reset: whether to reset the engine first."""

    requests: tuple[Request, ...]
    reset: bool = False


History = tuple[Call, ...]


def alone(
    next_token: Callable[[Tokens], int | None], prompt: Tokens, params: Params
) -> Tokens | None:
    """The naive generation of one request; None if there is no next token, as where scores tie."""
    text = prompt
    while naive.finish(text[len(prompt) :], params) is None:
        token = next_token(text)
        if token is None:
            return None
        text = (*text, token)
    return text[len(prompt) :]


@st.composite
def asked(draw: st.DrawFn, engine: Generates) -> Request:
    """A request around page boundaries; of 32, one for each way in which none can ever fit."""
    size, most = engine.geometry.page_size, engine.geometry.max_len
    odd = draw(st.integers(0, 31))
    length = draw(st.sampled_from(_lengths(size, most - 1)))
    common = COMMON[: min(length, draw(st.sampled_from((0, size, len(COMMON)))))]
    rest = length - len(common)
    prompt = (*common, *draw(st.lists(st.integers(0, 3), min_size=rest, max_size=rest)))
    new = draw(st.sampled_from([*_lengths(size, most - length), most - length]))
    choices = draw(st.sampled_from((1, 1, 1, 2, engine.geometry.slots)))
    count = draw(st.sampled_from((0, 0, 1, 2)))
    stops = draw(st.lists(_stop(engine, prompt, new), min_size=count, max_size=count))
    if odd == 15:
        choices = engine.geometry.slots + 1
    elif odd == 14:
        new = most - length + 1
    elif odd == 13:
        stops = [(tokens,) for tokens in range(engine.limits.stops + 1)]
    return Request(
        id=0,
        prompt=prompt,
        params=Params(max_new=new, stops=tuple(stops)),
        n_generations=choices,
    )


def _lengths(size: int, most: int) -> list[int]:
    near = {edge + step for edge in range(0, most + 1, size) for step in (-1, 0, 1)}
    return sorted(length for length in near | {2, most} if 1 <= length <= most)


def _stop(engine: Generates, prompt: Tokens, new: int) -> st.SearchStrategy[Tokens]:
    """A part of the answer; it may begin with the last token of the prompt."""
    answer = alone(engine.next_token, prompt, Params(max_new=new)) or (0,)
    text = (prompt[-1], *answer)
    parts = st.tuples(st.integers(0, len(answer)), st.integers(1, engine.limits.stop_len))
    return parts.map(lambda part: text[part[0] : part[0] + part[1]])


def histories(engine: Generates) -> st.SearchStrategy[History]:
    """Up to three calls of up to five requests."""
    requests = st.lists(asked(engine), min_size=1, max_size=5).map(_numbered)
    calls = st.builds(Call, requests, reset=st.booleans())
    return st.lists(calls, min_size=1, max_size=3).map(tuple)


def _numbered(requests: Sequence[Request]) -> tuple[Request, ...]:
    return tuple(evolve(request, id=number) for number, request in enumerate(requests))


def shorter(history: History) -> Iterator[History]:
    """Shorter versions of a history, the shortest first."""
    for index, call in enumerate(history):
        before, after = history[:index], history[index + 1 :]
        yield (*before, *after)
        if call.reset:
            yield (*before, evolve(call, reset=False), *after)
        for at, request in enumerate(call.requests):
            others = call.requests[:at], call.requests[at + 1 :]
            for less in ((), *((one,) for one in _lesser(request))):
                requests = _numbered((*others[0], *less, *others[1]))
                if requests:
                    yield (*before, evolve(call, requests=requests), *after)


def _lesser(request: Request) -> Iterator[Request]:
    prompt, params = request.prompt, request.params
    middle = len(prompt) // 2
    for part in (prompt[middle:], prompt[:middle], prompt[1:], prompt[:-1]):
        if 0 < len(part) < len(prompt):
            yield evolve(request, prompt=part)
    for new in (1, params.max_new // 2, params.max_new - 1):
        if 0 < new < params.max_new:
            yield evolve(request, params=evolve(params, max_new=new))
    for count in (1, request.n_generations - 1):
        if 0 < count < request.n_generations:
            yield evolve(request, n_generations=count)
    for index in range(len(params.stops)):
        stops = params.stops[:index] + params.stops[index + 1 :]
        yield evolve(request, params=evolve(params, stops=stops))
