"""The files of a set of vectors: recordings, the same in plain words, a manifest, and statistics.

Their contents depend on nothing but the vectors: they hold no date, path or name of a user.
"""

import hashlib
import json
import shutil
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

import spec
from conformance.files import atomic
from conformance.files.geometries import NEEDED, geometry_to_data
from conformance.recordings.format import Header, header_to_text, line_to_data, line_to_text
from conformance.vectors.build import Cover, Vector
from conformance.vectors.reach import is_pair
from spec.vocabulary import InvalidInput

VERSION: Final = 1
MANIFEST: Final = "manifest.json"
STATISTICS: Final = "statistics.md"
PARTIAL: Final = ".kvspec-*.partial"
"""Glob of the temporary folders, which hold files that are not in place yet."""


def write(covers: Sequence[Cover], folder: Path) -> None:
    """Write all files. Raises InvalidInput if the folder has other files or cannot be written to.

    The files are written to a temporary folder first. The old manifest is removed before any file
    moves, and the new one moves last: a folder with a manifest is complete. The next call removes
    any temporary folder that a crash has left.
    """
    every = dict(contents(covers))
    try:
        check(folder, known=every)
        folder.mkdir(parents=True, exist_ok=True)
        for left in _partials(folder):
            shutil.rmtree(left)
        with _beside(folder) as partial:
            for name, text in every.items():
                atomic.write(partial / name, text)
            (folder / MANIFEST).unlink(missing_ok=True)
            for name in every:
                (partial / name).replace(folder / name)
    except OSError as error:
        raise InvalidInput(
            str(folder),
            seen=error.strerror or type(error).__name__,
            allowed="a folder to write to",
            remedy="Make room, or name another.",
        ) from None


def check(folder: Path, *, known: Container[str] | None = None) -> None:
    """Raise InvalidInput if the folder has files that are not vectors.

    known: the names of all vector files. Without them any folder with a manifest of ours passes, so
    that a wrong folder is refused before the vectors are built, which takes a while.
    """
    left = _partials(folder)
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    there -= {path.name for path in left}
    ours = any(_is_manifest(one / MANIFEST) for one in (folder, *left))
    if ours:
        there = {name for name in there if known is not None and name not in known}
    others = sorted(there)
    if others:
        raise InvalidInput(
            str(folder),
            seen=f"{len(others)} other files, {others[0]} the first",
            allowed="a new or empty folder, or one with the same vectors",
            remedy="Name another folder, or empty this one.",
        )


def _partials(folder: Path) -> list[Path]:
    """The temporary folders that an interrupted call has left here."""
    return [path for path in folder.glob(PARTIAL) if path.is_dir()]


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A temporary folder in this one, removed at the end unless it alone has the manifest."""
    partial = atomic.beside(folder / "any")
    partial.mkdir()
    try:
        yield partial
    finally:
        if not _is_manifest(partial / MANIFEST) or _is_manifest(folder / MANIFEST):
            shutil.rmtree(partial)


def _is_manifest(path: Path) -> bool:
    """Whether a file is a manifest of vectors: other programs write files of this name too."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.get("kvspec") == "vectors"


def contents(covers: Sequence[Cover]) -> Iterator[tuple[str, str]]:
    """The name and the text of every file, the manifest last."""
    entries = []
    for cover in covers:
        for vector in cover.vectors:
            recording, words = in_json(vector), in_words(vector)
            yield f"{vector.name}.jsonl", recording
            yield f"{vector.name}.txt", words
            entries.append(
                {
                    "name": vector.name,
                    "suite": cover.suite.name,
                    "actions": len(vector.lines),
                    "sha256": {"jsonl": _digest(recording), "txt": _digest(words)},
                    "covers": sorted(vector.covers),
                }
            )
    yield STATISTICS, statistics(covers)
    manifest = {
        "kvspec": "vectors",
        "version": VERSION,
        "spec_version": spec.SPEC_VERSION,
        "suites": [_suite(cover) for cover in covers],
        "vectors": entries,
    }
    yield MANIFEST, json.dumps(manifest, indent=1) + "\n"


