"""An engine in a package of its own, installed beside the core of kvspec without jax."""

import ast
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

from conformance.verdict import UNDECIDED

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = ROOT / "tests" / "packaging" / "foreign_engine"
NEEDED = ("attrs", "hypothesis", "sortedcontainers", "rich", "markdown-it-py", "mdurl", "Pygments")
"""The dependencies of the core, and their dependencies."""
BUILDS = ("setuptools",)
TESTS = ("pytest", "pluggy", "iniconfig", "packaging", "pip")
ACTION = ROOT / ".github" / "actions" / "kvspec" / "action.yml"
ADAPTER_LINES = 30


class Elsewhere:
    """A virtual environment with the core of kvspec and a foreign engine, and without jax."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "env", with_pip=False, symlinks=True)
        self.folder, self.bin = folder, folder / "env" / "bin"
        (self.packages,) = (folder / "env" / "lib").glob("python3*/site-packages")
        for name in (*NEEDED, *BUILDS, *TESTS):
            self._lend(distribution(name))
        sources = folder / "sources"
        for package in ("spec", "conformance", "impl"):
            shutil.copytree(ROOT / package, sources / "kvspec" / package, ignore=_caches)
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, sources / "kvspec")
        shutil.copytree(ROOT / ".github", sources / "kvspec" / ".github")
        shutil.copytree(FOREIGN, sources / "foreign", ignore=_caches)
        self._install(sources / "kvspec", sources / "foreign")

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command of this environment in an empty folder."""
        here = self.folder / "here"
        here.mkdir(exist_ok=True)
        program = str(self.bin / words[0])
        return subprocess.run(
            [program, *words[1:]],
            cwd=here,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder)} | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def _lend(self, installed: Distribution) -> None:
        """Link the packages installed for the tests into this environment, without any download."""
        paths = [path for path in installed.files or () if path.parts[0] != ".."]
        for top in sorted({path.parts[0] for path in paths} - {"__pycache__"}):
            (self.packages / top).symlink_to(Path(str(installed.locate_file(top))))

    def _install(self, *sources: Path) -> None:
        words = ("install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
        python = str(self.bin / "python")
        subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python,
             *words, *map(str, sources)],
            check=True,
        )  # fmt: skip


def _caches(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "__pycache__"]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """The environment, made once, in which pip installs only from this machine."""
    folder = tmp_path_factory.mktemp("elsewhere")
    yield Elsewhere(folder)
    shutil.rmtree(folder)


def test_the_adapter_of_the_package_is_short() -> None:
    """An adapter of thirty lines is enough to test the allocator."""
    source = (FOREIGN / "foreign_engine.py").read_text(encoding="utf-8")
    (adapter,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == "Adapter"
    )
    lines = source.splitlines()[adapter.lineno - 1 : adapter.end_lineno]

    assert ADAPTER_LINES >= len([line for line in lines if line.strip()])


def test_there_is_no_jax_elsewhere(elsewhere: Elsewhere) -> None:
    """The environment has our packages, and neither jax nor numpy."""
    for module in ("jax", "numpy"):
        assert "ModuleNotFoundError" in elsewhere.run("python", "-c", f"import {module}").stderr
    where = elsewhere.run("python", "-c", "import spec, foreign_engine as f; print(f.__file__)")
    assert str(elsewhere.packages) in where.stdout


@pytest.mark.deep
def test_a_package_is_fuzzed_by_the_name_that_it_gives_its_engine(elsewhere: Elsewhere) -> None:
    """The name of an installed engine is enough: a right one holds, and a planted leak is found."""
    words = ("kvspec", "fuzz", "--engine", "blocks", "--seed", "1", "--seconds")
    right = elsewhere.run(*words, "4")
    if right.returncode == UNDECIDED:  # four seconds may be too few steps on a busy machine
        right = elsewhere.run(*words, "40")
    wrong = elsewhere.run(*words, "60", FOREIGN_BUG="1")

    assert (0, True) == (right.returncode, "kvspec fuzz: holds (sampled)" in right.stdout)
    assert 1 == wrong.returncode
    assert "FAILS: CONS: counts[15] is 1, should be 0" in wrong.stdout
    again = elsewhere.run("kvspec", "rerun", "--trust", _history(wrong.stdout), FOREIGN_BUG="1")
    assert (1, True) == (again.returncode, "FAILS: CONS" in again.stdout)


def test_an_unknown_name_is_answered_with_those_there_are(elsewhere: Elsewhere) -> None:
    """The error for an unknown name lists the installed engines."""
    unknown = elsewhere.run("kvspec", "fuzz", "--engine", "bloks")

    assert 2 == unknown.returncode
    assert "saw 'bloks'" in unknown.stderr
    assert "installed engine (here: blocks)" in unknown.stderr


def test_our_engine_needs_an_extra_elsewhere(elsewhere: Elsewhere) -> None:
    """Without jax the default engine is refused with the extra to install."""
    ours = elsewhere.run("kvspec", "fuzz")

    assert (2, True) == (ours.returncode, "pip install 'kvspec[jax]'" in ours.stderr)


@pytest.mark.deep
def test_the_action_runs_the_suite_that_the_package_brings_to_pytest(elsewhere: Elsewhere) -> None:
    """The step of the action, with the variables that it declares, finds the planted bug."""
    text = ACTION.read_text(encoding="utf-8")
    (script,) = re.findall(r"^ +run: \|\n((?: {8}.*\n)+)", text, re.MULTILINE)
    given = {"ENGINE": "blocks", "SECONDS_TO_FUZZ": "1", "XFAIL": "", "ENGINE_PYTHON": "",
             "JUNIT": "j.xml"}  # fmt: skip
    shell = shutil.which("bash")
    assert shell is not None
    path = f"{elsewhere.bin}{os.pathsep}{os.environ['PATH']}"
    wrong = elsewhere.run(shell, "-ec", script, **given, PATH=path, FOREIGN_BUG="1")

    assert set(given) == set(re.findall(r"^ {8}([A-Z_]+): \$\{\{ inputs", text, re.MULTILINE))
    assert 1 == wrong.returncode, wrong.stderr
    assert "__ kvspec::fuzz::CONS __" in wrong.stdout
    assert "CONS: counts[15] is 1, should be 0" in (elsewhere.folder / "here" / "j.xml").read_text()


@pytest.mark.deep
def test_the_action_installs_what_it_stands_in(elsewhere: Elsewhere) -> None:
    """The first step of the action finds the project from its own folder, and installs the core."""
    text = ACTION.read_text(encoding="utf-8")
    (script,) = re.findall(r"^ +run: (python -m pip install .*)$", text, re.MULTILINE)
    sources = elsewhere.folder / "sources" / "kvspec"
    shell = shutil.which("bash")
    assert shell is not None
    installed = elsewhere.run(
        shell,
        "-ec",
        script,
        GITHUB_ACTION_PATH=str(sources / ACTION.parent.relative_to(ROOT)),
        PATH=f"{elsewhere.bin}{os.pathsep}{os.environ['PATH']}",
        PIP_NO_INDEX="1",  # all other requirements are installed already
        PIP_NO_BUILD_ISOLATION="0",  # pip's spelling for no build isolation
    )

    assert 0 == installed.returncode, installed.stderr
    assert f"Processing {sources}" in installed.stdout
    assert "Successfully installed kvspec-" in installed.stdout


def _history(text: str) -> str:
    (line,) = (line for line in text.splitlines() if "again: kvspec rerun" in line)
    return line.rpartition(" ")[2]
