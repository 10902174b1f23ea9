"""The one comparer: an engine and the specification take the same action, and must agree.

Agreement is on refusing, on the result, on everything observed, and on every clause judged on what
the engine itself shows. Pages are compared through one bijection carried along the run, extended
only at allocation and cut only at release: renaming afresh at each step would hide a row that moved
without its K and V. Source: docs/sources.md, "Refusals" and "Choice of pages".
"""

from collections.abc import Callable, Iterator
from itertools import chain

from attrs import evolve

from conformance.protocol import Action, Attends, Engine, Poison, Poisonable, Result, Rounds
from conformance.rungs.registry import ACTIONS, clause_of, expected_result
from conformance.runtime.stopwatch import Stopwatch
from spec import clauses, table, view
from spec.fields import VIEWED
from spec.machines import scheduling
from spec.machines.actions import (
    Allocate,
)
from spec.state import State
from spec.view import View
from spec.vocabulary import INVALID, Reason, Refused

COMPARED = tuple(field for field in VIEWED if not field.paged)
"""Fields that must equal the specification's; those with pages are compared as the policy says."""


Oracle = Callable[[View, View, View], Iterator[tuple[str, str]]]
"""From the views before and after a step, and the one wanted, to (clause id, what is wrong)."""


class Violation(AssertionError):
    """An engine differs from the specification. `clause`: the first one violated."""

    def __init__(
        self, clause: str, message: str, *, action: object, before: View, after: View
    ) -> None:
        super().__init__(f"{clause}: {message}\n  on {action}")
        self.clause, self.message, self.action = clause, message, action
        self.before, self.after = before, after


