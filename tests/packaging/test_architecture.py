"""Architecture checks on the source text: imports between packages and rooms, and docstrings.

Each check is a function of one source text. The last tests plant a violation of each rule.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("spec", "impl", "conformance")
OURS = {*PACKAGES, "tests"}
ALLOWED = {
    "spec": ("spec",),
    "impl": ("impl", "spec.vocabulary"),
    "conformance": ("conformance", "spec", "impl"),
}
"""Modules of ours that each package may import."""
PREFIX = "conformance."
SPEC_NEEDS = {"attr", "attrs", *sys.stdlib_module_names}
"""Other modules that spec may import."""
IMPORT_ALL_OF_SPEC = """\
import pkgutil, spec
for part in pkgutil.walk_packages(spec.__path__, "spec."):
    __import__(part.name)"""
ROOMS: dict[str, tuple[str, ...]] = {
    "verdict": (),
    "protocol": (),
    "numerics": (),
    "history": ("protocol",),
    "runtime": ("verdict",),
    "seeded_bugs": ("runtime",),
    "rungs": ("protocol", "history"),
    "files": ("protocol", "history"),
    "engines": ("protocol", "runtime"),
    "lockstep": ("protocol", "history", "runtime", "rungs"),
    "exploration": ("verdict", "rungs", "files"),
    "recordings": ("protocol", "history", "rungs", "files", "lockstep"),
    "isolation": ("protocol", "history", "files", "engines", "lockstep", "recordings"),
    "refinement": ("runtime", "engines", "lockstep", "exploration"),
    "traffic": ("protocol", "history", "lockstep"),
    "fuzzing": (
        *("protocol", "history", "runtime", "rungs", "files", "engines", "isolation"),
        *("lockstep", "seeded_bugs"),
    ),
    "vectors": (
        *("protocol", "history", "rungs", "files", "lockstep", "exploration"),
        "recordings",
    ),
    "kernels": ("runtime", "files", "numerics"),
    "harnesses": ("verdict", "runtime", "engines", "lockstep", "fuzzing"),
    "seeded_bugs.scoring": (
        *("protocol", "history", "runtime", "files", "numerics", "engines"),
        *("lockstep", "fuzzing", "traffic", "vectors", "refinement", "seeded_bugs"),
    ),
    "benchmarks": (
        *("protocol", "rungs", "files", "numerics", "engines", "recordings", "traffic"),
        "fuzzing",
    ),
    "cli": (
        *("verdict", "protocol", "history", "runtime", "rungs", "files", "engines", "isolation"),
        *("lockstep", "exploration", "recordings", "refinement", "traffic", "fuzzing", "vectors"),
        *("kernels", "seeded_bugs", "seeded_bugs.scoring"),
    ),
    "mutation": (
        *("verdict", "protocol", "numerics", "history", "runtime", "rungs", "files", "engines"),
        *("lockstep", "exploration", "recordings", "refinement", "traffic", "fuzzing", "vectors"),
        *("kernels", "seeded_bugs", "seeded_bugs.scoring", "cli"),
    ),
    "hostile": ("verdict", "protocol", "runtime", "files", "exploration", "recordings", "cli"),
    "entry-point": ("files", "fuzzing", "cli"),
}
"""Rooms that each room of conformance may import; a room stands below all of them."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Check = Callable[[str, str], list[str]]