def in_json(vector: Vector) -> str:
    """A vector as a recording."""
    return header_to_text(vector.header) + "".join(map(line_to_text, vector.lines))


def in_words(vector: Vector) -> str:
    """A vector as lines of words, for readers without a JSON parser, in the order of the recording.

    A list is written as its length and its entries, true as 1, false as 0, and null as a dash.
    """
    header = vector.header
    told = [["kvspec", "vectors", VERSION, spec.SPEC_VERSION], ["geometry", *_sizes(header)]]
    told.append(["limits", *attrs.astuple(header.limits), header.cleanup.value])
    for line in vector.lines:
        data = line_to_data(line)
        refused, result = data.pop("refused", None), data.pop("result", None)
        seen = data.pop("saw", {})
        told.append(["do", *(word for value in data.values() for word in words(value))])
        if isinstance(refused, list):
            told.append(["refused", *refused])
        if result is not None:
            told.append(["result", *words(result)])
        assert isinstance(seen, dict)
        for field, values in seen.items():
            by_index = values if isinstance(values, dict) else {"0": values}
            told += [["saw", field, at, *words(value)] for at, value in by_index.items()]
        told.append(["end"])
    return "".join(" ".join(map(str, line)) + "\n" for line in told)


def words(value: object) -> list[object]:
    """A JSON value as words."""
    match value:
        case None:
            return ["-"]
        case bool():
            return [int(value)]
        case list() | tuple():
            return [len(value), *(word for item in value for word in words(item))]
        case dict():
            return [word for item in value.values() for word in words(item)]
        case _:
            return [value]


def statistics(covers: Sequence[Cover]) -> str:
    """The statistics in Markdown: tables of covered items, and lists of the unreachable ones."""
    rows = [(cover.suite.name, numbers(cover)) for cover in covers]
    total = {name: sum(row[name] for _, row in rows) for name in rows[0][1]}
    lines = [
        "# What the vectors cover",
        "",
        f"Written by `kvspec vectors`, of the specification {spec.SPEC_VERSION}. Everything that a",
        "history can show at the geometry of its suite is covered, unless a number says otherwise.",
        "",
        f"| suite | {' | '.join(total)} |",
        f"|---|{'---|' * len(total)}",
        *(_row(name, *row.values()) for name, row in (*rows, ("all", total))),
    ]
    for cover in covers:
        lines += ["", f"## {cover.suite.name}", "", "| outcome or corner | vectors |", "|---|---|"]
        lines += [_row(item, times) for item, times in cover.counts.items() if not is_pair(item)]
        lines += ["", "What cannot be reached:", ""]
        lines += [f"- {item}: {why}" for item, why in cover.unreachable.items()]
    return "\n".join(lines) + "\n"


def numbers(cover: Cover) -> dict[str, int]:
    """The counts of a suite, one for each column of the table."""
    pairs = sum(map(is_pair, cover.counts))
    return {
        "states": len(cover.reach.steps),
        "moves": sum(map(len, cover.reach.steps)),
        "outcomes and corners": len(cover.counts) - pairs,
        "pairs": pairs,
        "not covered": len(cover.missing),
        "not reachable": len(cover.unreachable),
        "vectors": len(cover.vectors),
        "actions": sum(len(vector.lines) for vector in cover.vectors),
    }


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _suite(cover: Cover) -> dict[str, object]:
    instance = cover.suite.instance
    return {
        "name": cover.suite.name,
        "level": cover.suite.level,
        "geometry": geometry_to_data(instance.geometry),
        "limits": attrs.asdict(instance.limits),
        "cleanup": instance.cleanup.value,
        "actions": cover.suite.names,
        "counts": numbers(cover),
        "missing": cover.missing,
        "unreachable": cover.unreachable,
    }


def _sizes(header: Header) -> tuple[int, ...]:
    """pages, page_size, slots, pages_per_seq, and the window if there is one."""
    sizes = tuple(getattr(header.geometry, name) for name in NEEDED)
    window = header.geometry.window
    return sizes if window is None else (*sizes, window)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
