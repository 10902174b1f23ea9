"""Engines in processes of their own: they act as they do here, and their failures are findings."""

import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import toy_engine
from attrs import evolve
from deep import deep_after
from spec_engine import SpecEngine, small

from conformance.cli.main import main
from conformance.files import histories
from conformance.files.histories import Recorded
from conformance.fuzzing import campaign
from conformance.fuzzing.state_machine import Campaign
from conformance.history import History
from conformance.isolation import remote, serve, wire
from conformance.isolation.remote import Remote, RemoteFactory
from conformance.lockstep.run import Finding, replay
from conformance.protocol import (
    Attends,
    Compiles,
    Counts,
    EngineFailed,
    Erases,
    Poisonable,
    Rounds,
    Scores,
    Serves,
)
from conformance.recordings.fields import fields_of
from spec.machines import actions as act
from spec.view import View
from spec.vocabulary import (
    INVALID,
    Capacity,
    CleanupMode,
    FinishReason,
    InvalidInput,
    Params,
    Reason,
    Refused,
    Request,
    ResetMode,
    default_limits,
)

SIZES = small(pages=6, page_size=2, slots=3, pages_per_seq=4)
THREE = act.Allocate(((0, 0), (0, 1), (0, 2)))
GROW: History = (act.Reserve(0), act.Allocate(((0, 0),)), act.Free(0), act.Reserve(0), THREE)

Make = partial[RemoteFactory]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a turn of fuzzing shorter than the default."""
    monkeypatch.setattr(campaign, "EXAMPLES", 4)


@pytest.fixture(scope="module", autouse=True)
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """A maker of factories for engines in another process, which can import the tests' modules."""
    folder = tmp_path_factory.mktemp("engines")
    (folder / "needs_what_is_absent.py").write_text("import no_such_module_here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).parents[1] / 'tools'}")
        yield partial(RemoteFactory, python=sys.executable)


def made(factory: RemoteFactory) -> Remote:
    """A new engine of this factory."""
    return factory(SIZES, default_limits(SIZES), CleanupMode.INCREMENTAL)


def found(factory: RemoteFactory, *, seconds: float = 40.0) -> Finding | None:
    """The finding of a history that grows to three cells, or None."""
    return replay(partial(made, factory), GROW, seconds=seconds)


class Both:
    """An engine in another process beside the same one here: answers and views must be equal."""

    def __init__(self, there: Remote, here: SpecEngine) -> None:
        self.profile, self._there, self._here = here.profile, there, here
        assert here.profile == there.profile

    def apply(self, action: Any) -> Any:
        """Take an action on both sides."""
        try:
            wanted = self._here.apply(action)
        except Refused as here:
            with pytest.raises(Refused) as there:
                self._there.apply(action)
            self._same(here.reasons, there.value.reasons)
            raise
        self._same(wanted, self._there.apply(action))
        return wanted

    def _same(self, here: object, there: object) -> None:
        assert here == there

    def observe(self) -> View:
        """The view from the other process, which must equal the view from here."""
        here, there = self._here.observe(), self._there.observe()
        assert evolve(here, expected=there.expected) == there
        return there

    def poison(self, kind: Any) -> None:
        """Overwrite dead cells in the other process; those here are POISON already."""
        assert isinstance(self._there, Poisonable)
        self._there.poison(kind)

    def attend(self) -> Any:
        """The read sets from the other process, which must equal those from here."""
        assert isinstance(self._there, Attends)
        read = self._there.attend()
        assert self._here.attend() == read
        return read


@pytest.mark.parametrize("level", deep_after(1, ["lifecycle", "scheduling", "admission"]))
def test_an_engine_there_does_and_shows_what_it_does_here(there: Make, level: str) -> None:
    """Results, refusals, fields and cells are the same through the process as without it."""
    factory = there("spec_engine:SpecEngine")

    def make() -> Both:
        sizes = (small(), default_limits(small()), CleanupMode.INCREMENTAL)
        return Both(factory(*sizes), SpecEngine(*sizes))

    target, report = Campaign(make=make), campaign.Run()
    campaign._take_turn(target, level, 1, report)

    assert report.finding is None
    assert 80 < report.steps
    assert {"Reserve", "Clone", "Round", "Admit"} & set(target.coverage.actions)


