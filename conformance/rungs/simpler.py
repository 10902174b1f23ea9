"""Smaller requests and parameters for shrinking; never larger ones, so that shrinking ends."""

from collections.abc import Iterator

from attrs import evolve

from spec.vocabulary import Params, Request


def smaller(number: int) -> Iterator[int]:
    """1 and a half: a name that stays large in a shortest history is one that matters."""
    if number > 1:
        yield from sorted({1, number // 2})


def simpler_params(params: Params) -> Iterator[Params]:
    """The parameters without stop sequences, greedy, with seed 0, or with a smaller limit."""
    default = Params(max_new=1)
    for field in ("stops", "temperature", "seed"):
        if getattr(params, field) != getattr(default, field):
            yield evolve(params, **{field: getattr(default, field)})
    if params.max_new > 1:
        yield evolve(params, max_new=params.max_new // 2)
        yield evolve(params, max_new=params.max_new - 1)


def simpler_requests(request: Request) -> Iterator[Request]:
    """The request with fewer choices, a shorter or plainer prompt, simpler parameters or id."""
    if request.n_generations > 1:
        yield evolve(request, n_generations=request.n_generations - 1)
    if len(request.prompt) > 1:
        yield evolve(request, prompt=request.prompt[: len(request.prompt) // 2])
        yield evolve(request, prompt=request.prompt[:-1])
    if any(request.prompt):
        yield evolve(request, prompt=(0,) * len(request.prompt))
    for params in simpler_params(request.params):
        yield evolve(request, params=params)
    for name in smaller(request.id):
        yield evolve(request, id=name)
