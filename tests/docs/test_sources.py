"""Citations: every cited source is a section of docs/sources.md."""

import re

from docs_tools import ROOT

from spec.clauses import CLAUSES

SHIPPED = ("spec", "impl", "conformance", "docs", "tests")
OUTSIDE = re.compile(r"\b[Ss]eed[ ]00\d|\bDESIG[N]\b|\bresearc[h]/|\bseed[s]/")
CITED = re.compile(r'docs/sources\.md, ("[^"]+"(?:(?:, | and |, and )"[^"]+")*)')
TITLE = re.compile(r"^### \d+\.\d+ (.+)$", re.MULTILINE)


def texts() -> dict[str, str]:
    """The text of each file that ships, by its path."""
    files = [ROOT / "README.md", ROOT / "Makefile", ROOT / "pyproject.toml"]
    for room in SHIPPED:
        files += (
            file for file in sorted((ROOT / room).rglob("*")) if file.suffix in (".py", ".md")
        )
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}


def titles() -> list[str]:
    """The titles of the sections of docs/sources.md."""
    return TITLE.findall((ROOT / "docs" / "sources.md").read_text(encoding="utf-8"))


def cited(text: str) -> list[str]:
    """The titles that a text cites, over line breaks and comment marks too."""
    flat = re.sub(r"\s*\n\s*(?:# )?", " ", text)
    return [title for found in CITED.findall(flat) for title in re.findall(r'"([^"]+)"', found)]


def test_no_file_cites_a_document_outside_the_repository() -> None:
    """Docstrings, comments and pages name no document outside the repository."""
    assert [] == [
        f"{path}:{number}"
        for path, text in texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if OUTSIDE.search(line)
    ]


def test_every_cited_source_is_a_section() -> None:
    """A citation names a section that exists, and every clause names at least one."""
    known = titles()

    found = {title: path for path, text in texts().items() for title in cited(text)}
    assert found
    assert {} == {title: path for title, path in found.items() if title not in known}
    assert [] == [
        (clause.id, title)
        for clause in CLAUSES.values()
        for title in clause.source.split("; ")
        if title not in known
    ]


def test_titles_of_sources_are_unique() -> None:
    """No two sections of sources have the same title."""
    known = titles()

    assert sorted(set(known)) == sorted(known)


def test_citations_are_read_over_line_breaks() -> None:
    """All titles of a citation are found, even over the lines of a docstring or comment."""
    page = "docs/sources.md"
    docstring = f'Source: {page},\n    "A one" and\n    "B".'
    comment = f'# Source:\n# {page}, "C", "D" and "E". F "G".'

    assert ["A one", "B"] == cited(docstring)
    assert ["C", "D", "E"] == cited(comment)
