"""`python -m conformance.mutation.histories`: legal histories with one change, judged again.

Recordings of our engine and vectors get one value changed, one entry removed, one step dropped or
two steps swapped. The specification itself decides whether a changed history is still legal. Then
`validate` must refuse those that are not, and accept the others; and our engine, which is right,
must fail a vector that is wrong.
"""

import argparse
import copy
import json
import operator
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import StringIO
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, get_args

from attrs import define, evolve, field, frozen

from conformance.engines.ours import make
from conformance.files import atomic
from conformance.files.serialisation import Malformed
from conformance.fuzzing.state_machine import Campaign, Session
from conformance.history import Attend, PoisonDead
from conformance.protocol import Engine, Profile
from conformance.recordings.answers import Illegal
from conformance.recordings.fast_table import ACTIONS
from conformance.recordings.fields import plain_result
from conformance.recordings.format import (
    Header,
    Line,
    header_from_data,
    header_to_text,
    line_from_data,
    line_to_data,
)
from conformance.recordings.judge import judge
from conformance.recordings.recorder import Recorder
from conformance.recordings.validate import validate
from conformance.rungs.registry import LEVELS, legal_results
from conformance.rungs.shared_generators import spread
from conformance.vectors.build import Vector, build
from conformance.vectors.play import play
from conformance.vectors.suites import Suite, suites
from spec import ladder
from spec.fields import RECORDED, entries
from spec.state import State
from spec.vocabulary import (
    CleanupMode,
    FinishReason,
    Geometry,
    InvalidInput,
    Reason,
    ResetMode,
    default_limits,
)

Change = Literal["value", "entry", "drop", "swap"]
CHANGES: Final[tuple[Change, ...]] = get_args(Change)
"""One value is changed, one entry of an answer is removed, one step is dropped, two are swapped."""

Data = dict[str, Any]
Place = tuple[Any, ...]
"""Keys and indices that lead from a line to a part of it."""

GEOMETRY: Final = Geometry(pages=8, page_size=2, slots=3, pages_per_seq=4)
STEPS: Final = 40
AGAIN: Final = 10
"""How often a recording is changed, each time anew."""
COMPILING: Final = 600.0
"""How long a step of the engine may take, compilation included, in seconds."""
WORDS: Final = (
    [reason.name for reason in Reason],
    [reason.value for reason in FinishReason],
    [mode.value for mode in ResetMode],
)
"""The sets of names of which a changed name stays in its own."""


PAGE: Final = """\
# Histories with one change

A judge of histories is right if it refuses exactly those that are illegal. So legal histories get
one change each, and are judged again:

- one value is changed: a number, a name, a token, a page, a count;
- one entry of an answer is removed, or the whole answer;
- one step is dropped;
- two steps are swapped.

The specification itself decides what is still legal: it takes the steps one by one, and every
answer and everything seen must be its own. Many changed histories are legal: a refused step may be
dropped, two of them may be swapped, and a seed does not matter at temperature 0.

`make histories` writes this page, with {count:,} changed histories of each kind, seed {seed}. The
recordings are of our engine, by the moves of [fuzzing](adapters.md), some {steps} steps each. Those
of a table alone are judged twice: by the fast table, which [`validate`](recordings.md) takes for
them, and by the specification, which it takes for all others. What is malformed, such as a count of
-1, `validate` refuses before any judge sees it. A [vector](vectors.md) that is changed is played by
our engine, which is right: it must fail an illegal one.

{table}

A vector names all reasons of a refusal, and an engine gives one of them. If a wrong vector still
names the one that the engine gives, the engine passes. The last row counts the vectors that are
wrong in such names alone. Nothing else is missed.
"""


@frozen
class History:
    """A legal history."""

    header: Header
    lines: tuple[Line, ...]


