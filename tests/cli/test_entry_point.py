"""The entry point has a package of its own, which checks that the other packages are kvspec's."""

import os
import subprocess
import sys
from pathlib import Path

import kvspec
import pytest


@pytest.mark.parametrize("package", ["spec", "impl", "conformance"])
@pytest.mark.parametrize("init", [None, "", "raise RuntimeError('foreign code was run')"])
@pytest.mark.parametrize("how", [("-m", "kvspec", "doctor"), ("-m", "kvspec", "--version")])
def test_a_foreign_package_is_refused(
    package: str, init: str | None, how: tuple[str, ...], tmp_path: Path
) -> None:
    """A foreign package with one of our names is refused before any of its code runs."""
    (tmp_path / package).mkdir()
    if init is not None:
        (tmp_path / package / "__init__.py").write_text(init)

    done = subprocess.run(
        [sys.executable, *how],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (2, "") == (done.returncode, done.stdout)
    assert 1 == done.stderr.count("\n")
    assert f"the package {package} is not kvspec's: Python found {tmp_path}" in done.stderr


def test_our_own_packages_are_no_foreign_ones() -> None:
    """Each of the three packages passes the check."""
    assert kvspec.foreign() is None
