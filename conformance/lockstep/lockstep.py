"""Lockstep: an engine and the specification take the same actions and must agree.

They must agree on the refusal, the result and every field of the view. Every clause is judged on
the engine's own view. Pages are compared through one bijection that is carried along the run. It is
extended only at allocation and cut only at release: renaming afresh at each step would hide a row
that moved without its K and V. Source: docs/sources.md, "Choice of pages".
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Final, TypeVar

from attrs import evolve

from conformance.history import Attend, PoisonDead, Step
from conformance.lockstep import besides, serving
from conformance.lockstep.comparer import (
    Difference,
    field_difference,
    names,
    refusal_difference,
    result_difference,
    served_difference,
)
from conformance.lockstep.granted import Granted
from conformance.lockstep.sending import batches, is_sent, named
from conformance.lockstep.unasked import Taken, Unasked
from conformance.protocol import (
    Action,
    AdapterMistake,
    Attends,
    Engine,
    EngineFailed,
    Poison,
    Poisonable,
    Profile,
    Result,
    Serves,
)
from conformance.rungs.registry import clause_of, legal_results
from conformance.runtime.stopwatch import Stopwatch
from spec import clauses, table, view
from spec.cells import POISON
from spec.fields import BY_NAME, VIEWED, IndexEntry, OutputEntry, entries, index_entry
from spec.machines.actions import Allocate, Append, Dispatch, Evict, Submit
from spec.state import State
from spec.stats import Totals
from spec.view import View
from spec.vocabulary import INVALID, InvalidInput, Reason, Refused, Request

SERVE: Final = "serving to the end"
"""What `serve` does, in the place of an action."""
COMPARED = tuple(field for field in VIEWED if not field.paged)
"""Fields that must equal the specification's. Page ids are compared as the policy says."""


E = TypeVar("E", bound=Exception)

Oracle = Callable[[View, View, View], Iterator[tuple[str, str]]]
"""A judge of one step: takes the engine's views before and after it and the expected view, and
yields a clause id and a message for each error."""


def tells_events(step: Step) -> bool:
    """Whether the events of the index are taken after a step: after all but an allocation.

    Some events then tell of several steps. The steps alone decide it: a run that took them after
    some number of steps found what no replay finds.
    """
    return not isinstance(step, Allocate)


class Violation(AssertionError):
    """An engine differs from the specification. `clause`: the id of the first violated clause."""

    def __init__(
        self, clause: str, message: str, *, action: object, before: View, after: View
    ) -> None:
        super().__init__(f"{clause}: {message}\n  on {action}")
        self.clause, self.message, self.action = clause, message, action
        self.before, self.after = before, after


