"""Mutants that tests must kill: each runs in a fork, until one test fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from deep import deep_after

MODULE = """
import functools


def largest(numbers):
    found = numbers[0]
    for number in numbers:
        if number > found:
            found = number
    return found


def unused(number):
    return number + 1


def made(number):
    return number + 1


def lent(number):
    return number + 1


def returned(number):
    return number + 1


@functools.cache
def remembered(number):
    return number + 1


def shared(number):
    return number + 1
"""
TESTS = '''
import little_module
import pytest

little_module.remembered(2)
STORE = {}

def shared():
    """It is computed once for all tests of this file."""
    if not STORE:
        STORE[5] = little_module.shared(5)
    return STORE[5]

@pytest.fixture(scope="module")
def made():
    """It is made once, for the first test that asks."""
    return little_module.made(2)

def test_made_first(made):
    """It is there."""
    assert made

def test_made_again(made):
    """It is right."""
    assert 3 == made

@pytest.fixture
def lent():
    """It raises before the test or after it, if a number is wrong."""
    if little_module.lent(1) != 2:
        raise ValueError
    yield 2
    if little_module.returned(1) != 2:
        raise ValueError

def test_lent(lent):
    """It is lent."""
    assert 2 == lent

def test_the_largest():
    """It is found."""
    assert 3 == little_module.largest([1, 3, 2])

def test_one():
    """It is itself."""
    assert 7 == little_module.largest([7])

def test_remembered():
    """It is computed again."""
    assert 3 == little_module.remembered(2)

def test_shared_first():
    """It is there."""
    assert shared()

def test_shared_again():
    """It is right."""
    assert 6 == shared()
'''
SCRIPT = """
import json, sys
sys.path.insert(0, ".")
import little_module
sys.modules["spec.little_module"] = little_module  # a module whose results are forgotten
from conformance.mutation import tested
from conformance.mutation.planting import planted
from conformance.mutation.rewriting import rewrite

made, kept = rewrite("little_module"), {}
def keep(number, killed, *, run=True):
    mutant = made.mutants[number]
    kept[f"{mutant.place}: {mutant.after}"] = [killed and killed.rpartition("::")[2], run]
with planted([made]):
    numbers = [one.number for one in made.mutants]
    tested.judge([sys.argv[1]], numbers, keep, by_file="by file" in sys.argv)
print("\\n" + json.dumps(kept))
"""


def judged(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    """The script that judges every mutant of the little module by these tests."""
    (folder / "little_module.py").write_text(MODULE)
    (folder / "test_little.py").write_text(tests)
    (folder / "script.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "script.py", str(folder / "test_little.py"), *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_fork_for_each_mutant_says_which_test_kills_it(tmp_path: Path) -> None:
    """A wrong result kills; a boundary that no test sees survives, and so does what none runs."""
    done = judged(tmp_path, TESTS)
    assert 0 == done.returncode, done.stderr
    kept = json.loads(done.stdout.splitlines()[-1])

    assert [None, True] == kept["largest: number >= found"]
    assert ["test_the_largest", True] == kept["largest: number <= found"]
    assert ["test_the_largest", True] == kept["largest: (left out)"]
    assert [None, False] == kept["unused: number - 1"]
    assert ["test_made_again", True] == kept["made: number - 1"]
    assert ["test_lent", True] == kept["lent: number - 1"]
    assert ["test_lent", True] == kept["returned: number - 1"]
    assert ["test_remembered", True] == kept["remembered: number - 1"]
    assert [None, True] == kept["shared: number - 1"]


@pytest.mark.deep
def test_tests_of_a_file_may_share_what_one_has_computed(tmp_path: Path) -> None:
    """By file a mutant is killed by a test that uses what another one has called."""
    done = judged(tmp_path, TESTS, "by file")
    assert 0 == done.returncode, done.stderr

    kept = json.loads(done.stdout.splitlines()[-1])
    assert ["test_shared_again", True] == kept["shared: number - 1"]
    assert [None, True] == kept["largest: number >= found"]


CRASHES = """
def test_crash():
    if 3 != little_module.largest([1, 3, 2]):
        os.kill(os.getpid(), signal.{signal})
"""


@pytest.mark.parametrize("ends", deep_after(1, ["SIGSEGV", "SIGKILL"]))
def test_a_fork_that_crashes_is_told_from_one_that_is_killed(tmp_path: Path, ends: str) -> None:
    """A crash is the mutant's, and who has killed a fork from outside is not known."""
    tests = "import os\nimport signal\nimport little_module\n" + CRASHES.format(signal=ends)
    done = judged(tmp_path, tests)

    if ends == "SIGKILL":
        assert 1 == done.returncode
        assert "a fork ended with -9" in done.stdout
    else:
        assert 0 == done.returncode, done.stderr
        kept = json.loads(done.stdout.splitlines()[-1])
        assert ["ends the process with signal 11", True] == kept["largest: number <= found"]


def test_tests_that_fail_without_a_mutant_kill_none(tmp_path: Path) -> None:
    """They end the run, and nothing is kept."""
    done = judged(tmp_path, TESTS.replace("7 ==", "8 =="))

    assert 1 == done.returncode
    assert "RuntimeError: the tests of" in done.stderr
    assert "{" not in done.stdout.splitlines()[-1]
