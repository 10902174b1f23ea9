"""Engines that take requests all at once: a right one holds, and each planted bug is found.

`make engine-levanter` runs the adapter with Levanter.
"""

import sys
from collections.abc import Sequence
from functools import cache, partial
from itertools import count
from typing import Any

import pytest
from deep import deep_after

from conformance.harnesses import command, requests, search
from conformance.harnesses.workloads import Factory
from conformance.verdict import Verdict
from spec import model
from spec.machines import admission, naive
from spec.view import View
from spec.vocabulary import (
    INVALID,
    CleanupMode,
    Geometry,
    Params,
    Reason,
    Refusal,
    Request,
    Tokens,
    default_limits,
    refused,
)

DROPS, SHORT = "drops the last token", 4
next_token = cache(model.next_token)


class Serving:
    """A paged engine that serves requests one by one, all choices at once. bug: one of BUGS."""

    def __init__(
        self,
        geometry: Geometry,
        *,
        meet: str | None = None,
        bug: str = "",
        known: Sequence[str] = (),
        cleanup: CleanupMode = CleanupMode.END,
    ) -> None:
        self.geometry, self.limits = geometry, default_limits(geometry)
        self.cleanup, self.queues, self.bug = cleanup, True, meet or bug
        self.known: Sequence[str] = known
        self.clear = frozenset(known) - {meet}
        self.last = Tokens()
        self.reset()

    def meets(self, request: Request) -> str | None:
        """The known finding that a request meets: the last token is dropped from long answers."""
        short = request.params.max_new <= SHORT
        return None if short or DROPS not in self.clear else DROPS

    def room(self, batch: Sequence[Request]) -> int:
        """The number of requests to take from a batch: all of them."""
        return len(batch)

    def next_token(self, text: Tokens) -> int | None:
        """The exact model's next token, or None for texts that count as too close to call."""
        return None if text[0] == 2 else next_token(text, 0)

    def generate(self, batch: Sequence[Request]) -> list[list[Tokens]]:
        """Serve each request in turn, with all slots free."""
        if self.cleanup is CleanupMode.NONE:
            self.reset()
        reasons = [*self._reasons(batch)]
        if reasons:
            if self.bug == "a refusal takes a page":
                self.counts[0] += 1
            raise refused(reasons)
        if self.bug == "raises" and len(batch) > 2:
            raise ValueError
        answers = [self._serve(request) for request in batch]
        if self.bug == "answers as the first time" and len(batch) > 1:
            answers[0][0] = self.last or answers[0][0]
        self.last = self.last or answers[0][0]
        if self.bug == "swaps answers":
            first, last = answers[0], answers[-1]
            first[0], last[0] = last[0], first[0]
        if self.bug == "forgets one":
            answers = [one if index < 3 else [()] * len(one) for index, one in enumerate(answers)]
        if self.bug == "returns one choice":
            answers = [choices[:1] for choices in answers]
        return answers

    def _reasons(self, batch: Sequence[Request]) -> list[Refusal]:
        found = [
            refusal
            for request in batch
            for refusal in admission.fit_refusals(self.geometry, self.limits, request)
            if self.bug != "goes on past its row" or refusal.reason is not Reason.TOO_LONG
        ]
        if self.bug == "refuses the longest" and not found:
            found = [
                Refusal(Reason.TOO_LONG, None, None)
                for one in batch
                if len(one.prompt) + one.params.max_new == self.geometry.max_len
            ]
        if self.bug == "names another reason":
            found = [Refusal(Reason.UNWRITTEN, None, None) for _ in found]
        return found

    def _serve(self, request: Request) -> list[Tokens]:
        if self.cleanup is CleanupMode.NONE:
            self.reset()
        rows = list[list[int]]()
        shared = len(request.prompt) // self.geometry.page_size
        for choice in range(request.n_generations):
            first = rows[0][:shared] if rows else []
            if self.bug == "forgets full pages" and choice:
                self.cells[first[0] if first else 0] = 0
            for page in first:
                self.counts[page] += 1
            rows.append(first)
            self._write(rows[choice], request.prompt, shared * self.geometry.page_size)
        answers = [self._decode(row, request) for row in rows]
        for slot, row in enumerate(rows):
            self.used[slot], self.rows[slot] = True, row
        if self.cleanup is not CleanupMode.NONE:
            self._release()
        return answers

    def _write(self, row: list[int], tokens: Tokens, start: int) -> None:
        size = self.geometry.page_size
        for position in range(start if len(row) else 0, len(tokens)):
            if position // size == len(row):
                row.append(self.counts.index(0))
                self.counts[row[-1]] = 1
            self.cells[row[position // size] * size + position % size] = tokens[position]

    def _decode(self, row: list[int], request: Request) -> Tokens:
        text, new = request.prompt, Tokens()
        while naive.finish(new, request.params) is None:
            token = next_token(self._read(row, len(text)), 0)
            text, new = (*text, token), (*new, token)
            if self.bug == "stops in the prompt" and any(
                text[-len(stop) :] == stop for stop in request.params.stops
            ):
                break
            if naive.finish(new, request.params) is None:
                self._write(row, text, len(text) - 1)
        match self.bug:
            case _ if self.bug == DROPS and len(new) > SHORT:
                return new[:-1]
            case "stops late" if len(new) < request.params.max_new:
                return (*new, 0)
            case _:
                return new

    def _read(self, row: list[int], count: int) -> Tokens:
        size = self.geometry.page_size
        return tuple(self.cells[row[at // size] * size + at % size] for at in range(count))

    def _release(self) -> None:
        for slot, row in enumerate(self.rows):
            for page in row[1:] if self.bug == "leaks a page" and len(row) > 3 else row:
                self.counts[page] -= 1
            self.rows[slot] = []
        self.used = [False] * self.geometry.slots
        if self.bug == "keeps a slot":
            self.used[0] = True

    def observe(self) -> View:
        """Counts and rows."""
        width = self.geometry.pages_per_seq
        return View(
            geometry=self.geometry,
            counts=tuple(self.counts),
            used=tuple(self.used),
            rows=tuple((*row, *[INVALID] * (width - len(row))) for row in self.rows),
        )

    def reset(self) -> None:
        """Put the engine back into its initial state."""
        slots, pages = self.geometry.slots, self.geometry.pages
        self.cells = [0] * pages * self.geometry.page_size
        self.used = [False] * slots
        self.counts: list[int] = [0] * pages
        self.rows: list[list[int]] = [[] for _ in range(slots)]
        if self.bug == "keeps a page over a reset" and self.last:
            self.counts[0] = 1


BUGS = {
    "a refusal takes a page": "ATOMIC",
    "raises": "ATOMIC",
    "swaps answers": "ALONE",
    "forgets one": "OUT",
    "returns one choice": "OUT",
    "goes on past its row": "ATOMIC",
    "refuses the longest": "ATOMIC",
    "names another reason": "ATOMIC",
    "forgets full pages": "ALONE",
    "stops in the prompt": "ALONE",
    DROPS: "ALONE",
    "stops late": "ALONE",
    "answers as the first time": "ALONE",
    "leaks a page": "CONS",
    "keeps a slot": "CONS",
    "keeps a page over a reset": "RESET",
}


SECONDS = 1.0
"""Seconds of a clock that advances by 0.01 at each reading."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clock, so that results do not depend on the load of the machine."""
    monkeypatch.setattr(search, "monotonic", count(step=0.01).__next__)


def factory(
    bug: str = "", *, known: Sequence[str] = (), cleanup: CleanupMode = CleanupMode.END
) -> Factory:
    """A factory of engines with a bug, or with none."""
    return partial(Serving, bug=bug, known=known, cleanup=cleanup)


@pytest.mark.parametrize("bug", deep_after(8, BUGS))
def test_each_bug_of_a_batch_engine_is_found(bug: str) -> None:
    """Each planted bug breaks its clause, in a history with the fewest calls."""
    found = requests.search(factory(bug), chosen=1)

    found.run(SECONDS)

    assert found.least is not None
    history, broken = found.least
    assert broken.clause == BUGS[bug]
    assert len(history) == (2 if bug == "answers as the first time" else 1)


def test_a_finding_is_the_least_of_its_kind() -> None:
    """A finding is shrunk: answers are swapped in one call of two requests of one token each."""
    found = requests.search(factory("swaps answers"), chosen=1)

    found.run(SECONDS)

    assert found.least is not None
    ((call,), broken) = found.least
    assert [len(request.prompt) for request in call.requests] == [1, 1]
    assert [request.params for request in call.requests] == [Params(max_new=1)] * 2
    assert "request 0, choice 0 is" in "\n".join(requests.told((call,), broken))


@pytest.mark.parametrize("cleanup", deep_after(1, [CleanupMode.END, CleanupMode.NONE]))
def test_a_right_batch_engine_holds(cleanup: CleanupMode) -> None:
    """A right engine breaks no clause, and a run reaches all that it must reach."""
    verdict, histories = requests.check(factory(cleanup=cleanup), chosen=1, seconds=SECONDS)

    assert verdict is Verdict.HOLDS
    assert histories > 50


def test_each_turn_draws_other_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long run does not draw again what a turn of it has drawn."""
    drawn, right = list[object](), requests.replay

    def noted(make: Factory, history: object, *rest: Any, **named: Any) -> object:
        drawn.append(history)
        return right(make, history, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(requests, "replay", noted)
    monkeypatch.setattr(search, "EXAMPLES", 10)

    requests.search(factory(), chosen=1).run(SECONDS)

    _, *histories = map(repr, drawn)
    turns = [tuple(histories[at : at + 10]) for at in range(0, len(histories) - 9, 10)]
    assert len(turns) > 3
    assert len(turns) == len(set(turns))
    assert len(set(histories)) > len(histories) // 2


def test_a_known_finding_is_met_first_and_then_kept_clear_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An engine with a known finding holds if it declares the finding, and fails if it does not."""
    named = requests.check(factory(DROPS, known=(DROPS,)), chosen=1, seconds=SECONDS)
    silent = requests.check(factory(DROPS), chosen=1, seconds=SECONDS)

    assert (named[0], silent[0]) == (Verdict.HOLDS, Verdict.FAILS)
    assert f"known: {DROPS}, again after" in capsys.readouterr().out


def test_a_known_finding_that_is_gone_leaves_the_run_undecided(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A declared finding that does not occur again is named, and the run is undecided."""
    monkeypatch.setattr(requests, "KNOWN_SECONDS", 0.2)

    verdict, _ = requests.check(factory(known=("fixed by now",)), chosen=1, seconds=SECONDS)

    assert verdict is Verdict.UNDECIDED
    assert "may be out of date: fixed by now" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("engine", "status", "said"),
    [
        (f"{__name__}:factory", 3, f"requests {__name__}:factory: undecided (sampled), 7"),
        (f"{__name__}:nothing", 2, f"no callable nothing in {__name__}"),
    ],
)
def test_the_program_says_what_came_of_it(
    engine: str,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The verdict gives the exit status, and an engine that cannot be found is bad input."""
    monkeypatch.setattr(sys, "argv", ["requests", engine, "--seconds", "2", "--seed", "5"])

    def check(make: object, *, chosen: int, seconds: float) -> tuple[Verdict, int]:
        assert (make, chosen, seconds) == (factory, 5, 2.0)
        return Verdict.UNDECIDED, 7

    words = {
        "module": "conformance.harnesses.requests",
        "told": "",
        "engine": "",
        "not_checked": "this",
    }
    assert status == command.run(check, **words)
    shown = capsys.readouterr()
    assert said in shown.out + shown.err
    assert ("not checked: this" in shown.out) == (status == 3)


def test_a_run_that_reached_too_little_is_undecided() -> None:
    """A run without time reaches nothing and is undecided."""
    assert requests.check(factory(), chosen=1, seconds=0)[0] is Verdict.UNDECIDED
