"""The commands of the documents that the tests leave out: `make docs` runs them, as listed."""

from pathlib import Path

import docs_tools
import pytest
from docs_tools import ELSEWHERE, PAGES, ROOT, Console, blocks

CONSOLES = docs_tools.consoles_of(
    block
    for page in PAGES
    for block in blocks(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))
)


@pytest.mark.parametrize(
    "console",
    [one for one in CONSOLES if one.command in ELSEWHERE],
    ids=lambda console: console.title,
)
def test_a_command_prints_what_its_page_shows(console: Console, tmp_path: Path) -> None:
    """But for times, rates and what is left out, the output is the one in the document."""
    docs_tools.check(console, tmp_path)
