"""Executable documents: every block marked ```python runs, and its assertions hold.

The blocks of one page share a namespace and run in order. The runner itself is tested on blocks
that fail.
"""

import ast
import json
import re
import signal
import tomllib
from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import docs_tools
import pytest
from deep import deep_after
from docs_tools import DOCS, ELSEWHERE, PAGES, ROOT, TEXTS, Block, Console, blocks

from spec import ladder
from spec.clauses import CLAUSES

RUNGS = [rung.name for rung in ladder.RUNGS if rung.name != "admission"]
"""The rungs that have a page of their own; admission is on that of scheduling."""
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def name(page: Path) -> str:
    """The path of a page in the project."""
    return str(page.relative_to(ROOT))


def lines_of_adapters(source: str) -> dict[str, int]:
    """The lines of each class that has `apply` and `observe`, without blank ones and docstrings."""
    found, lines = {}, source.splitlines()
    for kind in ast.walk(ast.parse(source)):
        if not isinstance(kind, ast.ClassDef):
            continue
        parts = [part for part in kind.body if isinstance(part, ast.FunctionDef)]
        if not {"__init__", "apply", "observe"} <= {part.name for part in parts}:
            continue
        told = {
            line
            for part in (kind, *parts)
            if isinstance(part, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(part)
            for line in range(part.body[0].lineno, (part.body[0].end_lineno or 0) + 1)
        }
        whole = range(kind.lineno, (kind.end_lineno or 0) + 1)
        found[kind.name] = sum(bool(lines[at - 1].strip()) for at in whole if at not in told)
    return found


def text_of(page: str) -> str:
    """The text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


BLOCKS = tuple(block for page in PAGES for block in blocks(text_of(name(page)), name(page)))
CONSOLES = docs_tools.consoles_of(BLOCKS)


def run(name: str, text: str) -> dict[str, object]:
    """Run the blocks of a page in one namespace; an error names the page and its line."""
    namespace: dict[str, object] = {"__name__": name}
    for block in blocks(text, name):
        if block.language == "python":
            exec(compile("\n" * block.before + block.text, name, "exec"), namespace)
    return namespace


def table() -> str:
    """The clauses as a table, in the order of the registry."""
    rows = (
        f"| {clause.id} | {clause.kind} | {clause.text} | {clause.source} |"
        for clause in CLAUSES.values()
    )
    return "\n".join(["| id | kind | statement | source |", "|---|---|---|---|", *rows])


@pytest.mark.parametrize("page", sorted({one.page for one in BLOCKS if one.language == "python"}))
def test_the_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The python blocks of a page run, their assertions hold, and they print what is shown."""
    monkeypatch.chdir(tmp_path)  # the folder for files that a page writes
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the handler of a new Python process
    printed, text = StringIO(), text_of(page)
    with redirect_stdout(printed):
        run(str(ROOT / page), text)

    shown = docs_tools.shown_in_comments(text)
    assert docs_tools.printing(text) == len(shown), "a call of print has no comment behind it"
    assert not docs_tools.differences(shown, printed.getvalue())


@pytest.mark.parametrize(
    "page",
    [
        "docs/adapters.md",
        "tests/packaging/foreign_engine/foreign_engine.py",
        "tests/tools/mistaken_adapters.py",
        "tests/tools/toy_engine.py",
    ],
)
def test_an_adapter_has_thirty_lines_at_most(page: str) -> None:
    """Each adapter of a whole engine that a reader sees has 30 lines at most."""
    text = text_of(page)
    if page.endswith(".md"):
        text = docs_tools.module(page)
    found = lines_of_adapters(text)

    adapters = {name: lines for name, lines in found.items() if name == "Adapter"}
    assert 1 == len(adapters)
    assert max(adapters.values()) <= 30


@pytest.mark.parametrize(
    "console",
    # The last ones take seconds. The first fuzzes our engine, which `make deep` does.
    deep_after(1, reversed([one for one in CONSOLES if one.command not in ELSEWHERE])),
    ids=lambda console: console.title,
)
def test_a_command_prints_what_its_page_shows(console: Console, tmp_path: Path) -> None:
    """Times, rates and omitted lines aside, a command prints the output that its page shows."""
    docs_tools.check(console, tmp_path)


def test_what_runs_elsewhere_is_shown_somewhere() -> None:
    """Each command in the list for `make docs` is shown on a page."""
    assert ELSEWHERE.keys() <= {one.command for one in CONSOLES}


def test_text_is_no_output() -> None:
    """Each block that is neither run nor parsed is listed with a reason, so none is an output."""
    found = Counter(block.page for block in BLOCKS if block.language == "text")

    assert TEXTS == {page: (found[page], what) for page, (_, what) in TEXTS.items()}
    assert TEXTS.keys() == found.keys()


def test_data_can_be_read() -> None:
    """Blocks of JSON and TOML can be parsed."""
    for block in BLOCKS:
        if block.language == "json":
            assert [json.loads(line) for line in block.text.splitlines()]
        if block.language == "toml":
            assert tomllib.loads(block.text)


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.language in ("sh", "console")])
def test_commands_exist(block: Block) -> None:
    """Each target of make, command of kvspec and option in a block exists."""
    assert [] == docs_tools.unknown_words(block)


