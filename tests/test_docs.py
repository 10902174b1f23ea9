"""The documents are executable: every block marked ```python runs, and what it asserts holds.

The blocks of one page share a namespace and run in order. The runner itself is tested on blocks
that fail.
"""

import re
from pathlib import Path

import pytest

from spec.clauses import CLAUSES

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("README.md")])
RUNGS = ("naive", "cache", "pages", "sharing", "lifecycle", "scheduling")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def blocks(text: str) -> list[tuple[int, str]]:
    """The python blocks of a page, each with the number of lines before it."""
    if text.count("\n```") % 2 != text.startswith("```"):
        raise ValueError("a fence is opened and not closed")
    if re.search(r"^[ \t]+```python", text, re.MULTILINE):
        raise ValueError("an indented block would not run; begin its fence in the first column")
    return [
        (text.count("\n", 0, found.start(2)), found[2])
        for found in FENCE.finditer(text)
        if found[1] == "python"
    ]


def run(name: str, text: str) -> dict[str, object]:
    """Run the blocks of a page in one namespace; an error names the page and its line."""
    namespace: dict[str, object] = {"__name__": name}
    for lines_before, code in blocks(text):
        exec(compile("\n" * lines_before + code, name, "exec"), namespace)
    return namespace


def table() -> str:
    """The clauses as a table, in the order of the registry."""
    rows = (
        f"| {clause.id} | {clause.kind} | {clause.text} | {clause.source} |"
        for clause in CLAUSES.values()
    )
    return "\n".join(["| id | kind | statement | source |", "|---|---|---|---|", *rows])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every python block of the page runs after those before it, and its assertions hold."""
    monkeypatch.chdir(tmp_path)  # where a page writes its files
    run(str(page), page.read_text(encoding="utf-8"))


def test_every_rung_has_a_page_that_runs() -> None:
    """Each rung of the ladder has a page with code, and the index names all of them."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")

    for rung in RUNGS:
        assert blocks((DOCS / f"{rung}.md").read_text(encoding="utf-8")), rung
        assert f"]({rung}.md)" in index


def test_the_index_names_every_page() -> None:
    """No page of the documents can only be found by listing the folder."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")

    assert [] == [
        page.name
        for page in PAGES
        if page.parent == DOCS and page.name != "index.md" and f"]({page.name})" not in index
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file that exists."""
    targets = LINK.findall(page.read_text(encoding="utf-8"))

    assert [] == [target for target in targets if not (page.parent / target).exists()]


def test_the_table_of_clauses_is_the_registry() -> None:
    """The page lists each clause as the registry does; if not, here is the table to put there."""
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
    """A later block sees what an earlier one defined, and blocks of other languages are not run."""
    assert 1 == run("page.md", PAGE.format(1))["x"]
    assert [3, 11] == [before for before, _ in blocks(PAGE)]


def test_the_runner_fails_where_a_block_fails() -> None:
    """An assertion that does not hold is raised, from the line of the page on which it stands."""
    with pytest.raises(AssertionError, match="x is one") as caught:
        run("page.md", PAGE.format(2))

    last = caught.traceback[-1]
    assert ("page.md", 12) == (last.frame.code.raw.co_filename, last.lineno + 1)


def test_the_runner_does_not_skip_what_it_cannot_read() -> None:
    """A block that is no Python is an error; so is a fence that is indented or not closed."""
    with pytest.raises(SyntaxError):
        run("page.md", "```python\nx = = 1\n```\n")
    with pytest.raises(ValueError, match="not closed"):
        run("page.md", "# A page\n\n```python\nx = 1\n")
    with pytest.raises(ValueError, match="indented"):
        run("page.md", "- An item\n\n  ```python\n  x = 1\n  ```\n")
