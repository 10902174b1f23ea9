"""What a command writes for people beside its result: written whole, not lost in silence."""

from conformance.cli.options import File
from conformance.files import atomic
from spec.vocabulary import InvalidInput


def put(target: File, text: str) -> InvalidInput | None:
    """Write a file whole; what to raise once the verdict is known, if it cannot be written."""
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
