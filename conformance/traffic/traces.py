"""Real serving traffic: strict readers of two trace formats, and the rule that generates prompts.

A trace holds lengths and arrivals and no text. The rule:

- A length of n tokens becomes `ceil(n / divisor)`, and a request generates at least one token.
- `azure` has no prefix information: the divisor is 16, and a token is a function of the index of
  its request and its position.
- `mooncake` names the 512-token blocks of each prompt, where equal ids mean an equal prefix: the
  divisor is `512 / page_size` (32 for pages of 16), so that one block becomes one page, and a token
  is a function of its block's id and its offset there. Equal ids therefore mean equal pages.

The order of the file is kept. A malformed row stops the reading with `InvalidInput`, which names
the file and the line; rows are read one by one, so earlier rows have been returned already.
"""

import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, NoReturn

from attrs import frozen

from spec.vocabulary.errors import InvalidInput

FORMATS: Final = ("azure", "mooncake")
BLOCK_TOKENS: Final = 512
"""Tokens in a Mooncake prefix block, before scaling."""
AZURE_DIVISOR: Final = 16
MOST_TOKENS: Final = 2**24
"""The largest accepted length: beyond the context of any model served today."""
MOST_BYTES: Final = 2**20
"""The longest accepted line, in bytes."""

_AZURE_HEADER: Final = "TIMESTAMP,ContextTokens,GeneratedTokens"
_STAMP: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.(\d{1,9})", re.ASCII)
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_MOONCAKE_KEYS: Final = ("timestamp", "input_length", "output_length", "hash_ids")
_MASK: Final = 2**64 - 1


@frozen
class TraceRequest:
    """One row of a trace, before scaling.

    arrival_seconds: since the first row (azure) or the start of the trace (mooncake).
    prompt_tokens: at least 1. new_tokens: generated, 0 or more. blocks: the id of each 512-token
    block of the prompt, the last perhaps in part; None where the format has none.
    """

    arrival_seconds: float
    prompt_tokens: int
    new_tokens: int
    blocks: tuple[int, ...] | None

    @property
    def lengths(self) -> tuple[int, int]:
        """Prompt and generated tokens, before scaling."""
        return self.prompt_tokens, self.new_tokens


@frozen
class Totals:
    """What a trace amounts to: requests, tokens, and the most tokens in one request."""

    requests: int
    prompt_tokens: int
    new_tokens: int
    longest: int


def totals(lengths: Iterable[tuple[int, int]]) -> Totals:
    """The totals of (prompt, generated) lengths, scaled or not."""
    requests = prompts = news = longest = 0
    for prompt, new in lengths:
        requests, prompts, news = requests + 1, prompts + prompt, news + new
        longest = max(longest, prompt + new)
    return Totals(requests, prompts, news, longest)


def load(path: Path | str, format: str) -> Iterator[TraceRequest]:
    """Read a trace row by row, in the order of the file.

    Raises InvalidInput at once for an unknown format; while reading, for a file that cannot be
    read, is empty, or has a malformed row. A last line without a line feed is read like any other:
    a line that was cut inside its last number cannot be distinguished from a whole one.
    """
    if format not in FORMATS:
        raise InvalidInput(
            "format", seen=format, allowed=" or ".join(FORMATS), remedy="Name the trace's format."
        )
    return _azure(Path(path)) if format == "azure" else _mooncake(Path(path))


