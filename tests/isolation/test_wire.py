"""The line protocol: whatever is sent comes back as it was, and failures are those of here."""

import json
from collections.abc import Mapping
from itertools import product
from random import Random
from typing import Any, Final, cast

import pytest
from attrs import evolve, fields
from spec_engine import ACTIONS, Recompiles, SpecEngine, small
from view_changes import HIDDEN, hiding

from conformance.isolation.remote import Remote, RemoteFactory
from conformance.isolation.served import Served
from conformance.isolation.wire import (
    Answer,
    Seen,
    Shown,
    failed_from_data,
    failed_to_data,
    invalid_from_data,
    invalid_to_data,
    profile_from_data,
    profile_to_data,
)
from conformance.lockstep.called import ASKED, OPTIONAL, Called, notes_of
from conformance.protocol import (
    ANSWERS,
    Action,
    EngineFailed,
    Poison,
    Profile,
    Result,
    Unsupported,
)
from spec.fields import VIEWED
from spec.machines import actions as act
from spec.view import View
from spec.vocabulary import (
    CleanupMode,
    InvalidInput,
    Params,
    Reason,
    Refusal,
    Refused,
    Request,
    default_limits,
)
from spec.vocabulary.errors import shown

SIZES: Final = small(pages=6, page_size=2, slots=3, pages_per_seq=4)
GIVEN: Final = (SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)
PLAIN: Final = SpecEngine(*GIVEN, actions=ACTIONS - {act.Merge}).profile
NOT_SENT: Final = frozenset({"geometry", "limits", "cleanup", "sizes"})
"""What the kit has given to the engine, and sizes, which the process itself compares."""
DECLARED: Final[Mapping[str, object]] = {
    "name": "another",
    "actions": frozenset({act.Reserve, act.Free}),
    "unasked": frozenset({act.Merge}),
    "contexts": False,
    "refuses": "may_refuse_more",
    "policy": "any",
    "copy": "lazy",
    "lookahead": 3,
    "reserve": "request",
    "ring": 4,
    "guarded": frozenset({Reason.SLOT_USED, (act.Allocate, Reason.SLOT_UNUSED)}),
    "batches": "one position",
}
"""Another value of each field of a profile than PLAIN has."""
REQUEST: Final = Request(id=1, prompt=(5, 6), params=Params(max_new=2))
HISTORY: Final = (
    act.Prefill((evolve(REQUEST, id=3, params=Params(max_new=6), n_generations=2),)),
    act.Round(),
    act.Purge(0),
    act.Propose(0, (1, 2)),
    act.Free(0),
    act.Submit(REQUEST),
    act.Free(1),
    act.Prefill((evolve(REQUEST, id=4, params=Params(max_new=1)),)),
    act.Reserve(2),
    act.TakeOutputs(),
    act.Admit(),
    act.Reset(),
    act.Reserve(0, 7),
    act.Assign(0, (1, 2), Params(max_new=1), 5),
    act.Allocate(((0, 0), (0, 1))),
    act.Write(((0, 0), (0, 1))),
    act.Publish(0, 2),
    act.Free(0),
    act.Reserve(1),
    act.Assign(1, (1, 2), Params(max_new=1), 6),
    act.Allocate(((1, 0), (1, 1))),
    act.Write(((1, 0), (1, 1))),
    act.Drop(),
    act.Reserve(0),
    act.Assign(0, (1, 2), Params(max_new=1), 7),
    act.Dispatch(((0, 1),)),
    act.Dispatch(((0, 1),)),
    act.Retire(),
    act.Free(0),
)
"""Actions after which slots, pages, queue, drafts, outputs, an index and steps come and go."""


def sent(data: object) -> Any:
    """What the other side reads of this."""
    return json.loads(json.dumps(data))


def test_every_declaration_has_another_value_here() -> None:
    """Each field of a profile is either sent or known to the kit."""
    assert {one.name for one in fields(Profile)} == {*DECLARED, *NOT_SENT}
    assert all(value != getattr(PLAIN, name) for name, value in DECLARED.items())


@pytest.mark.parametrize("name", DECLARED)
def test_every_declaration_arrives(name: str) -> None:
    """A profile that differs in one field arrives with that field and all others."""
    changed: dict[str, Any] = {name: DECLARED[name]}
    profile = evolve(PLAIN, **changed)

    arrived = profile_from_data(
        sent(profile_to_data(profile)), geometry=GIVEN[0], limits=GIVEN[1], cleanup=GIVEN[2]
    )

    assert profile == arrived


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in ANSWERS}, key=str))
def test_what_is_guarded_for_one_action_is_guarded_for_no_other(kind: type) -> None:
    """A guarded pair arrives as that pair, beside a reason that is guarded for every action."""
    for reason in Reason:
        guarded = frozenset({(kind, reason), Reason.NO_FREE_SLOT})
        data = sent(profile_to_data(evolve(PLAIN, guarded=guarded)))

        arrived = profile_from_data(data, geometry=GIVEN[0], limits=GIVEN[1], cleanup=GIVEN[2])

        assert guarded == arrived.guarded


