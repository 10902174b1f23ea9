"""Tools for the blocks of the documents: parsing, running, and comparing their output.

The language of a fence decides: `python` is run. `console` has commands, each after `$ `, and their
output. `sh` has commands alone; `json`, `toml` and `yaml` are data. `text` is none of these.
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
"""Alone on a line it stands for any lines; within a line, for any text."""
VARIES = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\b\d+(\.\d+)? s\b", "TIME s"),
        (r"\b(\w*per_second|of_ceiling|share_of_\w+): \d+(\.\d+)?", r"\1: RATE"),
    )
)
"""Times and rates, which differ from run to run. All other output must be equal."""
TEXTS = {
    "docs/house.md": (1, "the folders"),
    "docs/attention.md": (9, "formulas"),
    "docs/probabilistic-bound.md": (8, "formulas"),
    "docs/index.md": (1, "a formula"),
    "docs/chunks.md": (1, "a picture"),
    "docs/adapters.md": (1, "a file that its reader writes"),
    "docs/vectors.md": (1, "the words of a format, with remarks"),
}
"""The number of `text` blocks of each page, and their content."""
NEEDS_SGLANG = "needs sglang-jax, which make docs installs"
NEEDS_TRANSFORMERS = "needs transformers, which make docs installs"
NEEDS_VLLM = "needs vLLM, which make docs installs"
NEEDS_LMDEPLOY = "needs lmdeploy, which make docs installs"
NEEDS_MINI_SGLANG = "needs mini-sglang, which make docs installs"
ELSEWHERE = {
    "kvspec refine --plant RC2": "takes 20 seconds, more on a busy machine",
    ".venv-sglang-jax/bin/kvspec rerun --trust docs/findings/sglang-restore.jsonl": NEEDS_SGLANG,
    ".venv-sglang-jax/bin/kvspec rerun --trust docs/findings/sglang-stale-row.jsonl": NEEDS_SGLANG,
    ".venv-transformers/bin/python docs/findings/transformers_alone.py": NEEDS_TRANSFORMERS,
    ".venv-vllm/bin/python docs/findings/vllm_alone.py": NEEDS_VLLM,
    ".venv-vllm/bin/kvspec rerun --trust docs/findings/vllm-uncomputed.jsonl": NEEDS_VLLM,
    ".venv-lmdeploy/bin/python docs/findings/lmdeploy_alone.py": NEEDS_LMDEPLOY,
    ".venv-lmdeploy/bin/kvspec rerun --trust "
    "docs/findings/lmdeploy-written-again.jsonl": NEEDS_LMDEPLOY,
    ".venv-mini-sglang/bin/python docs/findings/mini_sglang_alone.py": NEEDS_MINI_SGLANG,
    ".venv-mini-sglang/bin/kvspec rerun --trust "
    "docs/findings/mini-sglang-freed-row.jsonl": NEEDS_MINI_SGLANG,
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
    """A command, and the lines of its output that a page shows. title: its place on the page."""

    page: str
    title: str
    command: str
    shown: tuple[str, ...]


def blocks(text: str, page: str = "page.md") -> tuple[Block, ...]:
    """The blocks of a page. Raises ValueError for text that looks like a block and is not read."""
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
    """The commands of a `console` block, each with the output shown below it."""
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
    """The commands of all `console` blocks."""
    return tuple(one for block in every if block.language == "console" for one in consoles(block))


def check(console: Console, folder: Path) -> None:
    """Fail unless a command prints what its page shows. mymodule.py is the adapter of the page."""
    code = module(console.page)
    if code:
        (folder / "mymodule.py").write_text(code, encoding="utf-8")
    different = differences(console.shown, run(console.command, folder))
    assert not different, f"{console.title}: {different}"


def unknown_words(block: Block) -> list[str]:
    """The targets of make, commands of kvspec and options in a block that do not exist."""
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
    """Empty if the output is as shown; otherwise the new output, to be put on the page."""
    there = "".join(f"{_steady(line)}\n" for line in printed.splitlines())
    parts = ["(?:.*\n)*" if line == ELIDED else _line(line) for line in shown]
    return "" if re.fullmatch("".join(parts), there) else f"it prints now:\n{printed}"


def run(command: str, folder: Path) -> str:
    """The standard output of a command, run in a folder with links to all parts of the checkout.

    `kvspec` and `.venv/bin/kvspec` are those of the running Python. New files stay in the folder.
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
    if done.returncode not in (0, 1, 3):  # each of the three is the status of a verdict
        raise RuntimeError(f"{command}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def module(page: str) -> str:
    """The text of mymodule.py: the Python of a page up to the block that defines `Adapter`."""
    kept: list[str] = []
    for block in blocks((ROOT / page).read_text(encoding="utf-8"), page):
        if block.language == "python":
            kept.append(block.text)
            if re.search(r"^class Adapter\b", block.text, re.MULTILINE):
                return "\n".join(kept)
    return ""


def shown_in_comments(text: str) -> tuple[str, ...]:
    """The output that Python blocks show, in the comment behind each call of `print`."""
    code = [block.text for block in blocks(text) if block.language == "python"]
    return tuple(re.findall(r"^ *print\(.*\)  # (.*)$", "".join(code), re.MULTILINE))


def printing(text: str) -> int:
    """The number of lines in the Python of a page that call `print`."""
    code = [block.text for block in blocks(text) if block.language == "python"]
    return len(re.findall(r"^ *print\(", "".join(code), re.MULTILINE))


def _steady(line: str) -> str:
    for pattern, name in VARIES:
        line = pattern.sub(name, line)
    return line.rstrip()


def _line(shown: str) -> str:
    return ".*".join(map(re.escape, _steady(shown).split(ELIDED))) + "\n"
