"""A recorder that wraps an adapter and writes a line for each action."""

from typing import TextIO

from conformance.protocol import Action, Engine, Profile, Result
from conformance.recordings.fields import changes, fields_of, plain_result, saw
from conformance.recordings.format import Line, header_of, header_to_text, line_to_text
from spec.view import View
from spec.vocabulary import Refused


class Recorder:
    """An engine that writes each action, with all changes of its view, as a line of a recording.

    See `conformance.protocol.Engine`. An action that raises anything but Refused is not written,
    since its effect is unknown.
    """

    def __init__(self, engine: Engine, out: TextIO) -> None:
        self._engine, self._out = engine, out
        self._seen = engine.observe()
        self._fields = fields_of(self._seen)
        out.write(header_to_text(header_of(engine.profile, shows=tuple(self._fields))))

    @property
    def profile(self) -> Profile:
        """The profile of the engine."""
        return self._engine.profile

    def apply(self, action: Action) -> Result:
        """Take an action and write its line. Raises whatever the engine raises."""
        try:
            result = self._engine.apply(action)
        except Refused as refused:
            self._write(action, refused, None)
            raise
        self._write(action, None, result)
        return result

    def observe(self) -> View:
        """The view of the engine after the last recorded action."""
        return self._seen

    def _write(self, action: Action, refused: Refused | None, result: Result) -> None:
        before, seen = self._fields, self._engine.observe()
        self._seen.require_same_fields(seen)
        self._seen, self._fields = seen, fields_of(seen)
        observed = saw(self._fields, changes(before, self._fields))
        reasons = None if refused is None else refused.reasons
        self._out.write(line_to_text(Line(action, reasons, plain_result(result), observed)))
