"""What a module of ours imports, and the digests of it by which results are kept."""

import gc
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from deep import deep_after

from conformance.mutation.stamps import JUDGES, MUTANTS, stamp
from conformance.mutation.targets import GROUPS, TESTS, UNIT_TESTS
from conformance.runtime import sources
from conformance.runtime.processes import HOME
from conformance.runtime.sources import PACKAGES, code_of, digest, digest_of, imported

LOADED: Final = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
files = {getattr(one, "__file__", None) for one in sys.modules.values()}
print(json.dumps(sorted(filter(None, files))))
"""


@pytest.mark.parametrize("method", deep_after(1, JUDGES))
def test_what_python_loads_is_imported(method: str) -> None:
    """Every file of ours that a new process has loaded after the import is among those found."""
    run = subprocess.run(
        [sys.executable, "-c", LOADED, *JUDGES[method]],
        capture_output=True,
        check=True,
        text=True,
        cwd=HOME,
    )

    loaded = {Path(file) for file in json.loads(run.stdout)}
    ours = {
        path for path in loaded if any((HOME / one) in path.parents for one in sources.PACKAGES)
    }
    assert ours
    assert set() == ours - {*imported(*JUDGES[method])}


def test_imports_in_functions_and_texts_that_name_a_module_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module may be loaded late, or by the name that a text gives it; others are not found."""
    texts = {
        "spec/__init__.py": "",
        "spec/first.py": "import os\ndef late():\n    from spec import second\n",
        "spec/second.py": "WORKER = 'spec.third:run'\nNOT = 'spec.absent'\n",
        "spec/third.py": "import spec.first\n",
        "spec/other.py": "from spec import first\n",
        "spec/inner/__init__.py": "from spec.inner.part import name\n",
        "spec/inner/part.py": "name = 'a text: spec.other'\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sources, "_ROOT", tmp_path)
    sources._file.cache_clear()

    found = [imported(name) for name in ("spec.first", "spec.inner.part", "spec.absent", "os")]

    sources._file.cache_clear()
    assert [
        ["spec/__init__.py", "spec/first.py", "spec/second.py", "spec/third.py"],
        ["spec/__init__.py", "spec/inner/__init__.py", "spec/inner/part.py"],
        [],
        [],
    ] == [[path.relative_to(tmp_path).as_posix() for path in paths] for paths in found]


def test_a_digest_is_of_every_byte_and_of_the_order(tmp_path: Path) -> None:
    """It changes with a byte of any file, and not with the names."""
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("a = 1")
    two.write_text("b = 2")
    before = digest_of([one, two])

    assert digest_of([two, one]) != before
    two.write_text("b = 3")
    assert digest_of([one, two]) != before
    two.write_text("b = 2")
    assert digest_of([one, two]) == before == digest_of([one, two.rename(tmp_path / "three.py")])


WORDY: Final = '''
"""Words."""

A = "a"  # a comment
"""Of A."""


def f():
    """Of f."""
    return 1
'''
WORDLESS: Final = """
A = "a"
def f():
    return 1
"""


def test_a_digest_of_code_is_of_all_but_words(tmp_path: Path) -> None:
    """Comments, docstrings and blank lines do not count, and every other text and number does."""
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text(WORDY)
    two.write_text("B = 2")
    before = code_of([one, two])

    assert before != code_of([two, one])
    one.write_text(WORDLESS)
    assert before == code_of([one, two])
    for old, new in (("1", "2"), ('"a"', '"b"'), ("A", "C")):
        one.write_text(WORDY.replace(old, new))
        assert before != code_of([one, two])


def read(monkeypatch: pytest.MonkeyPatch, group: str, method: str) -> set[str]:
    """The files that the stamp of a group and a method reads."""
    held = set[str]()
    plain = Path.read_bytes

    def noted(path: Path) -> bytes:
        held.add(path.relative_to(HOME).as_posix())
        return plain(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    stamp.__wrapped__(group, method)
    return held


@pytest.mark.parametrize(
    ("group", "method"), [(group, one) for group, held in GROUPS.items() for one in held.methods]
)
def test_a_fate_depends_on_mutants_method_and_engine(
    monkeypatch: pytest.MonkeyPatch, group: str, method: str
) -> None:
    """Its stamp reads the mutated modules, those of the method, and those that number mutants."""
    held = read(monkeypatch, group, method)

    modules = {*GROUPS[group].modules, *JUDGES.get(method, ())}
    modules |= {f"conformance.mutation.{one}" for one in MUTANTS}
    parts = {module.replace(".", "/") for module in modules}
    assert set() == {one for one in parts if not {f"{one}.py", f"{one}/__init__.py"} & held}
    every = method in {TESTS, UNIT_TESTS}
    assert every == (stamp(group, method) == digest(*PACKAGES, "tests"))


def test_the_bench_of_kernels_does_not_depend_on_fuzzing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What became of a kernel is kept while other methods change."""
    held = read(monkeypatch, "kernel", "kernel tpu")

    assert not any(name.startswith(("conformance/fuzzing", "conformance/rungs")) for name in held)


def test_imports_are_listed_in_threads_at_once() -> None:
    """Two threads that parse get what one gets alone, where a collection of garbage lets go on."""
    alone, before = imported("impl.host"), gc.get_threshold()
    sources._named.cache_clear()
    gc.callbacks.append(_sleeps)
    gc.set_threshold(100)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(imported, ["impl.host"] * 4))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(_sleeps)
    assert [alone] * 4 == found


def _sleeps(_phase: str, _info: object) -> None:
    time.sleep(0)
