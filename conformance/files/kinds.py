"""The kinds of files that kvspec writes, recognised by their first bytes."""

import json
import re
from typing import BinaryIO, Final

from spec.vocabulary import InvalidInput

HEAD: Final = 1 << 16
"""How many bytes are read."""
KINDS: Final = {
    "history": ("a history of steps", "kvspec rerun takes it."),
    "recording": ("a recording of an engine", "kvspec validate judges it."),
    "itf": ("a trace in ITF", "kvspec validate judges it."),
    "vectors": ("a manifest of test vectors", "kvspec validate judges the .jsonl files beside it."),
    "words": ("a test vector in words", "kvspec validate judges the .jsonl file of the same name."),
    "result": ("the JSON result of a command", "Name the file that the command has read."),
    "results": ("a file of kept results", "It is for --results."),
    "checkpoint": ("an archive, as of kvspec explore", "It is for --checkpoint."),
}
"""From each kind to its description, and the command that reads it."""
_ENCODED: Final = (
    (b"\x1f\x8b", "a gzip file", "Decompress it first: zcat FILE."),
    (b"\xef\xbb\xbf", "a UTF-8 byte order mark", "Write the file without it."),
)
"""The first bytes of files in another encoding, what they are, and the remedy."""
_KEY: Final = re.compile(rb'\s*\{\s*"(kvspec|stamp|command|#meta|vars|states)"\s*:\s*("?)([^",]*)')


def kind_of(head: bytes) -> str | None:
    """The kind of a file that begins with these bytes; None if it is none of ours."""
    if head.startswith(b"PK\x03\x04"):
        return "checkpoint"
    if head.startswith(b"kvspec vectors "):
        return "words"
    line = head.split(b"\n", 1)[0]
    found = _KEY.match(head)
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict) and isinstance(data.get("kvspec"), str):
        return data["kvspec"] if data["kvspec"] in {"history", "recording", "vectors"} else None
    if isinstance(data, dict) and {"vars", "states"} <= data.keys():
        return "itf"
    return None if found is None else _by_first_key(found[1], found[3])


def require(file: BinaryIO, kind: str, *, name: str) -> None:
    """Raises InvalidInput if the file is one of ours of another kind, or is encoded otherwise.

    Reads from its start.
    """
    head = file.read(HEAD)
    file.seek(0)
    for start, what, remedy in _ENCODED:
        if head.startswith(start):
            raise InvalidInput(name, seen=what, allowed=KINDS[kind][0], remedy=remedy)
    found = kind_of(head)
    if found is not None and found != kind:
        what, remedy = KINDS[found]
        raise InvalidInput(name, seen=what, allowed=KINDS[kind][0], remedy=remedy)


def _by_first_key(key: bytes, value: bytes) -> str | None:
    match key:
        case b"kvspec":
            return "vectors" if value == b"vectors" else None
        case b"stamp":
            return "results"
        case b"command":
            return "result"
        case _:
            return "itf"