def test_every_rung_has_a_page_that_runs() -> None:
    """Each rung has a page with code, and the index names every page of a rung."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")

    for rung in RUNGS:
        assert f"docs/{rung}.md" in {one.page for one in BLOCKS if one.language == "python"}
        assert f"]({rung}.md)" in index


def test_the_index_names_every_page() -> None:
    """The index names every page of the documents."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")

    assert [] == [
        page.name
        for page in PAGES
        if page.parent == DOCS and page.name != "index.md" and f"]({page.name})" not in index
    ]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file that exists."""
    targets = LINK.findall(page.read_text(encoding="utf-8"))

    assert [] == [target for target in targets if not (page.parent / target).exists()]


def test_the_table_of_clauses_is_the_registry() -> None:
    """The page has the table of clauses of the registry; otherwise the failure shows that table."""
    text = (DOCS / "clauses.md").read_text(encoding="utf-8")

    assert table() in text, table()
    assert len(CLAUSES) + 2 == sum(line.startswith("|") for line in text.splitlines())


PAGE = """# A page

```python
x = 1
```

```text
not python
```

```python
assert x == {}, "x is one"
```
"""


def test_the_runner_carries_names_from_block_to_block() -> None:
    """A later block sees the names of earlier ones, and blocks of other languages are not run."""
    assert 1 == run("page.md", PAGE.format(1))["x"]
    assert [("python", 3), ("text", 7), ("python", 11)] == [
        (block.language, block.before) for block in blocks(PAGE)
    ]


def test_the_runner_fails_where_a_block_fails() -> None:
    """A failing assertion is raised with the line of the page on which it stands."""
    with pytest.raises(AssertionError, match="x is one") as caught:
        run("page.md", PAGE.format(2))

    last = caught.traceback[-1]
    assert ("page.md", 12) == (last.frame.code.raw.co_filename, last.lineno + 1)


def test_the_runner_does_not_skip_what_it_cannot_read() -> None:
    """A block with a syntax error, an open fence and an indented fence are errors."""
    with pytest.raises(SyntaxError):
        run("page.md", "```python\nx = = 1\n```\n")
    with pytest.raises(ValueError, match="not closed"):
        run("page.md", "# A page\n\n```python\nx = 1\n")
    for hidden in ("- An item\n\n  ```python\n  x = 1\n  ```\n", "It prints:\n\n    FAILS\n"):
        with pytest.raises(ValueError, match="indented"):
            run("page.md", hidden)
    for fence in ("```\nFAILS\n```\n", "```bash\nls\n```\n"):
        with pytest.raises(ValueError, match="is none of"):
            run("page.md", fence)


SHOWN = ("one", "...", "in 1.5 s, Params(x=1, ...)", "  steps_per_second: 4.0")
PRINTED = "one\ntwo\nthree\nin 22 s, Params(x=1, y=2)\n  steps_per_second: 17\n"


def test_an_output_differs_in_times_rates_and_what_is_left_out_alone() -> None:
    """Outputs may differ in times, rates and omitted parts, and any other change is reported."""
    assert not docs_tools.differences(SHOWN, PRINTED)
    assert not docs_tools.differences((), "")
    for old, new in (("one", "none"), ("x=1", "x=2"), (" s,", " steps,"), ("per_", "in_")):
        assert PRINTED.replace(old, new) in docs_tools.differences(SHOWN, PRINTED.replace(old, new))
    assert docs_tools.differences(SHOWN, PRINTED + "more\n")
    assert docs_tools.differences(("one",), "")


def test_a_console_is_a_command_and_its_output() -> None:
    """A block may have several commands, and output without a command is an error."""
    block = Block("p.md", "console", "$ kvspec doctor\nhere\n$ a \\\n  b\n", 4)

    assert [("kvspec doctor", ("here",)), ("a   b", ())] == [
        (one.command, one.shown) for one in docs_tools.consoles(block)
    ]
    with pytest.raises(ValueError, match="begins with"):
        docs_tools.consoles(Block("p.md", "console", "FAILS\n", 4))


def test_a_command_that_is_not_there_is_seen() -> None:
    """A target, a command or an option that does not exist is named."""
    words = "make tset\nkvspec fuss\nkvspec fuzz --sceonds 4\nmake test  # kvspec fuss\n"

    assert ["make tset", "kvspec fuss", "kvspec fuzz --sceonds"] == docs_tools.unknown_words(
        Block("p.md", "sh", words, 1)
    )