class Lockstep:
    """An engine that runs in lockstep with the specification.

    state: the state of the specification. seen: the engine's last view. climb: whether each step
    also checks the specification against its own lower rungs. oracle: if given, it replaces every
    other judgement, and an action that only the specification refuses leaves its state unchanged.
    watch: a stopwatch that runs while the engine works. unasked: what the engine did by itself in
    the last step. overwrote: whether the last poisoning has overwritten a dead cell, as far as the
    engine shows its cells. compared: the actions of which a result was compared.
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
        self._capacity = profile.capacity
        self.state = self.machine.initial(
            profile.geometry, profile.limits, profile.cleanup, self._capacity
        )
        self._climb, self._oracle = climb, oracle
        self._granted, self._given = Granted(self.state), besides.Given()
        self._totals, self._told = Totals(), besides.Told()
        self._watch = Stopwatch() if watch is None else watch
        self.seen = self._observe()
        require_shown(profile, self.seen)
        self.overwrote, self.compared = False, set[type]()
        self.unasked: tuple[Taken, ...] = ()
        self._image: dict[int, int] = {}
        self._rows: tuple[tuple[int, ...], ...] = ()
        self._keys: tuple[IndexEntry, ...] = ()
        self._held: tuple[int, ...] = ()
        self._equal: tuple[object, object] = (None, None)
        self._judge(None, self.seen, self.seen)

    def do(self, action: Action) -> frozenset[Reason]:
        """Take an action on both sides. Raises Violation if they disagree.

        Returns the reasons for which it was refused; empty if it was done. What the profile guards
        is refused for the engine, which does not see it. A batch of several slots may be sent as
        several; the reasons are then those of the first that is refused.
        """
        for batch in batches(self.engine.profile, action):
            reasons = self._do(batch)
            if reasons:
                return reasons
        return frozenset()

    def as_sent(self, step: Step) -> Step:
        """A step as the engine sees it: with every slot named that the layer above chooses."""
        if isinstance(step, PoisonDead | Attend):
            return step
        return named(self.engine.profile, self.state, step)

    def reasons(self, action: Action) -> frozenset[Reason]:
        """Why the specification refuses an action; empty if it is legal."""
        return frozenset(refusal.reason for refusal in self.machine.refusals(self.state, action))

    def sends(self, action: Action) -> bool:
        """Whether the engine sees this action: the profile may say that nobody calls it so."""
        profile = self.engine.profile
        return not profile.guarded or is_sent(profile, action, self.reasons(action))

    def _do(self, action: Action) -> frozenset[Reason]:
        action = named(self.engine.profile, self.state, action)
        expected = self.reasons(action)
        if not is_sent(self.engine.profile, action, expected):
            return expected
        before, self.unasked = self.seen, ()
        try:
            with self._watch:
                result = self.engine.apply(action)
        except Refused as refused:
            self.seen = self._look()
            self._follow(self._by_itself.then(self.state, before))
            self._judge_refusal(action, expected, refused.reasons, before)
            return refused.reasons
        except EngineFailed as error:
            raise self._failed(action, expected, error) from error
        except InvalidInput as error:
            if not expected or not getattr(error, "__notes__", ()):  # it tells no exception
                raise
            raise _guardable(action, expected, error) from error
        self.seen = self._look()
        if expected and self._oracle is not None:
            self._judge(action, before, self.seen)
            return frozenset()
        refuses = self.engine.profile.refuses
        self._require_none(action, before, refusal_difference(None, expected, refuses=refuses))
        self._follow(self._by_itself.first(self.state, action, before))
        after = self.machine.effect(self.state, action)
        self._judge_result(action, result, after, before)
        if self._climb:
            self.machine.climb(self.state, action)
        held, self.state = self.state, after
        self._totals = self._totals.then(held, action, after)
        if refuses == "may_refuse_more":
            self._granted.add(action, after)
        self._follow(self._by_itself.then(after, before))
        self._judge(action, before, self.seen)
        self._judge_besides(held, action, before)
        return frozenset()

    @property
    def _by_itself(self) -> Unasked:
        return Unasked(self.machine, self.engine.profile.unasked, self.seen)

    def _follow(self, taken: Iterable[Taken]) -> None:
        """Take what the engine did by itself. A page that was evicted has no image any more."""
        if not self.engine.profile.unasked or self._oracle is not None:
            return
        for one in taken:
            self._totals = self._totals.then(*one)
            self.state, self.unasked = one.after, (*self.unasked, one)
            self._keys = tuple(map(index_entry, self.state.indexed))

    def _forget_moved(self, seen: View, wanted: View) -> None:
        """An idle page whose key another page of the engine has taken over loses its image.

        Also one that has become idle in this step.
        """
        if Evict not in self.engine.profile.unasked or seen.indexed is None:
            return
        pairs = zip(chain(*self._rows), chain(*wanted.rows), strict=False)
        named = {page for page, still in pairs if page == still}
        self._keys = tuple(
            entry if page in named or seen.indexed[self._image.get(page, page)] == entry else ()
            for page, entry in enumerate(self._keys)
        )

    def compare_statistics(self, step: Step) -> None:
        """Compare the statistics of the engine. Raises Violation."""
        if self._oracle is None:
            engine, state = self.engine, self.state
            with self._watch:
                found = besides.statistics_differences(
                    step, engine, self.machine, state, self._totals
                )
                self._require_none(step, self.seen, next(found, None))

    def compare_events(self, step: Step) -> None:
        """Compare the events since the last call with the index. Raises Violation."""
        if self._oracle is None:
            with self._watch:
                found = self._told.differences(self.engine, self.state)
                self._require_none(step, self.seen, next(found, None))

    def serve(self) -> None:
        """Let the engine serve to the end what waits and more, if its adapter can in one call.

        With a step in flight nothing is served. Before, it must refuse what Submit refuses. Its
        outputs, and the view after it, must be those of the single actions. Raises Violation.
        """
        if not isinstance(self.engine, Serves) or self._oracle is not None:
            return
        if "admission" not in self.machine.names:
            return
        for requests, reasons in serving.refused_lists(self.machine, self.state):
            if is_sent(self.engine.profile, Submit(requests[-1]), reasons):
                self._served(self.engine, requests, reasons)
        right = serving.serve(self.machine, self.state)
        if right is None:
            return
        before = self.seen
        outputs = self._served(self.engine, right.requests, frozenset())
        if outputs is None:
            return
        self._totals = self._totals.then(self.state, None, right.state)
        self.state, self.seen = right.state, self._look()
        # Pages were released and taken again meanwhile.
        self._image, self._rows, self._keys, self._held = {}, (), (), ()
        self._require_none(SERVE, before, served_difference(outputs, right.outputs))
        self._judge(SERVE, before, self.seen)

    def _served(
        self, engine: Serves, requests: tuple[Request, ...], expected: frozenset[Reason]
    ) -> Sequence[OutputEntry] | None:
        """What the engine serves; None if it refuses, after which nothing has changed."""
        before, given = self.seen, None
        try:
            with self._watch:
                outputs = engine.serve(requests)
        except Refused as refused:
            given = refused.reasons
            self.seen = self._look()
        wrong = refusal_difference(given, expected, refuses=self.engine.profile.refuses)
        note = f"given were {', '.join(map(str, requests))}"
        self._require_none(SERVE, before, wrong and wrong._replace(note=note))
        if given is None:
            return outputs
        self._judge(SERVE, before, self.seen)
        return None

    def poison(self, kind: Poison) -> None:
        """Overwrite the engine's dead cells, if its adapter can. Nothing observable may change.

        Raises Violation.
        """
        self.overwrote = False
        if isinstance(self.engine, Poisonable):
            with self._watch:
                self.engine.poison(kind)
            before, self.seen = self.seen, self._look()
            self.overwrote = self._overwrote(before)
            self._judge(f"poison {kind.value}", before, self.seen)

    def _overwrote(self, before: View) -> bool:
        """Whether a dead cell shows another content than before, or POISON; True without cells."""
        cells, old = self.seen.cells, before.cells
        if cells is None or old is None:
            return True
        size, live = self.seen.geometry.page_size, set[int]()
        for slot, sequence in enumerate(self.state.sequences):
            for position in range(self.seen.first_cell(slot), sequence.written if sequence else 0):
                live.add(table.destination(self.seen.rows[slot], position, size))
        dead = (cell for cell in range(len(cells)) if cell not in live)
        return any(cells[cell] != old[cell] or cells[cell] == POISON for cell in dead)

    def attend(self) -> None:
        """Drive the engine's attention, if its adapter can.

        Each query must read its own visible history, every cell once. Raises Violation.
        """
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
            shown = self.engine.observe()
        same = shown.capacity == self._capacity
        return shown if same else evolve(shown, capacity=self._capacity)

    def _look(self) -> View:
        """The view after a step. Raises InvalidInput if it hides other fields than the last one."""
        shown = self._observe()
        self.seen.require_same_fields(shown)
        return shown

    def _failed(
        self, action: Action, expected: frozenset[Reason], error: EngineFailed
    ) -> EngineFailed | AdapterMistake:
        """What an exception of the engine is: its failure, or a refusal that nobody translates.

        It is a refusal if the specification refuses too and nothing has changed. Whether something
        has depends on the state: an engine that takes pages one by one has changed if some were
        free.
        """
        told = str(error)
        if error.raised is not None:
            before, after = self.seen, self._look_again()
            changed = differing(before, after) if after else ["the view, which cannot be read"]
            self.seen = after or before
            if expected and not changed:
                return self._untranslated(action, expected, error.raised, error)
            if expected:
                told += f"; the specification refuses too: {names(expected)}; "
                told += f"changed: {', '.join(changed)}"
        return _with_notes(EngineFailed(told, clause=error.clause, raised=error.raised), error)

    def _look_again(self) -> View | None:
        """The view after an exception; None if it cannot be read."""
        try:
            return self._look()
        except (EngineFailed, InvalidInput):
            return None

    def _untranslated(
        self, action: Action, expected: frozenset[Reason], raised: str, error: EngineFailed
    ) -> AdapterMistake:
        mistake = AdapterMistake(
            f"apply({action})",
            f"{raised}, where the specification refuses: {names(expected)}",
            allowed="Refused, if this exception is how the engine refuses",
            line="which translates it; or declare in Profile.guarded that the layer above never "
            "makes such a call; or the engine's own check is broken: its line is above",
        )
        return _with_notes(mistake, error)

    def _judge_refusal(
        self,
        action: Action,
        expected: frozenset[Reason],
        given: frozenset[Reason],
        before: View,
    ) -> None:
        if self._oracle is None:
            refuses = self.engine.profile.refuses
            self._require_none(action, before, refusal_difference(given, expected, refuses=refuses))
            if not expected and action in self._granted:
                raise self._withdrawn(action, given, before)
        if self.seen is before:  # an unchanged view has been judged against this state already
            return
        try:
            self._judge(action, before, self.seen)
        except Violation as found:
            wrong = f"{found.message}; the engine refused the action: {names(given)}"
            raise self._violation(action, before, found.clause, wrong) from None

    def _withdrawn(self, action: Action, given: frozenset[Reason], before: View) -> Violation:
        """The violation of an engine that refuses what it has done in the same place."""
        wrong = f"the action is refused: {names(given)}, should be done: "
        if Reason.OUT_OF_PAGES not in given:
            wrong += f"it was done before, {self._since_empty()}"
            return self._violation(action, before, "ATOMIC", wrong)
        pages = self.machine.pages_wanted(self.state, action)
        given_before = "1 page was" if pages == 1 else f"{pages} pages were"
        wrong += f"{given_before} given in this state before, {self._since_empty()}"
        return self._violation(action, before, "CONS", wrong)

    def _since_empty(self) -> str:
        return f"after the same {self._granted.steps} actions from the initial state"

    def _judge_result(self, action: Action, result: Result, after: State, before: View) -> None:
        if self._oracle is not None or result is None:
            return
        own = after._replace(sequences=self._own_rows(after))
        legal = legal_results(self.machine, self.state, action, own)
        if legal:
            self.compared.add(type(action))
        self._require_none(action, before, result_difference(action, result, legal))

    def _judge_besides(self, held: State, action: Action, before: View) -> None:
        """Judge what the engine shows besides its view. held: the state before the action."""
        if self._oracle is None:
            found = besides.differences(self.engine, self._given, held, action, self.seen)
            self._require_none(action, before, next(found, None))
            self._given.add(held, action, self.state)

    def _own_rows(self, after: State) -> table.Sequences:
        """The expected sequences, with rows that name the pages of the engine's own view."""
        return tuple(
            evolve(sequence, row=self.seen.rows[slot][: len(sequence.row)]) if sequence else None
            for slot, sequence in enumerate(after.sequences)
        )

    def _judge(self, action: object, before: View, seen: View) -> None:
        """Judge the clauses first, since they name the error; then compare every field."""
        wanted = view.of(self.machine, self.state)
        if seen.reserved != wanted.reserved:
            seen = self.seen = evolve(seen, reserved=wanted.reserved)
        for clause, wrong in (self._oracle or by_clauses)(before, seen, wanted):
            raise self._violation(action, before, clause, wrong)
        if self._oracle is not None:
            return
        for field in COMPARED:
            value, right = getattr(seen, field.name), getattr(wanted, field.name)
            if value is None or right is None or value == right:
                continue
            seen_entries, wanted_entries = entries(field, value), entries(field, right)
            for index in sorted(seen_entries.keys() | wanted_entries.keys()):
                found = field_difference(
                    action,
                    field.name,
                    index,
                    seen=seen_entries.get(index),
                    expected=wanted_entries.get(index),
                )
                self._require_none(action, before, found)
        self._forget_moved(seen, wanted)
        for wrong in self._page_differences(seen, wanted):
            raise self._violation(action, before, clause_of(action, "DET"), wrong)
        for wrong in self._held_differences(seen, wanted):
            raise self._violation(action, before, clause_of(action, BY_NAME["held"].clause), wrong)
        for name, wrong in self._index_differences(seen, wanted):
            clause = clause_of(action, BY_NAME[name].clause)
            raise self._violation(action, before, clause, wrong)

    def _page_differences(self, seen: View, wanted: View) -> Iterator[str]:
        if self.engine.profile.policy == "lowest":
            if seen.rows != wanted.rows:
                yield f"rows are {_rows(seen)}, should be {_rows(wanted)}: lowest free page first"
            if seen.counts is not None and seen.counts != wanted.counts:
                yield f"counts are {seen.counts}, should be {wanted.counts}"
            return
        yield from self._carry_bijection(seen, wanted)

    def _held_differences(self, seen: View, wanted: View) -> Iterator[str]:
        """The pages that another number of steps in flight name. Each has had an image in a row."""
        if seen.held is None or wanted.held is None:
            return
        lowest = self.engine.profile.policy == "lowest"
        images = dict(enumerate(range(len(wanted.held)))) if lowest else self._image
        right = {images[page]: steps for page, steps in enumerate(wanted.held) if page in images}
        for mine, steps in enumerate(seen.held):
            if steps != right.get(mine, 0):
                yield f"held[{mine}] is {steps}, should be {right.get(mine, 0)}"

    def _index_differences(self, seen: View, wanted: View) -> Iterator[tuple[str, str]]:
        """The entries of the index that differ, each with the field that shows it."""
        if seen.indexed is None or wanted.indexed is None:
            return
        if self.engine.profile.policy == "lowest" and self._same_index(seen, wanted):
            return  # each page is its own image
        for wrong in self._key_differences(seen.indexed, wanted.indexed):
            yield "indexed", wrong
        if seen.idle_ranks is not None and wanted.idle_ranks is not None:
            for wrong in self._rank_differences(seen.idle_ranks, wanted):
                yield "idle_ranks", wrong

    def _same_index(self, seen: View, wanted: View) -> bool:
        """Whether the index and its ranks are the same, page by page.

        Long keys of which neither side has changed since they were equal are not compared again.
        """
        before, expected = self._equal
        is_old = seen.indexed is before and wanted.indexed == expected
        if not is_old and seen.indexed != wanted.indexed:
            return False
        self._equal = seen.indexed, wanted.indexed
        hidden = None in (seen.idle_ranks, wanted.idle_ranks)
        return hidden or seen.idle_ranks == wanted.idle_ranks

    def _key_differences(
        self, seen: tuple[IndexEntry, ...], wanted: tuple[IndexEntry, ...]
    ) -> Iterator[str]:
        """The keys that differ.

        A key has one page, so that it finds the page of any name. That of a page which stays in the
        index is carried along the run, as for a page in a row.
        """
        pages = {entry: page for page, entry in enumerate(seen) if entry}
        owners = {to: page for page, to in self._image.items()}
        for page, entry in enumerate(wanted):
            mine = pages.pop(entry, None) if entry else None
            image = page if self.engine.profile.policy == "lowest" else self._image.get(page, mine)
            if entry and (mine is None or mine != image):
                shown = "no page" if mine is None else f"page {mine}"
                yield f"the key {entry} has {shown}, should have page {image}"
            elif mine is not None and owners.setdefault(mine, page) != page:
                yield f"the key {entry} has page {mine}, which is another page's"
            elif mine is not None:
                self._image[page] = mine
        for entry, page in pages.items():
            yield f"page {page} has the key {entry}, should not be in the index"

    def _rank_differences(self, seen: tuple[int, ...], wanted: View) -> Iterator[str]:
        """The ranks that differ, of pages whose keys do not."""
        assert wanted.indexed is not None
        assert wanted.idle_ranks is not None
        pages = {self._image[page]: page for page, entry in enumerate(wanted.indexed) if entry}
        for mine, rank in enumerate(seen):
            right = wanted.idle_ranks[pages[mine]] if mine in pages else 0
            if rank != right:
                yield f"idle_ranks[{mine}] is {rank}, should be {right}"

    def _carry_bijection(self, seen: View, wanted: View) -> Iterator[str]:
        """A page keeps its image as long as a row entry keeps it, the index its key, or a step.

        Page ids alone are not enough: one Generate may free a page and allocate it again.
        """
        entries = zip(chain(*self._rows), chain(*wanted.rows), strict=False)
        kept = {page for page, still in entries if page == still}
        kept |= _same_entries(self._keys, wanted.indexed or ())
        held = enumerate(zip(self._held, wanted.held or (), strict=False))
        kept |= {page for page, (old, new) in held if old and new}
        image = {page: to for page, to in self._image.items() if page in kept}
        for slot, (row, right) in enumerate(zip(seen.rows, wanted.rows, strict=True)):
            for page, mine in zip_longest(right, row, fillvalue=INVALID):
                if (page == INVALID) != (mine == INVALID):
                    yield f"row {slot} is {row}, should name a page exactly where {right} does"
                    return
                if page != INVALID and page not in image:
                    if mine in image.values():
                        yield f"row {slot} names page {mine}, which is another page's"
                        return
                    image[page] = mine
                if page != INVALID and image[page] != mine:
                    yield f"row {slot} names page {mine} where it named {image[page]}"
                    return
        self._image, self._rows, self._keys = image, wanted.rows, wanted.indexed or ()
        self._held = wanted.held or ()
        for page, mine in image.items():
            counts, expected = seen.counts or (), wanted.counts or ()
            if counts and counts[mine] != expected[page]:
                yield f"counts[{mine}] is {counts[mine]}, should be {expected[page]}"

    def _require_none(self, action: object, before: View, found: Difference | None) -> None:
        if found is not None:
            raise self._violation(action, before, found.clause, str(found))

    def _violation(self, action: object, before: View, clause: str, wrong: str) -> Violation:
        return Violation(clause, wrong, action=action, before=before, after=self.seen)


