"""A history file that names our engine, and a Python of its own, is not run without --trust.

The Python of the file is a script that leaves a mark and then becomes this Python, so the run would
work. README, Verdicts: "kvspec rerun runs no engine except our own, unless you name it or --trust the
file"; docs/adapters.md: a finding names its engine and its Python, and "a file may come from anybody:
name the engine with --engine and --python, or give --trust". So the command must refuse (bad input,
exit status 2), and must not have started the program that the file names.
"""

import sys
import tempfile
from pathlib import Path

from common_d import compare, kvspec
from conformance.engines.registry import OUR_ENGINE
from conformance.files.histories import Recorded, dump
from spec.machines.actions import Reserve
from spec.vocabulary import CleanupMode, Geometry, default_limits

sizes = Geometry(pages=2, page_size=2, slots=1, pages_per_seq=2)
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    mark, python, history = folder / "started", folder / "python", folder / "theirs.jsonl"
    python.write_text(f'#!/bin/sh\ntouch {mark}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    recorded = Recorded(
        engine=OUR_ENGINE, geometry=sizes, limits=default_limits(sizes),
        cleanup=CleanupMode.INCREMENTAL, history=(Reserve(0),), python=str(python),
    )
    history.write_text(dump(recorded))
    status, told = kvspec("rerun", history, folder=folder)
    seen = status, mark.exists()
print(told.strip())
compare("exit status, and whether the file's program was started", (2, False), seen)
