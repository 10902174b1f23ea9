"""Slow tests of the documents, for `make docs`: the commands that `make test` leaves out.

One more test runs the lines that the README has for any CI, which install kvspec from nothing.
"""

import os
import shutil
import subprocess
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
    """Times, rates and omitted lines aside, a command prints the output that its page shows."""
    docs_tools.check(console, tmp_path)


def test_the_recipe_for_ci_runs_where_nothing_is_installed(tmp_path: Path) -> None:
    """The recipe passes a right adapter, fails a leaking one, and keeps its history for later."""
    (recipe,) = (
        block.text
        for block in blocks((ROOT / "README.md").read_text(encoding="utf-8"))
        if block.language == "sh" and "$KVSPEC" in block.text
    )
    source, here = tmp_path / "kvspec", tmp_path / "here"
    left_out = shutil.ignore_patterns(".git", ".venv*", ".kvspec", "build", "__pycache__")
    shutil.copytree(ROOT, source, ignore=left_out)
    here.mkdir()
    adapter, variables = docs_tools.module("docs/adapters.md"), os.environ | {"KVSPEC": str(source)}

    def status() -> int:
        return subprocess.run(
            ["bash", "-ec", recipe], cwd=here, env=variables, check=False, timeout=600
        ).returncode

    (here / "mymodule.py").write_text(adapter, encoding="utf-8")
    assert 0 == status()
    leaky = adapter.replace("self.free += self.tables.pop(name)", "self.tables.pop(name)")
    assert leaky != adapter
    (here / "mymodule.py").write_text(leaky, encoding="utf-8")
    assert 1 == status()
    assert list((here / ".kvspec" / "corpus").glob("cons_*.jsonl"))