@define
class Count:
    """What became of changed histories. malformed: no history at all, and refused as such.

    passed: illegal, and yet accepted. spoiled: legal, and yet refused; examples: of these two.
    """

    malformed: int = 0
    illegal: int = 0
    legal: int = 0
    passed: int = 0
    spoiled: int = 0
    examples: list[str] = field(factory=list)

    def add(self, *, legal: bool | None, accepted: bool, told: str) -> None:
        """Count one. legal: None if it is malformed."""
        if legal is None:
            self.malformed += 1
        elif legal:
            self.legal += 1
        else:
            self.illegal += 1
        if accepted is not bool(legal):
            self.passed += accepted
            self.spoiled += not accepted
            self.examples.append(told)


# What is changed.


def changed(lines: Sequence[Data], draws: random.Random) -> tuple[str, list[Data]] | None:
    """The lines with one change, and what it is in words; None if this draw changes nothing."""
    kind, made = draws.choice(CHANGES), copy.deepcopy(list(lines))
    if kind == "drop":
        at = draws.randrange(len(made))
        return f"line {at + 2} dropped: {made.pop(at)}", made
    if kind == "swap":
        return _swapped(made, draws)
    at = draws.randrange(len(made))
    places = list(_values(made[at])) if kind == "value" else list(_entries(made[at]))
    if not places:
        return None
    *way, last = draws.choice(places)
    holder: Any = made[at]
    for key in way:
        holder = holder[key]
    before = holder[last]
    if kind == "entry":
        del holder[last]
        return f"line {at + 2}: {'.'.join(map(str, (*way, last)))} {before} removed", made
    holder[last] = _another(before, draws)
    told = f"line {at + 2}: {'.'.join(map(str, (*way, last)))} {before} -> {holder[last]}"
    return told, made


def _swapped(made: list[Data], draws: random.Random) -> tuple[str, list[Data]] | None:
    one = draws.randrange(len(made))
    other = min(one + 1, len(made) - 1) if draws.random() < 0.5 else draws.randrange(len(made))
    if made[one] == made[other]:
        return None
    made[one], made[other] = made[other], made[one]
    return f"lines {one + 2} and {other + 2} swapped", made


