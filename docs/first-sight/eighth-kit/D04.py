"""A folder with a manifest is complete: a call that cannot move a file leaves none."""

import sys
import tempfile
from pathlib import Path

from conformance.vectors import files
from conformance.vectors.build import build
from conformance.vectors.suites import suites
from spec.vocabulary import InvalidInput

covers = [build(suites()[0])]
with tempfile.TemporaryDirectory() as name:
    folder = Path(name) / "vectors"
    files.write(covers, folder)
    assert (folder / files.MANIFEST).exists()
    (folder / files.STATISTICS).unlink()
    (folder / files.STATISTICS).mkdir()
    try:
        files.write(covers, folder)
        raise SystemExit(2)
    except InvalidInput as error:
        print(error)
    whole = (folder / files.STATISTICS).is_file()
    claims = (folder / files.MANIFEST).exists()
print(f"manifest: {claims}, complete: {whole}")
sys.exit(1 if claims and not whole else 0)