def _same_entries(before: tuple[IndexEntry, ...], after: tuple[IndexEntry, ...]) -> set[int]:
    """The pages that have the same key in two indexes."""
    pairs = enumerate(zip(before, after, strict=False))
    return {page for page, (old, new) in pairs if old and old == new}


def _guardable(action: Action, expected: frozenset[Reason], error: InvalidInput) -> InvalidInput:
    """An exception of the adapter on a call that the specification refuses, with the remedy."""
    reasons = sorted(reason.name for reason in expected)
    guards = ", ".join(f"({type(action).__name__}, Reason.{name})" for name in reasons)
    told = InvalidInput(
        error.name,
        seen=f"{error.seen}, where the specification refuses: {names(expected)}",
        allowed=error.allowed,
        remedy=f"{error.remedy} If the layer above the engine never makes such a call, declare it "
        f"in Profile.guarded: {guards}.",
    )
    return _with_notes(told, error)


def _with_notes(error: E, noted: Exception) -> E:
    """The error with the notes of another one: where it came from."""
    for note in getattr(noted, "__notes__", ()):
        error.add_note(note)
    return error


def by_clauses(before: View, seen: View, _wanted: View) -> Iterator[tuple[str, str]]:
    """The violations of every clause, judged on the engine's own views."""
    yield from clauses.violations(seen)
    yield from clauses.step_violations(before, seen)


