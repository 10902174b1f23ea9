"""The conformance suite as tests: `pytest --kvspec-engine ENGINE` collects one for each clause.

Nothing of the kit is imported unless the option is given: pytest loads this module in every run of
an environment in which kvspec is installed.
"""

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from kvspec import foreign

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.fuzzing.suite import Answer

ENGINE: Final = "--kvspec-engine"
GEOMETRY: Final = "pages=16,slots=4,page_size=4,pages_per_seq=4"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; without the first of them nothing else happens."""
    group = parser.getgroup("kvspec", "conformance of a paged KV cache")
    group.addoption(
        ENGINE,
        metavar="ENGINE",
        help="collect the conformance suite for this engine: MODULE:FACTORY, or the name of an "
        "installed one",
    )
    group.addoption("--kvspec-python", metavar="PATH", help="run it in a process of this Python")
    group.addoption(
        "--kvspec-in-process",
        action="store_true",
        help="run it in the process of the kit, not in one of its own",
    )
    group.addoption("--kvspec-seconds", type=float, default=60.0, help="fuzzing time (default 60)")
    group.addoption(
        "--kvspec-hang-seconds", type=float, default=15.0, help="what a step may take (default 15)"
    )
    group.addoption("--kvspec-seed", type=int, default=0, help="seed of every draw (default 0)")
    group.addoption(
        "--kvspec-geometry",
        metavar="SIZES",
        help=f"these alone (default {GEOMETRY} and two others)",
    )
    group.addoption(
        "--kvspec-xfail",
        metavar="FILE",
        help="clauses that are known to fail: one on each line, with the reason",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse packages that are not ours, and to spread one run over several processes."""
    if config.getoption(ENGINE) is None:
        return
    wrong = foreign()
    if wrong is not None:
        raise pytest.UsageError(wrong)
    if config.getoption("numprocesses", default=None):
        raise pytest.UsageError(f"{ENGINE}: saw -n, allowed: one process, as it is one run")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the suite to what was collected, before -k and -m choose."""
    if config.getoption(ENGINE) is None:
        return
    root = Group.from_parent(session, name="kvspec", nodeid="kvspec")
    items.extend(Group.from_parent(root, name="fuzz").collect())


class Group(pytest.Collector):
    """`kvspec`, and in it `kvspec::fuzz`."""

    def collect(self) -> Iterator["Clause"]:
        """One item for each clause, and one for the coverage. Raises UsageError."""
        from conformance.fuzzing.suite import COVERAGE, read_known
        from conformance.fuzzing.suite_process import Ended
        from spec.clauses import CLAUSES
        from spec.vocabulary import InvalidInput

        file = self.config.getoption("--kvspec-xfail")
        try:
            known = {} if file is None else read_known(Path(file))
            answer = cache(_suite(self.config, tuple(known)))
        except (InvalidInput, Ended) as error:
            raise pytest.UsageError(str(error)) from None
        for name in (*CLAUSES, COVERAGE):
            item = Clause.from_parent(self, name=name, answers=answer)
            if name in known:
                item.add_marker(pytest.mark.xfail(reason=known[name], strict=True, raises=Fails))
            yield item


class Clause(pytest.Item):
    """One clause; the first that is run fuzzes for all of them."""

    def __init__(self, *, answers: "Callable[[], dict[str, Answer] | str]", **given: Any) -> None:
        super().__init__(**given)
        self._answers = answers

    def runtest(self) -> None:
        """Fails, or is skipped if nothing is decided about this clause."""
        answers = self._answers()
        if isinstance(answers, str):
            raise Unfinished(answers)
        answer = answers[self.name]
        if answer.holds is None:
            pytest.skip(answer.why)
        if not answer.holds:
            raise Fails(answer.why)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The history and its pages; no traceback, for it would show the kit's own code."""
        if isinstance(excinfo.value, Fails | Unfinished):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """What a report calls it."""
        return self.path, None, self.nodeid


class Fails(Exception):
    """A clause is violated; the text is the history, and how to take it again."""


class Unfinished(Exception):
    """The process of the run ended before its end: no clause holds, and none is known to fail."""


def _suite(
    config: pytest.Config, known: tuple[str, ...]
) -> "Callable[[], dict[str, Answer] | str]":
    """What fuzzes, once it is called; it returns a text if it does not reach its end.

    Raises InvalidInput and Ended if there is no such engine.
    """
    from attrs import evolve

    from conformance.files.geometries import parse_geometry
    from conformance.fuzzing.suite import Where
    from conformance.fuzzing.suite_process import Ended, Job, answers
    from spec.vocabulary import InvalidInput

    job = Job(
        where=Where(
            engine=config.getoption(ENGINE),
            python=config.getoption("--kvspec-python"),
            in_process=config.getoption("--kvspec-in-process"),
        ),
        geometry=parse_geometry(config.getoption("--kvspec-geometry") or GEOMETRY),
        alone=config.getoption("--kvspec-geometry") is not None,
        seconds=config.getoption("--kvspec-seconds"),
        seed=config.getoption("--kvspec-seed"),
        known=known,
        hang_seconds=config.getoption("--kvspec-hang-seconds"),
        path=tuple(sys.path),
    )
    answers(evolve(job, seconds=0.0))

    def run() -> "dict[str, Answer] | str":
        try:
            return answers(job)
        except Ended as ended:
            return str(ended)
        except InvalidInput as mistake:  # of the adapter; told once, and no answer of any clause
            return "\n".join((*getattr(mistake, "__notes__", ()), str(mistake)))

    return run
