"""`python -m conformance.benchmarks.ahead`: a host that does not wait, at each lag, in one run.

One workload is served at lag 0, 1 and 2, in turns, by the same model with the same weights and
sizes. For each lag the table has

*steps*: how many were dispatched, those included that a stop made useless.

*steps a second*: the steps over the seconds from the first submission until the last output is
read. *tokens*: those of the outputs, over the same seconds, as a multiple of lag 0.

*the device waits*: the share of those seconds in which the device has nothing to do, since the
host has not enqueued the next call. Before each call the host looks whether the call enqueued last
is done already. If it is, the device has waited at most since the host last saw it at work: that is
when it last looked, or when a report came that it waited for. These times are added, up to the
moment at which the next call is enqueued. So the share is an upper bound, but for the moment that
the thread of the host takes to wake up when a report comes.

*late steps*: the share of steps before which the device had nothing to do for a while.

*stop known after*: for each sequence that a stop ended, how many further steps were dispatched
between the one that drew the stop and the moment at which the host had read of it.

Seconds and shares are medians of the turns. A CPU computes in a thread of its own beside the host,
if `jax_cpu_enable_async_dispatch` is on, as it is by default, and if a core is free.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import mean, median
from typing import Any, Final

import jax
import numpy as np
from attrs import evolve, frozen
from rich.console import Console
from rich.table import Table

from conformance.benchmarks.timing import GEOMETRY, LIMITS, WIDE, wait
from impl.ahead import Ahead
from impl.engine import Engine, Key, Output
from impl.host import Host
from impl.models.protocol import Weights
from impl.setup import Setup
from spec.vocabulary import LAG, FinishReason, Params, Request

MODEL: Final = evolve(WIDE, layers=4, embed=512, q_heads=8, kv_heads=8, mlp=2048, vocabulary=2048)
"""Some 20 million parameters."""
SETUP: Final = Setup(geometry=GEOMETRY, limits=evolve(LIMITS, round_tokens=16), model=MODEL)
WAITS: Final = 0.05
"""The target at the longest lag: the device waits for less than this share."""


@frozen(eq=False)
class Call:
    """A call of an entry point: what it was given, and its report."""

    name: str
    rest: tuple[Any, ...]
    report: jax.Array


class Watched(Engine):
    """An engine that keeps the calls that are started, and sees when the device waits for them.

    read: for each step, in order, how many steps had been started when its report was read. waited:
    at most so many seconds the device had no call. late: how many steps ended such a time.
    """

    def __init__(self, setup: Setup, weights: Weights) -> None:
        super().__init__(setup, weights)
        self.calls, self.read = list[Call](), list[int]()
        self.waited, self.late, self._waited_since = 0.0, 0, False
        self.begin()

    def begin(self) -> None:
        """The time begins, when the device has nothing to do."""
        wait(self.packed)
        self._busy = time.perf_counter()

    def start(self, name: str, *rest: Any) -> jax.Array:
        """Start a call, and keep it."""
        waits = self._waits()
        report = super().start(name, *rest)
        now = time.perf_counter()
        if waits:
            self.waited += now - self._busy
            self._waited_since = True
        if name == "launch":
            self.late, self._waited_since = self.late + self._waited_since, False
        self._busy = now
        self.calls.append(Call(name, rest, report))
        return report

    def finish(self, report: jax.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Read a report; those of steps are read in order."""
        self._look()
        worked = not self._waits()
        result = super().finish(report)
        if worked and report is self.calls[-1].report:
            self._busy = time.perf_counter()
        self._look()
        steps = [call.report for call in self.calls if call.name == "launch"]
        if len(self.read) < len(steps) and steps[len(self.read)] is report:
            self.read.append(len(steps))
        return result

    def _waits(self) -> bool:
        last: Any = self.calls[-1].report if self.calls else None
        return last is None or bool(last.is_ready())

    def _look(self) -> None:
        now = time.perf_counter()
        if not self._waits():
            self._busy = now


@frozen(eq=False)
class Served:
    """One run. seconds: until the last output was read. waited, late: as of Watched.

    known: for each stop, how many further steps were started before it was known.
    """

    seconds: float
    waited: float
    late: int
    calls: tuple[Call, ...]
    known: tuple[int, ...]
    outputs: dict[Key, Output]

    @property
    def steps(self) -> int:
        """How many steps were dispatched."""
        return sum(call.name == "launch" for call in self.calls)


@frozen
class Row:
    """What one lag amounts to. tokens: those of the outputs. waits, late: shares. known: for each
    stop.
    """

    lag: int
    steps: int
    tokens: int
    seconds: float
    waits: float
    late: float
    known: tuple[int, ...]