def test_what_an_engine_there_shows_besides_its_view_arrives(there: Make) -> None:
    """Statistics, log-probabilities and erased cells are right there, and so is what it serves."""
    factory = there("spec_engine:Recompiles")
    request = Request(id=1, prompt=(5, 6), params=Params(max_new=2))
    history = (
        act.Submit(request),
        act.Admit(),
        act.Generate(),
        act.TakeOutputs(),
        act.Reset(ResetMode.PHYSICAL),
    )

    assert None is replay(partial(made, factory), history)
    assert None is replay(partial(made, factory), history[:1])
    one = made(factory)
    assert all(isinstance(one, kind) for kind in (Counts, Scores, Erases, Serves))
    assert {"round": 1, "clone": 2} == one.compilations()  # type: ignore[attr-defined]
    ((key, choice, tokens, reason),) = one.serve([request])  # type: ignore[attr-defined]
    assert (1, 0, 2, FinishReason.LIMIT) == (key, choice, len(tokens), reason)


def test_what_an_engine_there_does_not_have_is_not_found_on_it(there: Make) -> None:
    """A remote engine has an optional method exactly if its adapter has it."""
    spec, toy = made(there("spec_engine:SpecEngine")), made(there("toy_engine:make"))

    assert isinstance(spec, Poisonable)
    assert isinstance(spec, Attends)
    assert not isinstance(spec, Compiles)
    assert not isinstance(toy, Poisonable | Attends | Compiles)
    assert None is toy.observe().tokens
    assert "any" == toy.profile.policy


def test_a_capacity_policy_is_sent(there: Make) -> None:
    """A remote engine is held to the policy that its adapter declares."""
    lazy, ahead = there("capacity_toys:make_lazy"), there("capacity_toys:make_ahead")
    whole = there("capacity_toys:make_whole")

    assert Capacity(copy="lazy") == made(lazy).profile.capacity
    assert Capacity(lookahead=3) == made(ahead).profile.capacity
    assert Capacity(reserve="request") == made(whole).profile.capacity
    for factory in (lazy, ahead):
        target, report = Campaign(make=partial(made, factory)), campaign.Run()
        campaign._take_turn(target, "lifecycle", 1, report)
        assert report.finding is None


def test_arrays_and_lists_are_values(there: Make) -> None:
    """Numpy arrays and lists of an adapter arrive as the integers that they hold."""
    factory = there("remote_engines:Arrays")
    target, report = Campaign(make=partial(made, factory)), campaign.Run()
    campaign._take_turn(target, "scheduling", 1, report)

    assert (None, True) == (report.finding, report.steps > 80)


def test_what_cells_hold_is_a_matter_of_one_engine(there: Make) -> None:
    """The next engine of a process may have other contents, whatever it differs in."""
    factory, limits = there("remote_engines:Salted"), default_limits(SIZES)
    params = Params(max_new=2)
    write = (act.Assign(0, (5, 6), params, 1), act.Allocate(((0, 0),)), act.Write(((0, 0),)))
    settings = (
        (SIZES, limits, CleanupMode.INCREMENTAL),
        (evolve(SIZES, pages=5), limits, CleanupMode.INCREMENTAL),
        (SIZES, evolve(limits, rounds=limits.rounds + 1), CleanupMode.INCREMENTAL),
        (SIZES, limits, CleanupMode.END),
    )

    found = [replay(partial(factory, *one), (act.Reserve(0), *write)) for one in settings]

    assert [None] * len(settings) == found


def test_fields_that_come_and_go_are_seen_to(there: Make) -> None:
    """A view that shows other fields than the last one is sent whole."""
    engine = made(there("remote_engines:Restless"))
    engine.apply(act.Reserve(0))
    assert None is engine.observe().counts
    engine.apply(act.Free(0))

    assert (0,) * 6 == engine.observe().counts