def scale(
    request: TraceRequest,
    *,
    divisor: int | None = None,
    new_divisor: int | None = None,
    page_size: int = 16,
) -> tuple[int, int]:
    """The (prompt length, new tokens) to replay, each at least 1, by the rule of this module.

    A `divisor` replaces the rule's own, and a `new_divisor` that of new tokens. Raises InvalidInput
    if blocks would not scale evenly.
    """
    by = _divisor(request.blocks, divisor, page_size)
    new = by if new_divisor is None else new_divisor
    return -(-request.prompt_tokens // by), max(1, -(-request.new_tokens // new))


def prompt_tokens(
    index: int,
    length: int,
    blocks: tuple[int, ...] | None,
    *,
    divisor: int | None = None,
    page_size: int = 16,
    vocabulary: int = 32768,
) -> tuple[int, ...]:
    """`length` tokens from 0 to `vocabulary - 1`, the same for the same arguments.

    index: of the request in its trace. length: scaled, with the same `divisor` and `page_size`.
    blocks: as in the trace; if given, `index` has no influence. Raises InvalidInput if the blocks
    do not cover the length.
    """
    by = _divisor(blocks, divisor, page_size)
    if blocks is None:
        return tuple(_token(2 * index, offset, vocabulary) for offset in range(length))
    size = BLOCK_TOKENS // by
    if len(blocks) != -(-length // size):
        raise InvalidInput(
            "prompt_tokens.blocks",
            seen=f"{len(blocks)} blocks for {length} tokens",
            allowed=f"one block for every {size} tokens, the last perhaps in part",
            remedy="Scale the length with the same divisor and page size.",
        )
    return tuple(
        _token(2 * blocks[position // size] + 1, position % size, vocabulary)
        for position in range(length)
    )


def _divisor(blocks: tuple[int, ...] | None, divisor: int | None, page_size: int) -> int:
    """The divisor of lengths; with blocks, it divides a block evenly."""
    given = page_size if divisor is None else divisor
    if given < 1 or (blocks is not None and BLOCK_TOKENS % given != 0):
        raise InvalidInput(
            "page_size" if divisor is None else "divisor",
            seen=given,
            allowed=f"1 or more and, where there are blocks, what divides {BLOCK_TOKENS} evenly",
            remedy=f"Use a power of two up to {BLOCK_TOKENS}.",
        )
    if divisor is not None:
        return divisor
    return lengths_divided_by("azure" if blocks is None else "mooncake", page_size=page_size)


def lengths_divided_by(format: str, *, page_size: int) -> int:
    """The divisor of the rule of this module."""
    return AZURE_DIVISOR if format == "azure" else BLOCK_TOKENS // page_size


def _token(stream: int, offset: int, vocabulary: int) -> int:
    """One token: the splitmix64 mix of a stream (even: request, odd: block) and an offset."""
    mixed = (stream * 0x9E3779B97F4A7C15 + offset * 0xD1B54A32D192ED03 + 1) & _MASK
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ mixed >> 31) % vocabulary


def _bad(path: Path, line: int, *, seen: str, allowed: str) -> NoReturn:
    clipped = seen if len(seen) <= 80 else f"{seen[:77]}..."
    raise InvalidInput(
        f"{path}, line {line}",
        seen=clipped,
        allowed=allowed,
        remedy="Repair or remove the row, or check that the file is whole.",
    )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Each line with its number from 1, without its line feed."""
    number = 0
    try:
        with path.open("rb") as file:
            while raw := file.readline(MOST_BYTES + 1):
                number += 1
                if len(raw) > MOST_BYTES:
                    _bad(path, number, seen="a longer line", allowed=f"{MOST_BYTES} bytes a line")
                try:
                    text = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    _bad(path, number, seen=str(error), allowed="UTF-8 text")
                yield number, text.removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise InvalidInput(
            str(path),
            seen=error.strerror or type(error).__name__,
            allowed="a file that can be read",
            remedy="Check the path.",
        ) from None
    if number == 0:
        _bad(path, 1, seen="an empty file", allowed="at least one request")


def _length(path: Path, line: int, name: str, value: object, *, least: int) -> int:
    if type(value) is not int or not least <= value <= MOST_TOKENS:
        allowed = f"an integer from {least} to {MOST_TOKENS}"
        _bad(path, line, seen=f"{name} = {value!r}", allowed=allowed)
    return value


def _azure(path: Path) -> Iterator[TraceRequest]:
    rows = _lines(path)
    line, header = next(rows)
    if header != _AZURE_HEADER:
        _bad(path, line, seen=header, allowed=f"the header {_AZURE_HEADER}")
    first: tuple[datetime, float] | None = None
    for line, text in rows:
        fields = text.split(",")
        if len(fields) != 3:
            _bad(path, line, seen=text, allowed=f"the three columns {_AZURE_HEADER}")
        whole, part = _stamp(path, line, fields[0])
        first = first or (whole, part)
        prompt, new = (int(word) if _INTEGER.fullmatch(word) else word for word in fields[1:])
        yield TraceRequest(
            arrival_seconds=(whole - first[0]).total_seconds() + (part - first[1]),
            prompt_tokens=_length(path, line, "ContextTokens", prompt, least=1),
            new_tokens=_length(path, line, "GeneratedTokens", new, least=0),
            blocks=None,
        )
    if first is None:
        _bad(path, line + 1, seen="no row after the header", allowed="at least one request")


def _stamp(path: Path, line: int, text: str) -> tuple[datetime, float]:
    """The whole second, and the fraction of a second after it."""
    match = _STAMP.fullmatch(text)
    try:
        whole = datetime.fromisoformat(match[1]) if match else None
    except ValueError:
        whole = None
    if match is None or whole is None:
        _bad(path, line, seen=text, allowed="a TIMESTAMP such as 2023-11-16 18:15:46.6805900")
    return whole, float(f"0.{match[2]}")


def _mooncake(path: Path) -> Iterator[TraceRequest]:
    for line, text in _lines(path):
        row = _object(path, line, text)
        prompt = _length(path, line, "input_length", row["input_length"], least=1)
        yield TraceRequest(
            arrival_seconds=_milliseconds(path, line, row["timestamp"]) / 1000,
            prompt_tokens=prompt,
            new_tokens=_length(path, line, "output_length", row["output_length"], least=0),
            blocks=_blocks(path, line, row["hash_ids"], need=-(-prompt // BLOCK_TOKENS)),
        )


def _object(path: Path, line: int, text: str) -> dict[str, object]:
    """The JSON object of one line, with exactly the known keys, each once."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len({key for key, _ in pairs}) != len(pairs):
            _bad(path, line, seen=text, allowed="each key once")
        return dict(pairs)

    try:
        row = json.loads(text, object_pairs_hook=unique)
    except InvalidInput:
        raise
    except (ValueError, RecursionError):
        _bad(path, line, seen=text, allowed="one whole JSON object")
    if not isinstance(row, dict) or set(row) != set(_MOONCAKE_KEYS):
        _bad(path, line, seen=text, allowed=f"an object with the keys {', '.join(_MOONCAKE_KEYS)}")
    return row


def _milliseconds(path: Path, line: int, value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        allowed = "an integer of milliseconds, 0 or more"
        _bad(path, line, seen=f"timestamp = {value!r}", allowed=allowed)
    return value


def _blocks(path: Path, line: int, value: object, *, need: int) -> tuple[int, ...]:
    whole = isinstance(value, list) and all(type(block) is int for block in value)
    if not isinstance(value, list) or not whole or not all(0 <= block < 2**63 for block in value):
        _bad(path, line, seen=f"hash_ids = {value!r}", allowed="a list of integers, 0 or more")
    if len(value) != need:
        seen = f"{len(value)} hash_ids"
        _bad(path, line, seen=seen, allowed=f"{need}: one for every {BLOCK_TOKENS} prompt tokens")
    return tuple(value)