def _values(data: Any, *way: Any) -> Iterator[Place]:
    """The places of the numbers and names of a line; not the name of its step."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key != "step":
                yield from _values(value, *way, key)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _values(value, *way, index)
    elif data is not None:
        yield way


def _entries(line: Data) -> Iterator[Place]:
    """The places of what can be left out of an answer: entries of lists, fields and the answer."""

    def inside(data: Any, *way: Any) -> Iterator[Place]:
        keys = data if isinstance(data, dict) else range(len(data) if type(data) is list else 0)
        for key in keys:
            yield (*way, key)
            yield from inside(data[key], *way, key)

    for name in ("saw", "result", "refused"):
        if name in line:
            yield (name,)
            yield from inside(line[name], name)


def _another(value: Any, draws: random.Random) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draws.choice([value + 1, value - 1, value + draws.randrange(2, 9)])
    if isinstance(value, float):
        return value + 0.5
    words = next((words for words in WORDS if value in words), [])
    return draws.choice([word for word in words if word != value] or [f"{value}?"])


# What is still legal.


Reasons = frozenset[Reason]


def within(named: Reasons, reasons: Reasons) -> bool:
    """Whether a recording may name these reasons of a refusal: the engine names what it likes."""
    return named <= reasons


def shared(named: Reasons, reasons: Reasons) -> bool:
    """Whether an engine can give a reason that a vector names."""
    return bool(named & reasons)


def still_legal(
    header: Header, lines: Sequence[Line], *, named: Callable[[Reasons, Reasons], bool] = within
) -> bool:
    """Whether a history is one of the specification: each answer, and all that is seen after it.

    named: whether a line may name these reasons, given all reasons of the specification.
    """
    machine = ladder.whole()
    state = machine.initial(header.geometry, header.limits, header.cleanup, header.capacity)
    seen = _fields(state)
    for line in lines:
        if isinstance(line.step, PoisonDead | Attend):
            continue
        reasons = frozenset(found.reason for found in machine.refusals(state, line.step))
        if (line.refused is None) is not (not reasons):
            return False
        if line.refused is None:
            before, state = state, machine.effect(state, line.step)
            results = [
                plain_result(result) for result in legal_results(machine, before, line.step, state)
            ]
            if line.result is not None and results and line.result not in results:
                return False
        elif not named(line.refused, reasons):
            return False
        expected = _fields(state)
        for name, values in line.saw.items():
            if not values.keys() <= expected[name].keys():
                return False
            seen[name].update(values)
        if any(seen[name] != expected[name] for name in {*header.shows, *line.saw}):
            return False
    return True


def _fields(state: State) -> dict[str, dict[int, Any]]:
    """Every recorded field of a state, by slot or page; a field without an index is at 0."""
    found = {}
    for one in RECORDED:
        shown = entries(one, one.of(state))
        found[one.name] = {index: one.to_record(value) for index, value in shown.items()}
    return found


# Histories.


class _Table:
    """An engine that offers the actions of a table alone."""

    def __init__(self, engine: Engine) -> None:
        self.profile: Profile = evolve(engine.profile, actions=ACTIONS)
        self.apply, self.observe = engine.apply, engine.observe


def recordings(seed: int, *, table: bool, steps: int = STEPS) -> Iterator[History]:
    """Recordings of our engine, by the moves of the fuzzer, of one level after another."""
    draws = random.Random(seed)
    levels = [kit for kit in LEVELS if kit.needs <= _opened(table=table).profile.actions]
    while True:
        for kit in levels:
            out = StringIO()
            recorder = Recorder(_opened(table=table), out)
            campaign = Campaign(make=partial(_same, recorder), step_seconds=COMPILING)
            session = Session(campaign, kit.rung)
            rules = list(session.rules.values())
            while len(session.history) < steps:
                session.take(draws.choice(rules)(session, spread(draws.randrange(2**24))))
            header, *lines = map(json.loads, out.getvalue().splitlines())
            yield History(header_from_data(header), tuple(map(line_from_data, lines)))


def _same(engine: Engine) -> Engine:
    return engine


def _opened(*, table: bool) -> Any:
    engine = make(GEOMETRY, default_limits(GEOMETRY), CleanupMode.INCREMENTAL)
    return _Table(engine) if table else engine


def vectors(chosen: Sequence[Suite]) -> list[Vector]:
    """The vectors of some suites."""
    return [vector for suite in chosen for vector in build(suite).vectors]


# The judges.


def validates(path: Path) -> bool:
    """Whether `validate` accepts a file; it refuses a malformed one as bad input."""
    try:
        return validate(path).found is None
    except InvalidInput:
        return False


def specification_accepts(header: Header, lines: Sequence[Line]) -> bool:
    """Whether the judge that is the specification accepts the lines."""
    taking = judge(header, machine=ladder.whole())
    try:
        for line in lines:
            taking.take(line)
    except (Illegal, Malformed):
        return False
    return True


def passes(vector: Vector) -> bool:
    """Whether our engine passes a vector."""
    header = vector.header
    engine = make(header.geometry, header.limits, header.cleanup)
    try:
        return play(engine, vector) is None
    except (InvalidInput, KeyError):  # no such argument, or no such slot or page
        return False


def decoded(data: Sequence[Data]) -> tuple[Line, ...] | None:
    """The lines that plain data describes; None if they are malformed."""
    try:
        return tuple(line_from_data(copy.deepcopy(line)) for line in data)
    except (ValueError, TypeError, InvalidInput):
        return None


def recordings_judged(count: int, seed: int, *, table: bool) -> dict[str, Count]:
    """Change this many recordings, and count by judge what became of them."""
    draws, made = random.Random(seed), 0
    by_file, by_machine = Count(), Count()
    with TemporaryDirectory(prefix="kvspec-histories-") as folder:
        path = Path(folder) / "changed.jsonl"
        for history in recordings(seed, table=table):
            for told, data in islice(_changes(history.lines, draws), min(AGAIN, count - made)):
                made += 1
                lines = decoded(data)
                legal = None if lines is None else still_legal(history.header, lines)
                text = "".join(json.dumps(line) + "\n" for line in data)
                path.write_text(header_to_text(history.header) + text)
                by_file.add(legal=legal, accepted=validates(path), told=told)
                if lines is not None:
                    accepted = specification_accepts(history.header, lines)
                    by_machine.add(legal=legal, accepted=accepted, told=told)
            if made == count:
                break
    judge_of_file = "validate, by the fast table" if table else "validate"
    return {judge_of_file: by_file, "the specification": by_machine}


def vectors_judged(some: Sequence[Vector], count: int, seed: int) -> dict[str, Count]:
    """Change vectors, this many in all, and count which of them our engine passes.

    A vector that does not name exactly the reasons of a refusal is wrong. An engine that gives one
    that is named passes it all the same: vectors that are wrong in this alone are counted apart.
    """
    draws, every, reasons = random.Random(seed), Count(), Count()
    for number in range(count):
        vector = some[number % len(some)]
        told, data = next(_changes(vector.lines, draws))
        lines = decoded(data)
        legal, accepted, count_of = None, False, every
        if lines is not None:
            legal = still_legal(vector.header, lines, named=operator.eq)
            accepted = passes(evolve(vector, lines=lines))
            if not legal and still_legal(vector.header, lines, named=shared):
                count_of = reasons
        count_of.add(legal=legal, accepted=accepted, told=f"{vector.name}: {told}")
    return {"our engine": every, "our engine, other reasons of a refusal": reasons}


def _changes(lines: Sequence[Line], draws: random.Random) -> Iterator[tuple[str, list[Data]]]:
    """Changes of these lines, without end."""
    data = [json.loads(json.dumps(line_to_data(line))) for line in lines]
    while True:
        found = changed(data, draws)
        if found is not None:
            yield found


# What is told.


def table_of(found: dict[str, dict[str, Count]]) -> str:
    """The counts as a table."""
    heads = ("histories", "judge", "malformed", "illegal", "refused", "legal", "accepted")
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for histories, judges in found.items():
        for name, one in judges.items():
            refused, accepted = one.illegal - one.passed, one.legal - one.spoiled
            numbers = (one.malformed, one.illegal, refused, one.legal, accepted)
            rows.append(f"| {histories} | {name} | " + " | ".join(f"{n:,}" for n in numbers) + " |")
    return "\n".join(rows)


def main(argv: list[str] | None = None) -> int:
    """Change histories and judge them; 0 if every judge is right about each."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.mutation.histories",
        description="Judge legal histories with one change.",
        epilog="example: python -m conformance.mutation.histories --count 200",
    )
    parser.add_argument("--count", type=int, default=2000, metavar="N", help="of each kind")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="write the page of figures, if each judge is right",
    )
    options = parser.parse_args(argv)
    count, seed = options.count, options.seed
    found = {
        "recordings of a table": recordings_judged(count, seed, table=True),
        "recordings of every action": recordings_judged(count, seed, table=False),
        "vectors": vectors_judged(vectors(suites()), count, seed),
    }
    table = table_of(found)
    print(table)
    wrong = [
        f"{histories}, {name}: {told}"
        for histories, judges in found.items()
        for name, one in judges.items()
        for told in one.examples
        if "other reasons" not in name
    ]
    print("\n".join(wrong))
    told = {"count": count, "seed": seed, "steps": STEPS, "table": table}
    if options.write and not wrong:  # the page says that nothing else is missed
        atomic.write(options.write, PAGE.format(**told))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
