"""The answers of an engine's process: one answer for each line of the kit."""

import platform
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import spec
from conformance.engines.registry import load_engine
from conformance.files.histories import step_from_data
from conformance.files.serialisation import decoder
from conformance.history import Attend, PoisonDead, Step
from conformance.isolation.wire import (
    VERSION,
    Answer,
    Shown,
    failed_to_data,
    invalid_to_data,
    profile_to_data,
    result_to_data,
)
from conformance.lockstep.called import ASKED, OPTIONAL, made_at
from conformance.protocol import Engine, EngineFailed
from conformance.recordings.fields import plain_result
from spec.vocabulary import CleanupMode, Geometry, InvalidInput, Limits, Refused, Request

REFUSED: Final = frozenset({"invalid", "missing"})
"""The keys of an answer that reports a missing engine."""


class Served:
    """The engines of one factory, one at a time: a new one ends the one before."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._make: Callable[..., Engine] | None = None
        self._engine: Engine | None = None
        self._shown = Shown()

    def hello(self) -> Answer:
        """The first line; it reports a missing engine."""
        return {
            "kvspec": "engine",
            "version": VERSION,
            "spec_version": spec.SPEC_VERSION,
            "python": platform.python_version(),
            **_unless_refused(self._load),
        }

    def lacks(self, hello: Answer) -> bool:
        """Whether the first line reports that nothing can be served."""
        return not REFUSED.isdisjoint(hello)

    def answer(self, data: dict[str, Any]) -> Answer:
        """Execute a line. Exceptions and exits of the engine become answers."""
        try:
            match data:
                case {"new": given}:
                    return _unless_refused(lambda: self._new(given))
                case {"expected": prefix}:
                    return {"value": self._now().observe().expected(tuple(prefix))}
                case {"serve": requests}:
                    return self._serve(requests)
                case {"show": str(name)} if name in ASKED:
                    return {"value": getattr(self._now(), name)()}
                case _:
                    return self._take(step_from_data(data))
        except InvalidInput as error:
            return {"invalid": invalid_to_data(error)}
        except EngineFailed as error:
            return {"failed": failed_to_data(error)}
        except (Exception, KeyboardInterrupt) as error:  # no signal comes here
            return {"failed": {"wrong": f"the engine raised {type(error).__name__}: {error}"}}

    def _load(self) -> Answer:
        self._make = load_engine(self._name)
        return {}

    def _new(self, given: Mapping[str, Any]) -> Answer:
        assert self._make is not None
        self._engine, self._shown = None, Shown()  # the old one may hold what the new one needs
        geometry = decoder(Geometry)(given["geometry"])
        limits, cleanup = decoder(Limits)(given["limits"]), CleanupMode(given["cleanup"])
        self._engine = made_at(geometry, partial(self._make, geometry, limits, cleanup))
        offers = [name for name, kind in OPTIONAL.items() if isinstance(self._engine, kind)]
        return {
            "profile": profile_to_data(self._engine.profile),
            "offers": offers,
            **self._shown.news(self._engine.observe()),
        }

    def _take(self, step: Step) -> Answer:
        engine = self._now()
        answer: Answer = {}
        match step:
            case PoisonDead(kind):
                engine.poison(kind)  # type: ignore[attr-defined]
            case Attend():
                read = engine.attend()  # type: ignore[attr-defined]
                return {"value": {slot: dict(cells) for slot, cells in read.items()}}
            case _:
                try:
                    result = engine.apply(step)
                except Refused as refused:
                    answer["refused"] = sorted(reason.name for reason in refused.reasons)
                except EngineFailed as error:
                    answer["failed"] = failed_to_data(error)
                else:
                    if result is not None:
                        answer["result"] = result_to_data(result)
        return {**answer, **self._shown.news(engine.observe())}

    def _serve(self, given: Sequence[Any]) -> Answer:
        engine, answer = self._now(), Answer()
        try:
            outputs = engine.serve(list(map(decoder(Request), given)))  # type: ignore[attr-defined]
            answer["value"] = plain_result(tuple(outputs))
        except Refused as refused:
            answer["refused"] = sorted(reason.name for reason in refused.reasons)
        return {**answer, **self._shown.news(engine.observe())}

    def _now(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("there is no engine; begin with new")
        return self._engine


def _unless_refused(work: Callable[[], Answer]) -> Answer:
    """The result of the work; bad input or a missing module becomes an answer, not a finding."""
    try:
        return work()
    except InvalidInput as error:
        return {"invalid": invalid_to_data(error)}
    except ModuleNotFoundError as error:
        return {"missing": f"no module {error.name}"}
    except KeyboardInterrupt:
        return {"missing": "KeyboardInterrupt, which no signal has caused"}