def test_what_an_engine_prints_or_reads_is_not_the_protocol(
    there: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    """The standard output of an engine goes to standard error, and its standard input is empty."""
    assert None is found(there("remote_engines:Loud"))

    out = err = ""
    deadline = time.monotonic() + 10  # a thread forwards the text later than the answers
    while err.count("\n") < 10 and time.monotonic() < deadline:
        more = capfd.readouterr()
        out, err = out + more.out, err + more.err
        time.sleep(0.01)
    assert ("", 5, 5) == (out, err.count("to standard output"), err.count("and by its number"))


@pytest.mark.parametrize(
    ("name", "message"),
    deep_after(
        1,
        [
            ("remote_engines:Ends", "the engine's process ended with status 3"),
            ("remote_engines:Crashes", "the engine's process ended with signal SIGSEGV"),
            ("remote_engines:Closes", "the engine's process ended its answers"),
        ],
    ),
)
def test_a_process_that_ends_is_a_finding(there: Make, name: str, message: str) -> None:
    """A process that ends is a finding with its history, and the next engine gets a new process."""
    factory = there(name)
    finding = found(factory)
    again = found(factory)

    assert finding is not None
    assert again is not None
    assert ("ATOMIC", message, GROW) == (finding.clause, finding.message, finding.history)
    assert (finding.message, finding.history) == (again.message, again.history)
    assert None is replay(partial(made, factory), GROW[:4])


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("raises", "the engine raised IndexError: block table overflow"),
        ("exits", "the engine raised SystemExit: 1"),
    ],
)
def test_an_exception_there_reads_as_it_does_here(
    there: Make, bug: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception of an engine gives the same finding in another process as in this one."""
    monkeypatch.setenv("TOY_BUG", bug)
    here = replay(lambda: toy_engine.make(SIZES, default_limits(SIZES), CleanupMode.NONE), GROW)
    finding = found(there("toy_engine:make"))

    assert finding is not None
    assert here is not None
    assert ("ATOMIC", GROW) == (finding.clause, finding.history)
    assert finding.message.startswith(f"{message} (toy_engine.py line ")
    assert "in _grow\n" in finding.trace
    assert (here.clause, here.message) == (finding.clause, finding.message)


def test_a_process_that_hangs_is_a_finding_and_is_ended(
    there: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs violates PROG and is ended, and its late answers are not read."""
    monkeypatch.setenv("TOY_BUG", "hangs")
    factory = there("toy_engine:make")
    started = time.monotonic()
    finding = found(factory, seconds=1.0)

    assert finding is not None
    assert ("PROG", "a step took more than 1 seconds") == (finding.clause, finding.message)
    assert GROW == finding.history
    assert 20 > time.monotonic() - started
    assert None is factory._process
    assert None is replay(partial(made, factory), GROW[:4])


def test_an_engine_that_cannot_be_made_again_is_a_finding(there: Make) -> None:
    """If the process ends before the first step, the finding has an empty history."""
    report = campaign.Run()
    campaign.run(
        there("remote_engines:Fails"),
        campaign.Options(geometry=SIZES, seconds=5),
        report=report,
        update=lambda *_: None,
    )

    assert report.finding is not None
    assert ((), "ATOMIC", "the engine's process ended with status 4") == (
        report.finding.history, report.finding.clause, report.finding.message
    )  # fmt: skip


def test_only_the_last_engine_of_a_process_can_be_used(there: Make) -> None:
    """An older engine of the process raises an error instead of answering for the newer one."""
    factory = there("toy_engine:make")
    old, new = made(factory), made(factory)
    new.apply(act.Reserve(0))

    with pytest.raises(RuntimeError, match="one at a time"):
        old.apply(act.Reserve(0))


def test_an_engine_is_gone_when_the_next_one_is_made(there: Make) -> None:
    """Each may take what there is only once, such as the memory of a device."""
    factory = there("remote_engines:OneAtATime")

    for _ in range(3):
        made(factory).apply(act.Reserve(0))


@pytest.mark.parametrize(
    ("python", "name", "seen"),
    [
        (sys.executable, "no_such_module_here:make", "no module no_such_module_here"),
        (sys.executable, "needs_what_is_absent:make", "needs no_such_module_here"),
        (sys.executable, "toy_engine:nothing", "no callable nothing in toy_engine"),
        (sys.executable, "no_such_name", "no_such_name"),
        ("/no/such/python", "toy_engine:make", "No such file or directory"),
        ("/bin/false", "toy_engine:make", "ended with status 1"),
        ("/bin/echo", "toy_engine:make", "sent no JSON"),
    ],
)
def test_what_cannot_be_served_is_bad_input(there: Make, python: str, name: str, seen: str) -> None:
    """The error names the missing module, object or program, and the remedy."""
    with pytest.raises(InvalidInput, match=r"pip install attrs|docs/adapters\.md") as caught:
        there(name, python=python)

    assert seen in str(caught.value)
    assert f"--engine {name}" in str(caught.value)


def test_without_attrs_there_the_error_says_so(there: Make, tmp_path: Path) -> None:
    """The process answers before it needs anything but the standard library."""
    python = tmp_path / "bare"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)

    with pytest.raises(InvalidInput, match="no module attr"):
        there("toy_engine:make", python=str(python))