def serve(setup: Setup, weights: Weights, requests: Sequence[Request], lag: int) -> Served:
    """Serve the requests by a new engine."""
    engine = Watched(setup, weights)
    server = Ahead(engine, lag=lag)
    engine.begin()
    begin = time.perf_counter()
    outputs = server.generate(requests)
    seconds = time.perf_counter() - begin
    stopped = (one for one in outputs.values() if one.reason is FinishReason.STOP)
    known = tuple(_known(engine, output) for output in stopped)
    return Served(seconds, engine.waited, engine.late, tuple(engine.calls), known, outputs)


def _known(engine: Watched, output: Output) -> int:
    """How many further steps were started before the end of this output was read."""
    steps, slot, left = 0, -1, 0
    for call in engine.calls:
        if call.name == "begin" and int(call.rest[4].requests[0]) == output.request:
            slot, left = int(call.rest[1]), int(call.rest[3]) + len(output.tokens) - 1
        elif call.name == "launch":
            steps += 1
            read = int(call.rest[1][slot]) if left else 0
            left -= read
            if read and not left:
                return engine.read[steps - 1] - steps
    raise AssertionError("the last token of an output was drawn")


def measure(
    setup: Setup, weights: Weights, requests: Sequence[Request], *, turns: int
) -> tuple[Row, ...]:
    """A row for each lag. The outputs of all are the same, or this raises AssertionError."""
    runs: dict[int, list[Served]] = {lag: [] for lag in range(LAG + 1)}
    for turn in range(turns + 1):  # the first one compiles
        for lag, found in runs.items():
            served = serve(setup, weights, requests, lag)
            if turn:
                found.append(served)
    expected = runs[0][0].outputs
    assert all(one.outputs == expected for found in runs.values() for one in found)
    return tuple(_row(lag, found) for lag, found in runs.items())


def _row(lag: int, runs: Sequence[Served]) -> Row:
    first = runs[0]
    assert {(one.steps, one.known) for one in runs} == {(first.steps, first.known)}
    return Row(
        lag=lag,
        steps=first.steps,
        tokens=sum(len(output.tokens) for output in first.outputs.values()),
        seconds=median(one.seconds for one in runs),
        waits=median(one.waited / one.seconds for one in runs),
        late=median(one.late / one.steps for one in runs),
        known=first.known,
    )


def workload(setup: Setup, weights: Weights, *, count: int, most: int) -> tuple[Request, ...]:
    """So many requests of different lengths, each second one with a stop that ends it earlier."""
    size = setup.model.vocabulary
    plain = [
        Request(
            id=number,
            prompt=tuple((7 * number + at * at) % size for at in range(1 + 5 * number % most)),
            params=Params(max_new=2 + 11 * number % most, temperature=1.0, seed=number),
        )
        for number in range(count)
    ]
    outputs = Host(Engine(setup, weights)).generate(plain)
    texts = [outputs[one.id, 0].tokens for one in plain]
    return tuple(
        evolve(one, params=evolve(one.params, stops=((text[len(text) // 2],),)))
        if one.id % 2
        else one
        for one, text in zip(plain, texts, strict=True)
    )


def show(rows: Sequence[Row]) -> None:
    """Print the table, and what its columns mean."""
    columns = ("steps", "steps a second", "tokens", "the device waits", "late steps")
    table = Table("lag", *columns, "stop known after")
    usual = rows[0].tokens / rows[0].seconds
    for row in rows:
        table.add_row(
            f"{row.lag}",
            f"{row.steps}",
            f"{row.steps / row.seconds:.1f}",
            f"{row.tokens / row.seconds / usual:.2f} x",
            f"{row.waits:.1%}",
            f"{row.late:.1%}",
            f"{mean(row.known):.2f} steps, at most {max(row.known)}" if row.known else "",
        )
    console = Console(width=110)
    console.print(table)
    console.print(
        "the device waits: for at most this share of the time it has no call to do, and the next "
        "one is not enqueued yet. late steps: before them it had none. stop known after: further "
        "steps dispatched until the host had read of a stop. tokens: of the outputs, in a second."
    )
    mark = "met" if rows[-1].waits < WAITS else "NOT met"
    lag = rows[-1].lag
    console.print(f"target at lag {lag}: the device waits for less than {WAITS:.0%}: {mark}")


def main(argv: list[str] | None = None) -> int:
    """Measure and print; a missed target is told, and does not fail."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.benchmarks.ahead",
        description="Measure how long a device waits for a host that is some steps ahead.",
    )
    parser.add_argument("--turns", type=int, default=5, help="runs of each lag (default: 5)")
    options = parser.parse_args(argv)
    weights = jax.jit(MODEL.init)(jax.random.key(0))
    requests = workload(SETUP, weights, count=16, most=48)
    show(measure(SETUP, weights, requests, turns=max(1, options.turns)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
