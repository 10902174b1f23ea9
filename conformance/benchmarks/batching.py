"""`python -m conformance.benchmarks.batching TRACE`: the rounds of three ways of batching.

Counts of rounds, from the lengths of a trace alone: no engine, no clock, and a pool that never
lacks a page. A slot is utilised in a round if it writes a token.

*static*: as many requests as there are slots are read in one round and decoded until the last one
has ended; then the next ones begin. *continuous*: a free slot is taken at once; prompts are read
whole in a round of their own, in which the others wait. *chunks*: rounds read prompts in parts
beside the tokens of the others, queued tokens first, under one budget.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from attrs import define, frozen
from rich.console import Console
from rich.table import Table

from conformance.traffic import traces

Lengths = tuple[int, int]
"""Prompt and generated tokens of a request."""


@define
class Left:
    """What a running request has left: tokens to read, then rounds that write a drawn token."""

    read: int
    write: int


@frozen
class Round:
    """The slots that write in a round, and the tokens that they write."""

    slots: int
    tokens: int


@frozen
class Figures:
    """rounds: how many. utilisation: the share of all slots that write, over all rounds."""

    rounds: int
    utilisation: float
    tokens_per_round: float


def static(lengths: Iterable[Lengths], *, slots: int, budget: int) -> Iterator[Round]:
    """A batch ends before the next one begins. The budget is not used."""
    del budget
    coming = iter(lengths)
    while batch := [*islice(coming, slots)]:
        yield Round(len(batch), sum(prompt for prompt, _ in batch))
        for turn in range(1, max(new for _, new in batch)):
            writing = sum(new > turn for _, new in batch)
            yield Round(writing, writing)


def continuous(lengths: Iterable[Lengths], *, slots: int, budget: int) -> Iterator[Round]:
    """A free slot is taken at once, by a round that reads whole prompts. No budget is used."""
    del budget
    coming, running = iter(lengths), list[Left]()
    while True:
        begun = [*islice(coming, slots - len(running))]
        if begun:
            yield Round(len(begun), sum(prompt for prompt, _ in begun))
            running += [Left(0, new - 1) for _, new in begun]
        elif running:
            yield Round(len(running), len(running))
            for one in running:
                one.write -= 1
        else:
            return
        running = [one for one in running if one.write]


def chunks(lengths: Iterable[Lengths], *, slots: int, budget: int) -> Iterator[Round]:
    """Queued tokens first, then prompts in order of arrival. The budget is above the slots."""
    coming, running = iter(lengths), list[Left]()
    while True:
        running += [Left(prompt, new) for prompt, new in islice(coming, slots - len(running))]
        if not running:
            return
        decoding = [one for one in running if not one.read]
        room, writing = budget - len(decoding), len(decoding)
        for one in decoding:
            one.write -= 1
        for one in running:
            part = min(one.read, room)
            if part:
                one.read, room, writing = one.read - part, room - part, writing + 1
                one.write -= not one.read  # the last chunk draws
        yield Round(writing, budget - room)
        running = [one for one in running if one.read or one.write]


WAYS: Final[dict[str, Callable[..., Iterator[Round]]]] = {
    "static": static,
    "continuous": continuous,
    "chunks": chunks,
}


def figures(rounds: Iterable[Round], *, slots: int) -> Figures:
    """What the rounds amount to."""
    count, writing, tokens = 0, 0, 0
    for one in rounds:
        count, writing, tokens = count + 1, writing + one.slots, tokens + one.tokens
    return Figures(count, writing / (count * slots or 1), tokens / (count or 1))


def main(argv: list[str] | None = None) -> int:
    """Count, and print a table."""
    options = _options(argv)
    rows = islice(traces.load(options.trace, options.format), options.limit)
    lengths = [(row.prompt_tokens, max(1, row.new_tokens)) for row in rows]
    table = Table("batching", "rounds", "slots that write", "tokens in a round")
    for name, way in WAYS.items():
        found = figures(
            way(lengths, slots=options.slots, budget=options.budget), slots=options.slots
        )
        share, tokens = f"{found.utilisation:.1%}", f"{found.tokens_per_round:.1f}"
        table.add_row(name, f"{found.rounds}", share, tokens)
    print(
        f"{len(lengths)} requests, {options.slots} slots, {options.budget} tokens in a mixed round"
    )
    Console().print(table)
    return 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.benchmarks.batching",
        description="Count the rounds of three ways of batching on the lengths of a trace.",
        epilog="example: python -m conformance.benchmarks.batching azure_conv_2023.csv --slots 64",
    )
    parser.add_argument("trace", type=Path, metavar="TRACE", help="a trace file")
    parser.add_argument("--format", choices=traces.FORMATS, default="azure", help="(default azure)")
    parser.add_argument("--slots", type=int, default=64, help="sequence slots (default 64)")
    parser.add_argument("--budget", type=int, default=2048, help="tokens in a round (default 2048)")
    parser.add_argument("--limit", type=int, help="requests (default all)")
    options = parser.parse_args(argv)
    if not 0 < options.slots < options.budget:
        parser.error(f"--slots {options.slots}: allowed is 1 to {options.budget - 1}")
    if options.limit is not None and options.limit < 1:
        parser.error(f"--limit {options.limit}: allowed is 1 or more")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