def test_another_version_of_the_protocol_is_refused(
    there: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides send their version, and a difference is bad input."""
    monkeypatch.setattr(remote, "VERSION", wire.VERSION + 1)

    with pytest.raises(InvalidInput, match=f"'version': {wire.VERSION}"):
        there("toy_engine:make")


def test_an_old_python_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version of Python is checked before any import that an old version could not read."""
    monkeypatch.setattr(serve, "LEAST", (99, 0))

    with pytest.raises(serve._Missing, match=r"is older than 99\.0"):
        serve._load("toy_engine:make")


def test_results_that_are_none_are_found() -> None:
    """A value that cannot be the result of an action is passed on unchanged."""
    assert (1, 2) == wire.result_from_data(act.Generate(), (1, 2))
    assert Rounds(1, Reason.QUEUE_EMPTY) == wire.result_from_data(
        act.Generate(), [1, "QUEUE_EMPTY"]
    )
    output = [[1, 0, [7], FinishReason.LIMIT.value]]
    assert ((1, 0, (7,), FinishReason.LIMIT),) == wire.result_from_data(act.TakeOutputs(), output)
    assert ["no plan"] == wire.result_from_data(act.Allocate(()), ["no plan"])


def test_a_hole_in_a_row_is_not_closed_on_the_way() -> None:
    """A row ends with its last page, and an invalid entry before it is kept to be judged."""
    rows = ((3, INVALID, 5, INVALID), (INVALID,) * 4, (INVALID,) * 4)
    view = View(geometry=SIZES, counts=None, used=(True, False, False), rows=rows)

    assert {0: (3, INVALID, 5), 1: (), 2: ()} == fields_of(view)["rows"]


def test_a_failure_that_does_not_come_again_is_kept() -> None:
    """A failure of one new engine among many is a finding, although it does not occur again."""
    count = 0

    def make() -> toy_engine.Adapter:
        nonlocal count
        count += 1
        if count == 3:
            raise EngineFailed("the engine's process ended with status 1")
        return toy_engine.make(SIZES, default_limits(SIZES), CleanupMode.NONE)

    target, report = Campaign(make=make), campaign.Run()
    campaign._take_turn(target, "lifecycle", 0, report)

    assert report.finding is not None
    assert ((), "ATOMIC") == (report.finding.history, report.finding.clause)


def test_the_command_runs_an_engine_there_and_its_history_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of a finding names the Python too, so that it can be run again without options."""
    monkeypatch.chdir(tmp_path)
    words = ("--engine", "remote_engines:Soon", "--python", sys.executable)

    assert 1 == main(["fuzz", *words, "--seconds", "20", "--json", "found.json"])
    found = json.loads(Path("found.json").read_text(encoding="utf-8"))
    failure = "ATOMIC: the engine's process ended with status 3 (after 1 step"
    failure += ", at pages=16,page_size=4,slots=4,pages_per_seq=4: chosen by the kit)"
    assert [failure] == found["failures"]
    assert 1 == main(["rerun", "--trust", found["counterexample"]])
    assert f"python={sys.executable!r}" in Path(found["test"]).read_text(encoding="utf-8")
    kept = histories.load(Path(found["counterexample"]))
    Path("right.jsonl").write_text(histories.dump(evolve(kept, engine="toy_engine:make")))
    assert 0 == main(["rerun", "--trust", "right.jsonl"])
    assert 2 == main(["rerun", "--trust", "right.jsonl", "--python", "/no/such/python"])


def test_a_bug_is_not_planted_where_it_would_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug can be planted only in this process, so that another Python is refused."""
    monkeypatch.chdir(tmp_path)
    made_with = Recorded(
        engine="toy_engine:make", geometry=SIZES, limits=default_limits(SIZES),
        cleanup=CleanupMode.NONE, history=GROW[:1], plant="CW5",
    )  # fmt: skip
    Path("planted.jsonl").write_text(histories.dump(made_with))

    assert 2 == main(["fuzz", "--plant", "CW5", "--python", sys.executable])
    assert "Leave --engine and --python out" in capsys.readouterr().err
    assert 2 == main(["rerun", "--trust", "planted.jsonl", "--python", sys.executable])
    assert "where bugs are planted" in capsys.readouterr().err
    elsewhere = ("--trust", "--python", sys.executable)
    assert 0 == main(["rerun", "planted.jsonl", *elsewhere, "--without-plant"])