def told(error: Exception) -> object:
    """All that an exception says; a mistake of the adapter arrives as other bad input does."""
    if isinstance(error, InvalidInput):
        return str(error), notes_of(error)
    parts = {name: str(value) for name, value in vars(error).items() if name != "__notes__"}
    return type(error), str(error), parts, notes_of(error)


@pytest.mark.parametrize(
    ("clause", "raised", "notes"),
    [*product(("ATOMIC", "PROG"), (None, "", "ValueError: no"), ((), ("from here", "and here")))],
)
def test_a_failure_arrives_with_all_that_it_says(
    clause: str, raised: str | None, notes: tuple[str, ...]
) -> None:
    """The clause of a failure, the exception behind it and its notes arrive."""
    error = EngineFailed("wrong", clause=clause, raised=raised)
    for note in notes:
        error.add_note(note)

    assert told(error) == told(failed_from_data(sent(failed_to_data(error))))


@pytest.mark.parametrize("seen", [None, 0, "", "text", 0.5, True, (1, 2), SIZES])
@pytest.mark.parametrize("notes", [(), ("from here", "and here")])
def test_bad_input_arrives_with_all_that_it_says(seen: object, notes: tuple[str, ...]) -> None:
    """The four parts of bad input and its notes arrive, whatever was seen."""
    error = InvalidInput("name", seen=seen, allowed="allowed", remedy="remedy")
    for note in notes:
        error.add_note(note)

    arrived = invalid_from_data(sent(invalid_to_data(error)))

    expected = seen if seen is None or isinstance(seen, str | int | float) else shown(seen)
    assert ("name", expected, "allowed", "remedy", notes) == (
        arrived.name, arrived.seen, arrived.allowed, arrived.remedy, notes_of(arrived)
    )  # fmt: skip


@pytest.mark.parametrize("name", ["pages", "page_size", "slots", "pages_per_seq", "window"])
def test_the_nearest_sizes_arrive(name: str) -> None:
    """Sizes that an engine does not have arrive with the nearest that it has."""
    nearest = evolve(SIZES, **{name: 3})
    error = Unsupported("Geometry", seen=1, allowed="3", nearest=nearest)

    arrived = invalid_from_data(sent(invalid_to_data(error)))

    assert isinstance(arrived, Unsupported)
    assert (str(error), nearest) == (str(arrived), arrived.nearest)


def views() -> list[View]:
    """The views of the specification after each action of the history."""
    engine = SpecEngine(SIZES, GIVEN[1], CleanupMode.NONE)  # which keeps what has finished
    found = [engine.observe()]
    for action in HISTORY:
        engine.apply(action)
        found.append(engine.observe())
    return found


def test_every_field_of_a_view_changes_here() -> None:
    """The history changes each field that a view without a window can show."""
    seen = views()
    fixed = {one.name for one in VIEWED if 1 == len({str(getattr(v, one.name)) for v in seen})}

    assert {"first_page"} == fixed


@pytest.mark.parametrize("seed", range(12))
def test_every_view_arrives_after_every_other(seed: int) -> None:
    """Views in any order, with any fields hidden, arrive as they are."""
    rng, possible = Random(seed), views()
    here, there = Shown(), Seen(SIZES, possible[0].expected)
    for _ in range(30):
        hidden = [name for name in HIDDEN if not rng.randrange(seed + 2)]
        view = hiding(rng.choice(possible), *hidden)

        arrived = there.take(sent(here.news(view)))

        assert view == evolve(arrived, expected=view.expected)


class Failing(Recompiles):
    """The specification as an engine of which one method changes something and then raises."""

    where = ""
    error: Exception = EngineFailed("no")

    def fail(self, where: str) -> None:
        """Raise in the chosen method, after slot 2 was reserved."""
        if where == self.where:
            super().apply(act.Reserve(2))
            raise self.error

    def apply(self, action: Action) -> Result:
        """Take the action, or fail."""
        self.fail("apply")
        return super().apply(action)

    def poison(self, kind: Poison) -> None:
        """Overwrite nothing, or fail."""
        self.fail("poison")
        super().poison(kind)

    def serve(self, requests: Any) -> Any:
        """Serve, or fail."""
        self.fail("serve")
        return super().serve(requests)

    def attend(self) -> Any:
        """The read sets, or a failure."""
        self.fail("attend")
        return super().attend()

    def statistics(self) -> Any:
        """The statistics, or a failure."""
        self.fail("statistics")
        return super().statistics()

    def events(self) -> Any:
        """The events, or a failure."""
        self.fail("events")
        return super().events()

    def logprobs(self) -> Any:
        """The log-probabilities, or a failure."""
        self.fail("logprobs")
        return super().logprobs()

    def erased(self) -> Any:
        """The erased content, or a failure."""
        self.fail("erased")
        return super().erased()

    def compilations(self) -> Any:
        """The compilations, or a failure."""
        self.fail("compilations")
        return super().compilations()

    def pool_copies(self) -> Any:
        """The copies, or a failure."""
        self.fail("pool_copies")
        return super().pool_copies()


