"""The blocks of the documents: which there are, and how what they show is compared.

A fence says what its block is. `python` runs. `console` has commands, each after `$ `, and what
they print. `sh` has commands alone; `json`, `toml` and `yaml` are data. `text` is neither.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path

from attrs import frozen

from conformance.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("README.md")])
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LANGUAGES = frozenset({"python", "console", "sh", "text", "json", "toml", "yaml"})
ELIDED = "..."
"""Alone on a line: any lines. In a line: any text."""
VARIES = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\b\d+(\.\d+)? s\b", "TIME s"),
        (r"\b(\w*per_second|of_ceiling|share_of_\w+): \d+(\.\d+)?", r"\1: RATE"),
    )
)
"""What no two runs print alike: times and rates. Nothing else may differ."""
TEXTS = {
    "docs/house.md": (1, "the folders"),
    "docs/attention.md": (6, "formulas"),
    "docs/probabilistic-bound.md": (8, "formulas"),
    "docs/index.md": (1, "a formula"),
    "docs/adapters.md": (1, "a file that its reader writes"),
    "docs/vectors.md": (1, "the words of a format, with remarks"),
}
"""How many blocks of `text` a page has, and what they are."""
NEEDS_SGLANG = "needs sglang-jax, which make docs installs"
NEEDS_VLLM = "needs vLLM, which make docs installs"
ELSEWHERE = {
    "kvspec refine --plant RC2": "takes 20 seconds, more on a busy machine",
    ".venv-sglang-jax/bin/kvspec rerun --trust docs/findings/sglang-restore.jsonl": NEEDS_SGLANG,
    ".venv-sglang-jax/bin/python -m conformance.harnesses.prefix_caching "
    "conformance.engines.sglang_jax:prefixes_in_parts": NEEDS_SGLANG,
    ".venv-vllm/bin/python docs/findings/vllm_alone.py": NEEDS_VLLM,
    ".venv-vllm/bin/python -m conformance.harnesses.prefix_caching "
    "conformance.engines.vllm:prefixes_dropped": NEEDS_VLLM,
}
"""Commands that `make docs` runs and `make test` does not, each with the reason."""


@frozen
class Block:
    """A block: its page, its language, its text, and the number of lines before it."""

    page: str
    language: str
    text: str
    before: int


@frozen
class Console:
    """A command, and the lines that a page shows of its output. title: where it stands."""

    page: str
    title: str
    command: str
    shown: tuple[str, ...]


def blocks(text: str, page: str = "page.md") -> tuple[Block, ...]:
    """Every block of a page. Raises ValueError where something looks like one and is not read."""
    if text.count("\n```") % 2 != text.startswith("```"):
        raise ValueError(f"{page}: a fence is opened and not closed")
    if re.search(r"^[ \t]+```", text, re.MULTILINE):
        raise ValueError(f"{page}: an indented fence is not read; begin it in the first column")
    found = FENCE.finditer(text)
    if indented := re.search(r"(?:\A|\n\n)(?: {4}|\t)(.*)", FENCE.sub("", text)):
        raise ValueError(f"{page}: an indented block is not read; fence it: {indented[1]!r}")
    read = tuple(Block(page, one[1], one[2], text.count("\n", 0, one.start(2))) for one in found)
    if unknown := [block for block in read if block.language not in LANGUAGES]:
        raise ValueError(f"{page}: {unknown[0].language!r} is none of {sorted(LANGUAGES)}")
    return read


def consoles(block: Block) -> tuple[Console, ...]:
    """The commands of a `console` block, each with what is shown below it."""
    first, *parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    if first or not parts:
        raise ValueError(f"{block.page}:{block.before + 1}: a console begins with '$ '")
    found = []
    for part in parts:
        lines = part.replace("\\\n", "").splitlines()
        title = f"{block.page}:{block.before} {lines[0]}"
        found.append(Console(block.page, title, lines[0], tuple(lines[1:])))
    return tuple(found)


def consoles_of(every: Iterable[Block]) -> tuple[Console, ...]:
    """The commands of all blocks that are consoles."""
    return tuple(one for block in every if block.language == "console" for one in consoles(block))


def check(console: Console, folder: Path) -> None:
    """Fail unless a command prints what is shown, with the adapter of its page as mymodule.py."""
    code = module(console.page)
    if code:
        (folder / "mymodule.py").write_text(code, encoding="utf-8")
    different = differences(console.shown, run(console.command, folder))
    assert not different, f"{console.title}: {different}"


def unknown_words(block: Block) -> list[str]:
    """The targets of make, the commands of kvspec and their options that are not there."""
    text = re.sub(r"\s# .*", "", block.text.replace("\\\n", ""))
    if block.language == "console":
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    unknown = []
    for line in text.splitlines():
        program, *words = line.split()
        if program == "make":
            unknown += [f"make {one}" for one in words if "=" not in one and one not in targets]
        if program.rpartition("/")[2] == "kvspec":
            unknown += [f"kvspec {one}" for one in _unknown_options(words)]
    return unknown


def _unknown_options(words: list[str]) -> Iterator[str]:
    command, *rest = words
    if command not in COMMANDS:
        yield command
        return
    text = _help(command)
    for word in rest:
        if word.startswith("-") and not re.search(rf"(?<![\w-]){word}(?![\w-])", text):
            yield f"{command} {word}"


@cache
def _help(command: str) -> str:
    said = StringIO()
    with redirect_stdout(said), suppress(SystemExit):
        main([command, "--help"])
    return said.getvalue()


def differences(shown: tuple[str, ...], printed: str) -> str:
    """Empty if the output is what is shown; otherwise the output, to be put there."""
    there = "".join(f"{_steady(line)}\n" for line in printed.splitlines())
    parts = ["(?:.*\n)*" if line == ELIDED else _line(line) for line in shown]
    return "" if re.fullmatch("".join(parts), there) else f"it prints now:\n{printed}"


def run(command: str, folder: Path) -> str:
    """What a command prints on standard output, in a folder that has all that a checkout has.

    `kvspec` and `.venv/bin/kvspec` are those of the Python that runs this. What is written stays in
    the folder.
    """
    for entry in ROOT.iterdir():
        if entry.name not in (".git", ".venv", ".kvspec", "build"):
            (folder / entry.name).symlink_to(entry)
    (folder / ".venv").symlink_to(sys.prefix)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    if done.returncode not in (0, 1, 3):  # a verdict
        raise RuntimeError(f"{command}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def module(page: str) -> str:
    """The first blocks of Python of a page, up to the one that defines `make`: mymodule.py."""
    kept: list[str] = []
    for block in blocks((ROOT / page).read_text(encoding="utf-8"), page):
        if block.language == "python":
            kept.append(block.text)
            if re.search(r"^def make\(", block.text, re.MULTILINE):
                return "\n".join(kept)
    return ""


def shown_in_comments(text: str) -> tuple[str, ...]:
    """What blocks of Python say that they print: the remark behind each call of `print`."""
    code = [block.text for block in blocks(text) if block.language == "python"]
    return tuple(re.findall(r"^ *print\(.*\)  # (.*)$", "".join(code), re.MULTILINE))


def printing(text: str) -> int:
    """How many lines of a page's Python call `print`."""
    code = [block.text for block in blocks(text) if block.language == "python"]
    return len(re.findall(r"^ *print\(", "".join(code), re.MULTILINE))


def _steady(line: str) -> str:
    for pattern, name in VARIES:
        line = pattern.sub(name, line)
    return line.rstrip()


def _line(shown: str) -> str:
    return ".*".join(map(re.escape, _steady(shown).split(ELIDED))) + "\n"