def sources(*folders: str) -> list[str]:
    """The paths of all Python files in these folders, relative to the repository."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def imported(path: str, source: str) -> Iterator[str]:
    """The dotted names of all imports of a module, nested ones included."""
    package = Path(path).parent.parts
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *filter(None, [node.module])))
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)


def wrong_arrows(path: str, source: str) -> list[str]:
    """Imports of our modules that the package of this module may not have."""
    allowed = ALLOWED[Path(path).parts[0]]
    return [
        f"{path} imports {name}"
        for name in imported(path, source)
        if name.partition(".")[0] in OURS
        and not any(f"{name}.".startswith(f"{prefix}.") for prefix in allowed)
    ]


def room_of(name: str) -> str:
    """The room of a module of conformance; empty if the module is in no room.

    name: its dotted name without `conformance.`.
    """
    rooms = [room for room in ROOMS if f"{name}.".startswith(f"{room}.")]
    return max(rooms, key=len, default="")


def wrong_rooms(path: str, source: str) -> list[str]:
    """Imports from another room of conformance that the room of this module may not have."""
    own = room_of(".".join(Path(path).with_suffix("").parts[1:]))
    if path == "conformance/__init__.py":
        return []
    if not own:
        return [f"{path} is in no room"]
    others = {
        (name, room_of(name.removeprefix(PREFIX)))
        for name in imported(path, source)
        if name.startswith(PREFIX)
    }
    return [
        f"{path} imports {name}" for name, room in sorted(others) if room not in {own, *ROOMS[own]}
    ]


def wrong_order(rooms: Mapping[str, Sequence[str]]) -> list[str]:
    """Entries of a table that name a room below their own; without them there is no cycle."""
    order = list(rooms)
    return [
        f"{room} may import {other}"
        for room, others in rooms.items()
        for other in others
        if other not in order[: order.index(room)]
    ]


def unused_arrows(rooms: Mapping[str, Sequence[str]], used: Set[tuple[str, str]]) -> list[str]:
    """Entries of a table that no import uses."""
    return [
        f"{room} does not import {other}"
        for room, others in rooms.items()
        for other in others
        if (room, other) not in used
    ]


def foreign_needs(path: str, source: str) -> list[str]:
    """Imports other than ours, attrs and the standard library."""
    tops = {name.partition(".")[0] for name in imported(path, source)}
    return [f"{path} imports {top}" for top in sorted(tops - SPEC_NEEDS - OURS)]


def undocumented(path: str, source: str) -> list[str]:
    """The module and its public classes, functions and methods that have no docstring."""

    def visit(node: ast.Module | ast.ClassDef) -> Iterator[str]:
        for child in node.body:
            if isinstance(child, Function | ast.ClassDef) and not child.name.startswith("_"):
                if not (ast.get_docstring(child) or "").strip():
                    yield f"{path}: {child.name} has no docstring"
                if isinstance(child, ast.ClassDef):
                    yield from visit(child)

    module = ast.parse(source)
    found = [] if ast.get_docstring(module) else [f"{path} has no docstring"]
    return found + list(visit(module))


def silent_tests(path: str, source: str) -> list[str]:
    """Test functions without a docstring of one paragraph that ends with a full stop."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function) and node.name.startswith("test_"):
            text = ast.get_docstring(node) or ""
            if not text.endswith(".") or "\n\n" in text:
                found.append(f"{path}: {node.name} does not say in one sentence what it tests")
    return found


def violations(check: Check, *folders: str) -> list[str]:
    """The problems that a check finds in all files of these folders."""
    return [
        problem
        for path in sources(*folders)
        for problem in check(path, (ROOT / path).read_text(encoding="utf-8"))
    ]


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a new process has loaded after a statement."""
    script = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_there_are_files_to_check() -> None:
    """Every package has source files, so that the other checks read something."""
    assert [] == [name for name in PACKAGES if f"{name}/__init__.py" not in sources(name)]


def test_arrows_point_one_way() -> None:
    """The kit imports spec and impl; impl imports only spec.vocabulary; spec imports neither."""
    assert [] == violations(wrong_arrows, *PACKAGES)


def test_arrows_between_rooms_point_one_way() -> None:
    """A room of the kit imports only rooms that the table allows, and every module is in a room."""
    assert [] == violations(wrong_rooms, "conformance")


def test_the_rooms_are_an_order() -> None:
    """Each room names only rooms above it, so that imports form no cycle."""
    assert [] == wrong_order(ROOMS)
    assert ["a may import b"] == wrong_order({"a": ("b",), "b": ("a",)})
    assert ["a may import c"] == wrong_order({"a": ("c",)})


def test_every_arrow_between_rooms_is_needed() -> None:
    """The table allows no import that is not used."""
    used = {
        (room_of(".".join(Path(path).with_suffix("").parts[1:])), room_of(name[len(PREFIX) :]))
        for path in sources("conformance")
        for name in imported(path, (ROOT / path).read_text(encoding="utf-8"))
        if name.startswith(PREFIX)
    }

    assert [] == unused_arrows(ROOMS, used)
    assert ["b does not import a"] == unused_arrows({"a": (), "b": ("a",)}, set())


def test_the_page_of_the_house_has_the_table_of_rooms() -> None:
    """Each row of the page has a room and the rooms that it may import, in the table's order."""
    page = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")
    section = page.partition("## The rooms of the kit")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    rows = [line.strip("| ").split(" | ") for line in lines]
    shown = {room.strip("`"): others for room, _, others in rows}

    assert list(ROOMS) == list(shown)
    assert {room: ", ".join(others) or "-" for room, others in ROOMS.items()} == shown