class Line:
    """The home of a remote engine whose lines and answers are those of a process, without one."""

    def __init__(self) -> None:
        self.served = Served("")
        self.served._make = Failing
        self.current: Remote | None = None

    def new(self) -> Remote:
        """A new engine."""
        cleanup = GIVEN[2].value
        limits = {one.name: getattr(GIVEN[1], one.name) for one in fields(type(GIVEN[1]))}
        sizes = {name: getattr(SIZES, name) for name in ("pages", "page_size", "slots")}
        sizes["pages_per_seq"] = SIZES.pages_per_seq
        made = self.answer({"new": {"geometry": sizes, "limits": limits, "cleanup": cleanup}})
        return Remote(cast(RemoteFactory, self), *GIVEN, made)

    def answer(self, data: Mapping[str, object]) -> Answer:
        """The answer to a line."""
        answer: Answer = sent(self.served.answer(sent(data)))
        return answer

    def ask(self, _engine: Remote, data: Mapping[str, object]) -> Answer:
        """The answer to a line; bad input is raised, as of a process."""
        answer = self.answer(data)
        if "invalid" in answer:
            raise invalid_from_data(answer["invalid"])
        return answer


CALLS: Final[Mapping[str, tuple[object, ...]]] = {
    "apply": (act.Reserve(0),),
    "poison": (Poison.NAN,),
    "attend": (),
    "serve": ([REQUEST],),
    **dict.fromkeys(ASKED, ()),
}
"""The arguments of each method that can fail."""


def outcome(engine: Any, name: str) -> tuple[object, View]:
    """What a method returns or raises, and the view after it."""
    try:
        found: object = ("returned", sent_back(getattr(engine, name)(*CALLS[name])))
    except Refused as refused:
        found = refused.reasons
    except (EngineFailed, InvalidInput) as error:
        found = told(error)
    return found, engine.observe()


def sent_back(value: Any) -> object:
    """A value with lists in place of tuples, as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): sent_back(one) for key, one in value.items()}
    return [sent_back(one) for one in value] if isinstance(value, list | tuple) else value


def failed(clause: str, raised: str | None = None, note: str = "from there") -> EngineFailed:
    """A failure with all that it can say."""
    error = EngineFailed("no", clause=clause, raised=raised)
    error.add_note(note)
    return error


def test_every_method_of_an_adapter_can_fail_here() -> None:
    """The calls are those of all methods, optional ones too, and each is defined to fail."""
    assert {"apply", *OPTIONAL} == set(CALLS)
    assert set(CALLS) <= set(vars(Failing))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "error",
    [
        None,
        failed("PROG"),
        failed("ATOMIC", "ValueError: no"),
        Refused([Refusal(Reason.OUT_OF_PAGES, None, None), Refusal(Reason.SLOT_USED, 1, 0)]),
        InvalidInput("name", seen=1, allowed="2", remedy="Change it."),
    ],
    ids=["nothing", "a failure", "an exception", "a refusal", "bad input"],
)
def test_every_failure_of_every_method_is_the_same_there(
    name: str, error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method that raises there after a change raises the same here, and what it did shows."""
    there, here = Line().new(), Called(lambda: Failing(*GIVEN))
    if error is not None:
        monkeypatch.setattr(Failing, "where", name)
        monkeypatch.setattr(Failing, "error", error)
    twin = outcome(here, name)

    seen = outcome(there, name)

    assert twin[0] == seen[0]
    if name in {"apply", "serve"} and isinstance(error, Refused | None):
        assert twin[1].used == seen[1].used
        assert twin[1].outputs == seen[1].outputs


def test_a_failed_action_shows_what_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view after a failed action is that of now, as here."""
    there = Line().new()
    monkeypatch.setattr(Failing, "where", "apply")
    monkeypatch.setattr(Failing, "error", failed("ATOMIC", "ValueError: no"))

    with pytest.raises(EngineFailed):
        there.apply(act.Reserve(0))

    assert (False, False, True) == there.observe().used