class Lockstep:
    """An engine and the specification, side by side.

    state: the specification's. seen: the engine's last view. climb: whether each step also checks
    the specification against its own lower rungs. oracle: if given, it alone judges, and the
    specification just goes where the engine can follow. watch: runs while the engine works.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        climb: bool = False,
        oracle: Oracle | None = None,
        watch: Stopwatch | None = None,
    ) -> None:
        profile = engine.profile
        self.engine = engine
        self.machine = profile.machine
        self.state = self.machine.initial(profile.geometry, profile.limits, profile.cleanup)
        self._climb, self._oracle = climb, oracle
        self._watch = Stopwatch() if watch is None else watch
        self.seen = self._observe()
        self._image: dict[int, int] = {}
        self._rows: tuple[tuple[int, ...], ...] = ()
        self._judge(None, self.seen, self.seen)

    def do(self, action: Action) -> frozenset[Reason]:
        """Take an action on both sides. Returns why the engine refused it; raises Violation."""
        expected = frozenset(
            refusal.reason for refusal in self.machine.refusals(self.state, action)
        )
        before = self.seen
        try:
            with self._watch:
                result = self.engine.apply(action)
        except Refused as refused:
            self.seen = self._observe()
            self._judge_refusal(action, expected, refused.reasons, before)
            return refused.reasons
        self.seen = self._observe()
        if expected and self._oracle is not None:
            self._judge(action, before, self.seen)
            return frozenset()
        if expected:
            names = ", ".join(sorted(reason.name for reason in expected))
            raise self._violation(action, before, "ATOMIC", f"was done, should be refused: {names}")
        after = self.machine.effect(self.state, action)
        self._judge_result(action, result, self.state, after, before)
        if self._climb:
            self.machine.climb(self.state, action)
        self.state = after
        self._judge(action, before, self.seen)
        return frozenset()

    def poison(self, kind: Poison) -> None:
        """Overwrite the engine's dead cells, if it can; nothing observable may change."""
        if isinstance(self.engine, Poisonable):
            with self._watch:
                self.engine.poison(kind)
            before, self.seen = self.seen, self._observe()
            self._judge(f"poison {kind.value}", before, self.seen)

    def attend(self) -> None:
        """Drive the engine's attention, if it can; each query reads its own visible history."""
        if not isinstance(self.engine, Attends) or self._oracle is not None:
            return
        size = self.seen.geometry.page_size
        with self._watch:
            read = self.engine.attend()
        for slot, sequence in enumerate(self.state.sequences):
            if sequence is None or not sequence.written:
                continue
            window, last = self.seen.geometry.window, sequence.written - 1
            if not table.readable(sequence, last, size, window):
                continue  # nothing is drawn from this query any more
            own = evolve(sequence, row=self.seen.rows[slot])
            wanted = dict.fromkeys(table.read_set(own, last, size, window), 1)
            if dict(read.get(slot, {})) != wanted:
                wrong = f"slot {slot} read {dict(read.get(slot, {}))}, should read {wanted}"
                raise self._violation("attend", self.seen, "READ", wrong)

    def _observe(self) -> View:
        with self._watch:
            return self.engine.observe()

    def _judge_refusal(
        self,
        action: Action,
        expected: frozenset[Reason],
        given: frozenset[Reason],
        before: View,
    ) -> None:
        names = ", ".join(sorted(reason.name for reason in given))
        if self._oracle is not None:
            expected = given
        if not expected and self.engine.profile.refuses == "exact":
            raise self._violation(action, before, "ATOMIC", f"was refused ({names}), is legal")
        if expected and not given <= expected:
            legal = ", ".join(sorted(reason.name for reason in expected))
            wrong = f"was refused as {names}, should be one of {legal}"
            raise self._violation(action, before, "ATOMIC", wrong)
        if self.seen is not before:  # the same view was judged against the same state before
            self._judge(action, before, self.seen)

    def _judge_result(
        self,
        action: Action,
        result: Result,
        state: State,
        after: State,
        before: View,
    ) -> None:
        wanted = expected_result(self.machine, state, action)
        if isinstance(result, Rounds) and isinstance(wanted, Rounds):
            legal = {refusal.reason for refusal in scheduling.generate(self.machine, state)[2]}
            if result.done == wanted.done and (result.refused in legal or wanted.refused is None):
                wanted = result
        if isinstance(action, Allocate):
            wanted = table.plan(self._own_rows(after), action.batch, before.geometry.page_size)
        if self._oracle is None and result is not None and result != wanted:
            clause = ACTIONS[type(action)].result_clause
            wrong = f"returned {result}, should return {wanted}"
            raise self._violation(action, before, clause, wrong)

    def _own_rows(self, after: State) -> table.Sequences:
        """The sequences as they should be, in the pages that the engine itself shows."""
        return tuple(
            evolve(sequence, row=self.seen.rows[slot][: len(sequence.row)]) if sequence else None
            for slot, sequence in enumerate(after.sequences)
        )

    def _judge(self, action: object, before: View, seen: View) -> None:
        """Clauses first, since they say what is wrong; then every field against the spec."""
        wanted = view.of(self.machine, self.state)
        for clause, wrong in (self._oracle or by_clauses)(before, seen, wanted):
            raise self._violation(action, before, clause, wrong)
        if self._oracle is not None:
            return
        for field in COMPARED:
            value, right = getattr(seen, field.name), getattr(wanted, field.name)
            if value is not None and right is not None and value != right:
                wrong = f"{field.name} is {value}, should be {right}"
                raise self._violation(action, before, clause_of(action, field.clause), wrong)
        for wrong in self._page_differences(seen, wanted):
            raise self._violation(action, before, clause_of(action, "DET"), wrong)

    def _page_differences(self, seen: View, wanted: View) -> Iterator[str]:
        if self.engine.profile.policy == "lowest":
            if seen.rows != wanted.rows:
                yield f"rows are {_rows(seen)}, should be {_rows(wanted)}: lowest free page first"
            if seen.counts is not None and seen.counts != wanted.counts:
                yield f"counts are {seen.counts}, should be {wanted.counts}"
            return
        yield from self._carry_bijection(seen, wanted)

    def _carry_bijection(self, seen: View, wanted: View) -> Iterator[str]:
        """A page keeps its image as long as some row entry keeps it.

        By the number alone it would not do: several rounds in one action can free it and take it.
        """
        entries = zip(chain(*self._rows), chain(*wanted.rows), strict=False)
        kept = {page for page, still in entries if page == still}
        image = {page: to for page, to in self._image.items() if page in kept}
        for slot, (row, names) in enumerate(zip(seen.rows, wanted.rows, strict=True)):
            for page, mine in zip(names, row, strict=True):
                if (page == INVALID) != (mine == INVALID):
                    yield f"row {slot} is {row}, should name a page exactly where {names} does"
                    return
                if page != INVALID and page not in image and mine not in image.values():
                    image[page] = mine
                if page != INVALID and image.get(page) != mine:
                    yield f"row {slot} names page {mine} where it named {image.get(page)}"
                    return
        self._image, self._rows = image, wanted.rows
        for page, mine in image.items():
            counts, right = seen.counts or (), wanted.counts or ()
            if counts and counts[mine] != right[page]:
                yield f"counts[{mine}] is {counts[mine]}, should be {right[page]}"

    def _violation(self, action: object, before: View, clause: str, wrong: str) -> Violation:
        return Violation(clause, wrong, action=action, before=before, after=self.seen)


def by_clauses(before: View, seen: View, _wanted: View) -> Iterator[tuple[str, str]]:
    """Every clause, judged on what the engine itself shows."""
    yield from clauses.violations(seen)
    yield from clauses.step_violations(before, seen)


def _rows(shown: View) -> str:
    return str([[page for page in row if page != INVALID] for row in shown.rows])
