"""Hostile inputs, drawn by Hypothesis: options, files, streams, environments and engines.

Options come from the commands' own parsers, files from their schemas and from files that kvspec
makes. Since every call is a real process, each has bounded sizes and times. `contract` defines what
a call must satisfy; the statuses that an engine or a Python may cause stand beside each of them.
"""

import argparse
import importlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from attrs import evolve
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from conformance.cli.main import COMMANDS
from conformance.hostile import schemas
from conformance.hostile.calls import (
    CLEAN,
    KVSPEC,
    PYTEST,
    STATUSES,
    Call,
    Content,
    Link,
    Special,
)
from conformance.hostile.engines import ENGINES, PYTHON_STATUSES, PYTHONS
from conformance.hostile.mutations import damaged
from conformance.hostile.samples import SMALL, samples
from conformance.hostile.values import NUMBERS, SIZES, TEXTS
from conformance.runtime.draws_by_seed import by_seed_alone

MOST_SECONDS: Final = 180.0
"""Most commands take 2 s, vectors with nothing compiled 30 s, on a busy machine the double."""
TOY_ENGINE: Final = ("--engine", "toy:make")
BRIEF: Final = ("--seconds=0.2",)
"""Always given: without it a command takes a minute."""
BASES: Final[dict[str, tuple[str, ...]]] = {
    "fuzz": (*TOY_ENGINE, *BRIEF),
    "diff": ("toy:make", "toy:make", *BRIEF),
    "explore": ("--geometry", SMALL),
    "refine": ("--geometry", "pages=1,slots=1,page_size=1,pages_per_seq=1", "--unbatched", "0"),
    "replay": ("azure.csv", "--format", "azure", *TOY_ENGINE),
    "rerun": ("history.jsonl", "--trust"),
    "validate": ("recording.jsonl", "--shorten", "0.5", "--require", "nothing"),
    "vectors": ("v",),
    "plant": ("--list",),
    "kernel": ("nosuch:kernel",),
    "compare": ("--kept",),
    "doctor": (),
    "adapter": ("check", "toy:make"),
}
"""A valid command line of each command that ends soon."""
READS: Final = (
    (("rerun", "history.jsonl", "--trust"), "history.jsonl"),
    (("validate", "recording.jsonl", "--shorten", "0.5"), "recording.jsonl"),
    (("validate", "recording.jsonl", "--itf", "out.itf.json"), "recording.jsonl"),
    (("validate", "trace.itf.json"), "trace.itf.json"),
    (("replay", "azure.csv", "--format", "azure", *TOY_ENGINE), "azure.csv"),
    (("replay", "mooncake.jsonl", "--format", "mooncake", *TOY_ENGINE), "mooncake.jsonl"),
    (("explore", "--geometry", SMALL, "--checkpoint", "e.npz"), "e.npz"),
    (("fuzz", *TOY_ENGINE, *BRIEF, "--corpus", "corpus"), "corpus/history.jsonl"),
    (("kernel", "reference", "--target", "v5e", "--baseline", "result.json",
      "--shapes", "nosuch"), "result.json"),
)  # fmt: skip
"""Command lines that read a file, and the file to damage."""
OURS: Final[dict[str, Content]] = {
    "folder": Special.FOLDER,
    "fifo": Special.FIFO,
    "null": Special.NULL,
    "loop": Link("loop"),
    "nowhere": Link("missing/file"),
    "outside": Link("unrelated.txt"),
    "link": Link("recording.jsonl"),
    "hard": Link("recording.jsonl", hard=True),
    "old.json": b'{"verdict": "holds"}\n',
    "unrelated.txt": b"not to be touched\n",
    " spaces in it ": b"x",
    "-dash": b"x",
    "two\nlines": b"x",
    "\udcff\udcfe": b"x",
    "\N{PILE OF POO}": b"x",
    "n" * 255: b"x",
}
"""Further files of the folder; each name may stand where an option takes a file."""
NAMES: Final = (
    *OURS,
    *("azure.csv", "recording.jsonl", "history.jsonl", "e.npz", "toy.py"),
    *("", ".", "..", "missing", "missing/below/x.json", "unrelated.txt/below", "n" * 300),
    *("/proc/x.json", "/sys/x.json", "/proc/self/mem", "x\x7f.json", "folder/", "folder/x.json"),
)
STREAMS: Final = (
    *(">/dev/full", ">&-", "2>&-", "2>/dev/full", "<&-", ">&- 2>&-", ">&- 2>&- <&-"),
    *("| true; exit ${PIPESTATUS[0]}", ">/dev/full 2>&1", "| head -c 1 >&-; exit ${PIPESTATUS[0]}"),
)
SHADOWS: Final[dict[str, dict[str, Content]]] = {
    "module": {"{name}.py": b"x = 1\n"},
    "package": {"{name}/__init__.py": b"x = 1\n"},
    "namespace": {"{name}/other.py": b"x = 1\n"},
    "raising": {"{name}/__init__.py": b"raise RuntimeError('foreign')\n"},
    "exiting": {"{name}.py": b"raise SystemExit(0)\n"},
}
"""Forms of a foreign module with one of our names."""