def test_spec_needs_only_attrs() -> None:
    """The specification imports the standard library and attrs alone, neither numpy nor JAX."""
    assert [] == violations(foreign_needs, "spec")


@pytest.mark.parametrize(
    "statement",
    [
        "import spec",
        IMPORT_ALL_OF_SPEC,
        "import conformance",
        "import conformance.traffic.traces",
        "import conformance.cli.main",
        "from conformance.cli.main import main; main(['--help'])",
    ],
)
def test_what_must_be_light_loads_neither_numpy_nor_jax(statement: str) -> None:
    """The specification, the package kvspec and the list of commands load neither numpy nor JAX."""
    assert set() == {"jax", "jaxlib", "numpy"} & loaded_by(statement)


def test_pytest_loads_nothing_of_ours_before_it_is_asked_to() -> None:
    """The plugin, which every run of pytest imports, imports neither the kit nor its needs."""
    assert set() == {"spec", "hypothesis", "attrs", "rich"} & loaded_by(
        "import pytest, kvspec.pytest_plugin"
    )


def test_everything_public_is_documented() -> None:
    """Every module, public class, function and method of the three packages has a docstring."""
    assert [] == violations(undocumented, *PACKAGES)


def test_every_test_says_what_it_tests() -> None:
    """Every test function has a docstring of one sentence."""
    assert [] == violations(silent_tests, "tests")


def test_every_folder_of_source_is_a_package() -> None:
    """Every folder of source has an __init__.py, without which the wheel would lack it."""
    folders = {Path(path).parent for path in sources(*PACKAGES)}

    assert [] == sorted(
        str(folder) for folder in folders if not (ROOT / folder / "__init__.py").exists()
    )


def test_every_package_ships_its_types() -> None:
    """Each of the three packages has the marker py.typed."""
    assert [] == [name for name in PACKAGES if not (ROOT / name / "py.typed").exists()]


