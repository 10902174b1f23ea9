"""Every name that an output may have, with every name of a folder around it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from conformance.cli.options import check_distinct, input_file, output_file, output_folder
from spec.vocabulary import InvalidInput


def _plain(place: Path) -> Path:
    return place


def _through_a_linked_folder(place: Path) -> Path:
    link = place.parent.parent / "linked"
    if not link.exists():
        link.symlink_to(place.parent, target_is_directory=True)
    return link / place.name


def _linked(place: Path) -> Path:
    link = place.parent.parent / "link.jsonl"
    if not link.is_symlink():
        link.symlink_to(place)
    return link


def _roundabout(place: Path) -> Path:
    return place.parent / ".." / place.parent.name / place.name


def _relative(place: Path) -> Path:
    return Path(os.path.relpath(place))


NAMES: Final = (_plain, _through_a_linked_folder, _linked, _roundabout, _relative)
Name = Callable[[Path], Path]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in a folder of a current folder."""
    monkeypatch.chdir(tmp_path)
    found = tmp_path / "folder" / "file.jsonl"
    found.parent.mkdir()
    found.touch()
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("around", [one for one in NAMES if one is not _linked])
@pytest.mark.parametrize("is_there", [True, False])
def test_no_output_lies_in_a_named_folder_by_any_name(
    place: Path, name: Name, around: Name, *, is_there: bool
) -> None:
    """An output is refused if it lies in a named folder, however both are named."""
    output, folder = str(name(place)), str(around(place).parent)
    if not is_there:
        place.unlink()

    with pytest.raises(InvalidInput, match="a file in "):
        check_distinct([output_file(output), output_folder(folder)])


def test_files_that_are_not_the_same_are_accepted(place: Path) -> None:
    """Different files are accepted beside a folder that has neither."""
    beside = place.parent.parent

    check_distinct(
        [
            output_file(str(beside / "out.jsonl")),
            input_file(str(place)),
            output_file(str(beside / "other.jsonl")),
            output_folder(str(beside / "elsewhere")),
        ]
    )