VARIABLES: Final[tuple[dict[str, str | None], ...]] = (
    {"HOME": None},
    {"HOME": ""},
    {"HOME": "/proc"},
    {"LANG": "C", "LC_ALL": "C"},
    {"LC_ALL": "nosuch.UTF-8"},
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONOPTIMIZE": "2"},
    {"PYTHONWARNINGS": "error"},
    {"TERM": None},
    {"PATH": ""},
    {"TMPDIR": "/proc"},
    {"COLUMNS": "x"},
    {"COLUMNS": "1"},
    {"JAX_PLATFORMS": "nosuch"},
    {"JAX_COMPILATION_CACHE_DIR": "/proc/x"},
)


def draw(number: int, *, seed: int) -> list[Call]:
    """This many calls, the same for the same number and seed."""
    found: list[Call] = []

    @seeded(seed)
    @settings(
        max_examples=number,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(every())
    def collect(call: Call) -> None:
        found.append(call)

    with by_seed_alone():
        collect()
    return found[:number]


def with_cache(call: Call, warm: Path) -> Call:
    """The same call with this cache of compiled code."""
    return evolve(call, environ={"JAX_COMPILATION_CACHE_DIR": str(warm), **call.environ})


def every() -> st.SearchStrategy[Call]:
    """Any hostile call."""
    return st.one_of(
        *(options(), options(), files(), files(), formed(), formed()),
        *(streams(), environments(), engines()),
    )


def options() -> st.SearchStrategy[Call]:
    """A command line with one or two surplus or missing words."""

    @st.composite
    def drawn(pick: st.DrawFn) -> Call:
        name = pick(st.sampled_from(COMMANDS))
        words = list(BASES[name])
        for _ in range(pick(st.integers(1, 2))):
            words = pick(_spoilt(words, name))
        return _call(f"options of {name}", name, *words)

    return drawn()


def _spoilt(words: Sequence[str], name: str) -> st.SearchStrategy[list[str]]:
    actions = st.sampled_from(_actions(name))
    given = actions.flatmap(_given)
    place = st.integers(0, len(words))
    spare = [at for at, word in enumerate(words) if word not in BRIEF]
    return st.one_of(
        given.map(lambda extra: [*words, *extra]),
        given.map(lambda extra: [*words, *extra]),
        st.tuples(place, st.sampled_from((*TEXTS, *NAMES[-12:], "--nonsense", "--js", "-x"))).map(
            lambda pair: [*words[: pair[0]], pair[1], *words[pair[0] :]]
        ),
        st.sampled_from([*spare, len(words)]).map(lambda at: [*words[:at], *words[at + 1 :]]),
        st.just([*words, *words]),
    )


@cache
def _actions(name: str) -> tuple[argparse.Action, ...]:
    """The options and positionals of a command, from its parser, with the common options."""
    command: Any = importlib.import_module(f"conformance.cli.{name}")
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    for option in ("--json", "--seed"):
        parser.add_argument(option, metavar="FILE" if option == "--json" else "N")
    parser.add_argument("--quiet", action="store_true")
    return tuple(_declared(parser))


def _declared(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    yield from parser._actions  # noqa: SLF001 - argparse shows them nowhere else


def _given(action: argparse.Action) -> st.SearchStrategy[list[str]]:
    """An option with a hostile value; for a positional, one too many."""
    value = _value(action)
    if not action.option_strings:
        return value.map(lambda text: [text])
    option = action.option_strings[-1]
    if action.nargs == 0:
        return st.sampled_from([[option], [option, option], [f"{option}=1"]])
    return st.one_of(
        value.map(lambda text: [option, text]),
        value.map(lambda text: [f"{option}={text}"]),
        st.just([option]),
    )


def _value(action: argparse.Action) -> st.SearchStrategy[str]:
    text = st.text(st.characters(exclude_characters="/\x00"), max_size=20).map(_nowhere_else)
    if action.choices is not None:
        return st.one_of(st.sampled_from([*map(str, action.choices), "", "x"]), text)
    if action.metavar in {"FILE", "FOLDER", "DIR", "HISTORY", "TRACE"}:
        return st.one_of(st.sampled_from(NAMES), st.sampled_from(NAMES), text)
    if action.metavar == "PATH":
        return st.sampled_from(PYTHONS)
    if action.metavar == "SIZES":
        return st.sampled_from(SIZES)
    if action.type is not None or action.metavar in {"N", "SECONDS"}:
        return st.sampled_from(NUMBERS)
    return st.one_of(st.sampled_from(TEXTS), text)


def _nowhere_else(text: str) -> str:
    """Replace paths outside of the folder, and numbers that make a call long."""
    return "_" if text in {".", ".."} or text.strip().isdigit() else text


def files() -> st.SearchStrategy[Call]:
    """A command that reads a damaged file, or no file at all."""

    @st.composite
    def drawn(pick: st.DrawFn) -> Call:
        words, name = pick(st.sampled_from(READS))
        sample = samples()[Path(name).name]
        content: Content = pick(
            st.one_of(damaged(sample), damaged(sample), damaged(sample), _odd())
        )
        call = _call(f"{name} damaged, for {words[0]}", *words)
        return evolve(call, files={**call.files, name: content}, allowed=STATUSES)

    return drawn()


def formed() -> st.SearchStrategy[Call]:
    """A command that reads a file drawn from its schema, and perhaps damaged."""
    made = {
        "history.jsonl": schemas.lines("history.schema.json", "header", "step"),
        "corpus/history.jsonl": schemas.lines("history.schema.json", "header", "step"),
        "recording.jsonl": schemas.lines("recording.schema.json", "header", "line"),
        "result.json": schemas.whole("result.schema.json"),
        "v/manifest.json": schemas.whole("vectors.schema.json"),
    }
    reads = [(words, name) for words, name in READS if name in made]

    @st.composite
    def drawn(pick: st.DrawFn) -> Call:
        words, name = pick(st.sampled_from([*reads, (("vectors", "v"), "v/manifest.json")]))
        content = pick(made[name])
        if pick(st.booleans()):
            content = pick(damaged(content))
        call = _call(f"{name} of its schema, for {words[0]}", *words)
        return evolve(call, files={**call.files, name: content}, allowed=STATUSES)

    return drawn()


def _odd() -> st.SearchStrategy[Content]:
    return st.sampled_from(
        (
            *(Special.FOLDER, Special.FIFO, Special.NULL),
            *(Link("nowhere"), Link("loop"), Link("/proc/self/mem"), Link("unrelated.txt")),
        )
    )


def streams() -> st.SearchStrategy[Call]:
    """A command whose streams are full, closed or unread."""

    @st.composite
    def drawn(pick: st.DrawFn) -> Call:
        name = pick(st.sampled_from([one for one in COMMANDS if one != "refine"]))
        words = pick(st.sampled_from(((name, *BASES[name]), (name, "--help"), ("--version",))))
        redirect = pick(st.sampled_from(STREAMS))
        result = ("--json", "r.json") if words[-1] not in {"--help", "--version"} else ()
        return evolve(_call(f"streams of {name}: {redirect}", *words, *result), redirect=redirect)

    return drawn()


def environments() -> st.SearchStrategy[Call]:
    """A command in an unusual environment, such as one with a foreign package `spec`."""

    @st.composite
    def drawn(pick: st.DrawFn) -> Call:
        name = pick(st.sampled_from([*COMMANDS, "pytest", "pytest"]))
        environ, more, about = pick(st.one_of(_variables(), _shadowed(), _shadowed()))
        if name == "pytest":
            call = _pytest(f"{about}, pytest")
        else:
            call = _call(f"{about}, {name}", name, *BASES[name], "--json", "r.json")
        return evolve(call, environ=environ, files={**call.files, **more})

    return drawn()


Environment = tuple[dict[str, str | None], dict[str, Content], str]


def _variables() -> st.SearchStrategy[Environment]:
    return st.sampled_from(VARIABLES).map(lambda environ: (environ, {}, f"environment {environ}"))


def _shadowed() -> st.SearchStrategy[Environment]:
    def made(pair: tuple[str, str]) -> Environment:
        name, kind = pair
        made = {f"foreign/{path.format(name=name)}": text for path, text in SHADOWS[kind].items()}
        return {"PYTHONPATH": "FOLDER/work/foreign"}, made, f"a foreign {name} ({kind})"

    names = st.sampled_from(("spec", "impl", "conformance"))
    return st.tuples(names, st.sampled_from(tuple(SHADOWS))).map(made)


def engines() -> st.SearchStrategy[Call]:
    """A command with an engine that misbehaves, or a Python that is none."""

    @st.composite
    def drawn(pick: st.DrawFn) -> Call:
        how = pick(st.sampled_from(("fuzz", "fuzz", "diff", "remote", "python", "pytest", "rerun")))
        if how == "python":
            python = pick(st.sampled_from(PYTHONS))
            call = _call(f"--python {python!r}", "fuzz", *TOY_ENGINE, *BRIEF, "--python", python)
            return evolve(call, allowed=PYTHON_STATUSES)
        engine = pick(st.sampled_from(ENGINES))
        module: dict[str, Content] = {"bad.py": engine.source.encode(errors="surrogateescape")}
        call = _with_engine(how, f"an engine that {engine.name}, {how}")
        files = {**call.files, **module}
        return evolve(call, files=files, allowed=engine.allowed, traced=True)

    return drawn()


def _with_engine(how: str, about: str) -> Call:
    if how == "pytest":
        return _pytest(about, "bad:make")
    if how == "diff":
        return _call(about, "diff", "toy:make", "bad:make", *BRIEF, "--json", "r.json")
    if how == "rerun":
        call = _call(about, "rerun", "bad.jsonl", "--trust")
        history = samples()["history.jsonl"].replace(b"toy:make", b"bad:make")
        return evolve(call, files={**call.files, "bad.jsonl": history})
    remote = ("--python", str(Path(PYTEST[0]))) if how == "remote" else ()
    return _call(about, "fuzz", "--engine", "bad:make", *BRIEF, "--json", "r.json", *remote)


def _pytest(about: str, engine: str = "toy:make") -> Call:
    words = ("--kvspec-engine", engine, "--kvspec-seconds", "0.5", "-q", "-p", "no:cacheprovider")
    return evolve(_call(about, *words), program=PYTEST)


def _call(about: str, *words: str) -> Call:
    """A call whose folder has all files that it may name; a clean engine must not fail."""
    held: dict[str, Content] = {**samples(), **OURS}
    return Call(
        about=about,
        words=tuple(word.replace("\x00", "") for word in words),
        files=held,
        allowed=STATUSES if words[:1] == ("doctor",) else CLEAN,  # it fails where we are mixed up
        program=KVSPEC,
    )