@pytest.mark.parametrize(
    ("check", "path", "source"),
    [
        (wrong_arrows, "spec/pool.py", "from impl.plan import plan"),
        (wrong_arrows, "spec/pool.py", "def f():\n    import conformance.protocol"),
        (wrong_arrows, "impl/plan.py", "import spec"),
        (wrong_arrows, "impl/plan.py", "from spec import pool"),
        (wrong_arrows, "impl/plan.py", "from spec.vocabulary_of_others import x"),
        (wrong_arrows, "impl/cache/paged.py", "from ...spec import pool"),
        (wrong_arrows, "conformance/lockstep/comparer.py", "import tests.helpers"),
        (wrong_rooms, "conformance/files/atomic.py", "from conformance.lockstep import comparer"),
        (wrong_rooms, "conformance/files/atomic.py", "from conformance import verdict"),
        (wrong_rooms, "conformance/files/atomic.py", "def f():\n    import conformance.cli.main"),
        (wrong_rooms, "conformance/fuzzing/suite.py", "from ..cli import contract"),
        (wrong_rooms, "conformance/seeded_bugs/pages.py", "from .scoring import score"),
        (
            wrong_rooms,
            "conformance/fuzzing/suite.py",
            "import conformance.seeded_bugs.scoring.score",
        ),
        (wrong_rooms, "conformance/verdict.py", "import conformance.history"),
        (wrong_rooms, "conformance/cellar/wine.py", "import spec"),
        (foreign_needs, "spec/pool.py", "import numpy as np"),
        (foreign_needs, "spec/pool.py", "if True:\n    from jax.numpy import array"),
        (undocumented, "spec/pool.py", "x = 1"),
        (undocumented, "spec/pool.py", '"""M."""\ndef f(): ...'),
        (undocumented, "spec/pool.py", '"""M."""\nclass A:\n    """A."""\n    def f(self): ...'),
        (undocumented, "spec/pool.py", '"""M."""\nasync def f():\n    """ """'),
        (silent_tests, "tests/test_x.py", "def test_a(): ..."),
        (silent_tests, "tests/test_x.py", 'def test_a():\n    """Says\n\n    too much."""'),
    ],
)
def test_each_check_finds_a_planted_violation(check: Check, path: str, source: str) -> None:
    """The check for a rule finds a source that breaks the rule once."""
    assert 1 == len(check(path, source))


@pytest.mark.parametrize(
    ("check", "path", "source"),
    [
        (wrong_arrows, "spec/pool.py", "from spec.table import row\nfrom . import cells"),
        (wrong_arrows, "impl/plan.py", "from spec.vocabulary import errors\nimport jax"),
        (wrong_arrows, "impl/plan.py", "from spec import vocabulary"),
        (wrong_arrows, "conformance/x.py", "import spec, impl.plan\nfrom . import traces"),
        (wrong_rooms, "conformance/files/atomic.py", "from . import jsonl\nimport spec, impl.plan"),
        (wrong_rooms, "conformance/fuzzing/suite.py", "from conformance.lockstep import comparer"),
        (wrong_rooms, "conformance/fuzzing/suite.py", "from conformance import history, lockstep"),
        (
            wrong_rooms,
            "conformance/cli/plant.py",
            "from conformance.seeded_bugs.scoring import score",
        ),
        (wrong_rooms, "conformance/seeded_bugs/scoring/score.py", "from .. import catalogue"),
        (
            foreign_needs,
            "spec/pool.py",
            "import math\nfrom attrs import frozen\nimport spec.table",
        ),
        (undocumented, "spec/pool.py", '"""M."""\ndef _f(): ...\nx = lambda: 1'),
        (silent_tests, "tests/test_x.py", 'def test_a():\n    """It holds."""\ndef helper(): ...'),
    ],
)
def test_no_check_cries_wolf(check: Check, path: str, source: str) -> None:
    """A check passes a source that keeps the rule."""
    assert [] == check(path, source)


def without_folder(makefile: str) -> list[str]:
    """Targets that write to .kvspec without creating it first, as a new clone needs."""
    rules = re.split(r"\n(?=[^\s#])", makefile.replace("\\\n", " "))
    calls = {
        name for name, text in re.findall(r"\ndefine (\S+)\n(.*?)endef", makefile, re.S)
        if ".kvspec/" in text
    }  # fmt: skip
    making = {
        target
        for rule in rules
        if re.search(r"\| *\.kvspec *$", rule.partition("\n")[0])
        for target in rule.partition(":")[0].split()
    }
    return [
        target
        for rule in rules
        for target in re.findall(r"^([a-z0-9-]+):", rule)
        if (".kvspec/" in rule or any(f"call {name}," in rule for name in calls))
        and target not in making
    ]


def test_a_target_that_writes_makes_its_folder() -> None:
    """Every target works as the first command after a clone, and a rule that does not is found."""
    makefile = (ROOT / "Makefile").read_text()
    assert [] == without_folder(makefile)
    assert len(without_folder(makefile.replace("| .kvspec", ""))) == 13
    forgets = "\nplant:\n\tkvspec plant --json .kvspec/plant.json\n"
    assert ["plant"] == without_folder(forgets)
