"""`python -m conformance.benchmarks.ahead_traffic TRACE`: a host that does not wait, on traffic.

`impl.ahead.Ahead` serves the requests of a trace in their order, a few of which always wait, once
at each lag. Each output is compared with naive decoding of its request alone, and afterwards the
device must have nothing in a slot, in a queue, in flight or in a page. Traces say nothing of stops:
every third request has one, in the middle of what it would generate.

The table has, for each lag, the steps that were dispatched, how many outputs ended with a stop, and
the most slots at one time whose sequence had ended, and that a step in flight still had. Exit
status 1 if an output differs, or if anything is left.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from attrs import evolve, frozen
from rich.console import Console
from rich.progress import track
from rich.table import Table

from conformance.traffic import replay, traces
from impl.ahead import Ahead
from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import LAG, CleanupMode, FinishReason, Geometry, Limits, Request, Tokens

PAGE_SIZES: Final = {"azure": 16, "mooncake": 1}
SLOTS: Final = 16
WAITING: Final = 8
"""How many requests wait, while the trace has more."""
STOPS_EVERY: Final = 3
MOST_NAMED: Final = 10

Answer = tuple[Tokens, FinishReason]


@frozen
class Asked:
    """A request, and what it gets when it is served alone."""

    request: Request
    answer: Answer


@frozen
class Served:
    """One run. wrong: ids of requests with another output, or with none. left: what the device has.

    held: the most slots at one time that a step in flight has, and no sequence.
    """

    lag: int
    steps: int
    held: int
    wrong: tuple[int, ...]
    left: tuple[str, ...]


def asked(requests: Iterable[Request]) -> list[Asked]:
    """The requests, of which every third stops in the middle of its tokens."""
    found = list[Asked]()
    for number, one in enumerate(requests):
        tokens, reason = replay.alone(one, 0)
        if number % STOPS_EVERY == 0:
            stop = tokens[len(tokens) // 2]
            one = evolve(one, params=evolve(one.params, stops=((stop,),)))  # noqa: PLW2901
            tokens, reason = tokens[: tokens.index(stop) + 1], FinishReason.STOP
        found.append(Asked(one, (tokens, reason)))
    return found


def serve(engine: Engine, traffic: Iterable[Asked], *, lag: int) -> Served:
    """Serve the requests to the end."""
    server, coming, expected = Ahead(engine, lag=lag), iter(traffic), dict[int, Answer]()
    answers, steps, held, going = dict[int, Answer](), 0, 0, True
    while going:
        for one in islice(coming, WAITING - len(server.state.waiting)):
            expected[one.request.id] = one.answer
            server.submit(one.request)
        going = server.step()
        steps += going
        held = max(held, sum(one.gone for one in server.state.held))
        for output in server.take_outputs():
            answers[output.request] = (output.tokens, output.reason)
    wrong = [name for name, answer in expected.items() if answers.get(name) != answer]
    return Served(lag, steps, held, tuple(wrong), _left(engine))


def _left(engine: Engine) -> tuple[str, ...]:
    """What the device has, in words."""
    stats = engine.stats()
    counts = {
        "slots in use": stats.active,
        "queued tokens": stats.queued,
        "steps in flight": stats.in_flight,
        "held slots": stats.held_slots,
        "outputs": stats.outputs,
        "pages in use": engine.setup.geometry.pages - stats.free_pages,
    }
    return tuple(f"{count} {name}" for name, count in counts.items() if count)


def main(argv: list[str] | None = None) -> int:
    """Serve the trace at each lag, and print a table."""
    options = _options(argv)
    sizes = {
        "page_size": options.page_size or PAGE_SIZES[options.format],
        "limit": options.limit,
        "new_divisor": options.new_tokens_divided_by,
    }
    geometry, limits, totals = replay.geometry_for(
        options.trace, options.format, slots=SLOTS, preempts=True, **sizes
    )
    traffic = asked(
        track(
            replay.requests(options.trace, options.format, **sizes),
            description="naive decoding",
            total=totals.requests,
            console=Console(stderr=True),
        )
    )
    found = [_serve_at(geometry, limits, traffic, lag) for lag in range(LAG + 1)]
    tokens = sum(len(one.answer[0]) for one in traffic)
    stopped = sum(one.answer[1] is FinishReason.STOP for one in traffic)
    print(f"{len(traffic)} requests, {totals.prompt_tokens} prompt tokens, {tokens} generated, "
          f"{stopped} stops, {geometry}")  # fmt: skip
    _print(found)
    return int(any(one.wrong or one.left for one in found))


def _serve_at(geometry: Geometry, limits: Limits, traffic: Sequence[Asked], lag: int) -> Served:
    setup = Setup(
        geometry=geometry, limits=limits, cleanup=CleanupMode.INCREMENTAL, model=IntegerModel()
    )
    shown = track(traffic, description=f"lag {lag}", console=Console(stderr=True))
    return serve(Engine(setup), shown, lag=lag)


def _print(found: Iterable[Served]) -> None:
    table = Table("lag", "steps", "held slots at most", "wrong outputs", "left at the end")
    for one in found:
        wrong = ", ".join(map(str, one.wrong[:MOST_NAMED])) + ", ..." * (
            len(one.wrong) > MOST_NAMED
        )
        table.add_row(
            *map(str, (one.lag, one.steps, one.held, wrong or 0, ", ".join(one.left) or 0))
        )
    Console().print(table)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.benchmarks.ahead_traffic",
        description="Serve a trace with a host that does not wait, at each lag.",
        epilog="example: python -m conformance.benchmarks.ahead_traffic azure.csv --limit 500",
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--format", choices=traces.FORMATS, default="azure")
    parser.add_argument("--page-size", type=int)
    parser.add_argument("--new-tokens-divided-by", type=int, metavar="N")
    parser.add_argument("--limit", type=int, help="requests to serve (default all)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