def require_shown(profile: Profile, shown: View) -> None:
    """The fields that an engine with these actions cannot hide. Raises InvalidInput.

    Its rows mean nothing without a required field. If it shows tokens, written drafts would be
    judged as cells of no token without the fields of the rung that proposes them; so would what a
    step in flight has drawn. With Append the queue belongs to its caller, so that a queue of its
    own would lack every token.
    """
    if shown.queue is not None and Append in profile.actions:
        raise InvalidInput(
            "View.queue",
            seen=shown.queue,
            allowed="None, since the engine offers Append",
            remedy="Leave the queue out of the view; with Append the caller has it.",
        )
    for rung in profile.machine.rungs:
        drafts = rung.known is not None and shown.tokens is not None
        kinds = {*rung.rules, Dispatch} if drafts else {*rung.rules}
        offered = sorted(kind.__name__ for kind in profile.taken.intersection(kinds))
        for field in VIEWED:
            hidden = field.owner == rung.name and getattr(shown, field.name) is None
            if hidden and offered and (field.required or drafts):
                raise InvalidInput(
                    f"View.{field.name}",
                    seen=None,
                    allowed=f"one entry for each {field.index}",
                    remedy=f"Show it, or do not offer {', '.join(offered)}.",
                )


def differing(before: View, after: View) -> list[str]:
    """The fields in which two views differ."""
    return [
        one.name
        for one in VIEWED
        if _entries(getattr(before, one.name)) != _entries(getattr(after, one.name))
    ]


def _entries(value: object) -> object:
    """A field as something that can be compared. Cells may be read one at a time, and what reads
    them may not say where they end.
    """
    if not isinstance(value, Sequence):
        return value
    return [value[index] for index in range(len(value))]


def _rows(shown: View) -> str:
    return str([[page for page in row if page != INVALID] for row in shown.rows])
