"""Pages that a command writes beside its result: written whole, or the failure is reported."""

from conformance.cli.options import File
from conformance.files import atomic
from spec.vocabulary import InvalidInput


def put(target: File, text: str) -> InvalidInput | None:
    """Write a file whole; return the error to raise after the verdict, if it cannot be written."""
    try:
        atomic.write(target, text)
    except OSError as error:
        return InvalidInput(
            str(target),
            seen=error.strerror or type(error).__name__,
            allowed="a file that can be written",
            remedy="Make room or name another, and run it again.",
        )
    return None
