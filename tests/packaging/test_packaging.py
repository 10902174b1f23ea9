"""The published files: the wheel, the source distribution, and the text of the index page.

Both are built once, by the build backend, in a copy of the checkout. Expected time: 10 seconds.
"""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from attrs import frozen

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("spec", "impl", "conformance")
BUILD = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
COMPLAINT = re.compile(r"warning:|deprecat", re.IGNORECASE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
GENERATED = ("PKG-INFO", "setup.cfg", "kvspec.egg-info/")
"""Files that the backend adds to a source distribution."""


@frozen
class Published:
    """files: of the checkout. sdist, wheel: their files. complaints: warnings of the build."""

    files: frozenset[str]
    sdist: frozenset[str]
    wheel: frozenset[str]
    metadata: Message
    complaints: tuple[str, ...]


def sources() -> frozenset[str]:
    """The files of the project: those that git tracks, or else those of the source distribution."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split("\0")
    else:
        listed = (ROOT / "kvspec.egg-info" / "SOURCES.txt").read_text("utf-8").splitlines()
    kept = (name for name in listed if name and not name.startswith(GENERATED))
    return frozenset(name for name in kept if (ROOT / name).exists())


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """Both distributions, built in a copy so that the checkout does not change."""
    copy, files = tmp_path_factory.mktemp("published"), sources()
    for name in files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    built = subprocess.run(
        [sys.executable, "-W", "always", "-c", BUILD],
        cwd=copy,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )
    assert 0 == built.returncode, built.stdout
    (source,), (wheel,) = (copy / "dist").glob("*.tar.gz"), (copy / "dist").glob("*.whl")
    with tarfile.open(source) as archive:
        inside = [member.name.partition("/")[2] for member in archive if member.isfile()]
    with zipfile.ZipFile(wheel) as zipped:
        names = zipped.namelist()
        (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(zipped.read(about))
    return Published(
        files=files,
        sdist=frozenset(name for name in inside if not name.startswith(GENERATED)),
        wheel=frozenset(names),
        metadata=metadata,
        complaints=tuple(line for line in built.stdout.splitlines() if COMPLAINT.search(line)),
    )


def description(published: Published) -> str:
    """The text of the index page."""
    text = published.metadata.get_payload(decode=True)
    assert isinstance(text, bytes)
    return text.decode("utf-8")


def test_the_build_complains_of_nothing(published: Published) -> None:
    """The build gives no warning and no deprecation, which could fail with the next backend."""
    assert () == published.complaints


def test_the_source_distribution_is_the_whole_project(published: Published) -> None:
    """The source distribution has every file of a clone, and no other file."""
    assert published.files == published.sdist
    assert {"LICENSE", "Makefile", "requirements.lock", ".ci/run"} <= published.sdist


def test_the_wheel_has_the_packages_with_their_data_and_nothing_else(published: Published) -> None:
    """The wheel has sources, type markers, schemas and the Promela model, and no other file."""
    ours = {name for name in published.files if name.split("/")[0] in PACKAGES}
    wanted = {
        name.removeprefix("conformance/entry-point/") for name in ours if not name.endswith(".lock")
    }
    about = {name for name in published.wheel if ".dist-info/" in name}

    assert wanted == published.wheel - about
    assert {f"{package}/py.typed" for package in PACKAGES} <= wanted
    assert {".py", ".typed", ".json", ".pml"} == {Path(name).suffix for name in wanted}
    assert any(name.endswith("/licenses/LICENSE") for name in about)


def test_the_metadata_say_whose_it_is_and_under_which_terms(published: Published) -> None:
    """The metadata have an SPDX expression and the text of the licence, but no classifier."""
    said = published.metadata

    assert ("Apache-2.0", "LICENSE") == (said["License-Expression"], said["License-File"])
    assert "The kvspec developers" == said["Author"]
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")
    assert said["Keywords"]
    assert not [one for one in said.get_all("Classifier", []) if one.startswith("License")]


def test_the_index_page_has_no_link_that_leads_nowhere(published: Published) -> None:
    """The index page has the relative links of the README as plain paths, and explains them."""
    readme, text = (ROOT / "README.md").read_text("utf-8"), description(published)
    relative = {target for target in LINK.findall(readme) if ":" not in target}

    assert [] == [target for target in LINK.findall(text) if ":" not in target]
    assert relative
    assert relative <= {target for target in relative if target in text}
    assert {target for target in relative if (ROOT / target).is_file()} <= published.sdist
    assert "are paths of the source distribution" in text


def test_the_index_page_is_the_readme_but_for_its_links(published: Published) -> None:
    """The change of the links leaves every block of code as it is."""
    fence = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
    readme = (ROOT / "README.md").read_text("utf-8")

    assert fence.findall(readme) == fence.findall(description(published))
    assert "text/markdown" in published.metadata["Description-Content-Type"]
