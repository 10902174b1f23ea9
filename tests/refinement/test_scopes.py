"""The table of all scopes: what each run has found, and nothing of an earlier one."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conformance.refinement import scopes

FOUND = {"verdict": "holds", "states": 11_111, "transitions": 22_222, "seconds": 7.0}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scopes.FOLDER.mkdir(parents=True)
    monkeypatch.setattr(scopes, "SCOPES", scopes.SCOPES[:3])


@pytest.mark.parametrize("ends", range(3))
def test_a_scope_without_a_result_is_undecided(
    ends: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One whose command ends without a result has none, also if an earlier run has left one."""
    for scope in scopes.SCOPES:
        earlier = json.dumps({"verdict": "fails", "states": 77_777})
        (scopes.FOLDER / f"{scope.name}.json").write_text(earlier, encoding="utf-8")
    ran = list[list[str]]()

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        if len(ran) - 1 == ends:
            return subprocess.CompletedProcess(command, 2)
        result = Path(command[command.index("--json") + 1])
        result.write_text(json.dumps(FOUND), encoding="utf-8")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)

    status = scopes.main()

    printed = capsys.readouterr().out.splitlines()
    rows = [line for line in printed if "holds" in line or "undecided" in line]
    assert 2 == status
    assert [scope.geometry for scope in scopes.SCOPES] == [
        command[command.index("--geometry") + 1] for command in ran
    ]
    assert [("undecided" in row, "11,111" in row) for row in rows] == [
        (at == ends, at != ends) for at in range(3)
    ]
    assert not any("77,777" in row or "fails" in row for row in rows)
