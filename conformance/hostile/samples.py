"""Valid files, made by kvspec itself, for the campaign to damage."""

import argparse
import io
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

from conformance.cli import graphs
from conformance.cli.contract import Report, as_json
from conformance.cli.result_json import to_text
from conformance.exploration import graph
from conformance.files import histories
from conformance.files.geometries import parse_geometry
from conformance.hostile.toy import TOY
from conformance.protocol import Engine, Factory
from conformance.recordings.format import line_from_data
from conformance.recordings.itf import to_itf
from conformance.recordings.recorder import Recorder
from conformance.recordings.validate import header_and_lines
from conformance.runtime.sources import digest
from conformance.verdict import Verdict
from spec.machines.actions import Allocate, Assign, Clone, Free, Reserve, Reset, Write
from spec.vocabulary import CleanupMode, Geometry, Params, default_limits

GEOMETRY: Final = Geometry(pages=16, slots=4, page_size=4, pages_per_seq=4)
SMALL: Final = "pages=2,slots=2,page_size=2,pages_per_seq=1"
BATCH: Final = tuple((0, position) for position in range(6))
STEPS: Final = (
    Reserve(0),
    Assign(0, (5, 6, 7, 8, 9, 10), Params(max_new=1), 1),
    Allocate(BATCH),
    Write(BATCH),
    Clone(parent=0, child=1, choice=1),
    Free(0),
    Reset(),
)
AZURE: Final = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
    b"2023-11-16 18:17:03.9799600,374,44\n"
    b"2023-11-16 18:17:04.0781490,396,109\n"
)
MOONCAKE: Final = (
    b'{"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [1, 2]}\n'
    b'{"timestamp": 9, "input_length": 600, "output_length": 30, "hash_ids": [1, 3]}\n'
)


@cache
def samples() -> dict[str, bytes]:
    """Each file, by the name that commands use for it."""
    recording = _recording()
    return {
        "toy.py": TOY.encode(),
        "history.jsonl": _history(),
        "recording.jsonl": recording,
        "trace.itf.json": _itf(recording),
        "azure.csv": AZURE,
        "mooncake.jsonl": MOONCAKE,
        "e.npz": _checkpoint(),
        "result.json": _result(),
    }


def _toy() -> Engine:
    module: dict[str, object] = {}
    exec(TOY, module)  # the text of our own that hostile engines are made from
    make = cast(Factory, module["make"])
    return make(GEOMETRY, default_limits(GEOMETRY), CleanupMode.INCREMENTAL)


def _recording() -> bytes:
    out = io.StringIO()
    engine = Recorder(_toy(), out)
    for step in STEPS:
        engine.apply(step)
    return out.getvalue().encode()


def _itf(recording: bytes) -> bytes:
    header, lines = header_and_lines(io.BytesIO(recording), Path("recording.jsonl"))
    return json.dumps(to_itf(header, lines.read(line_from_data))).encode()


def _history() -> bytes:
    recorded = histories.Recorded(
        engine="toy:make",
        geometry=GEOMETRY,
        limits=default_limits(GEOMETRY),
        cleanup=CleanupMode.INCREMENTAL,
        history=STEPS,
    )
    return histories.dump(recorded).encode()


def _checkpoint() -> bytes:
    """A checkpoint of the exploration of SMALL, before its first level."""
    geometry = parse_geometry(SMALL)
    asked = argparse.Namespace(
        rung="sharing",
        geometry=geometry,
        alphabet="legal",
        cleanup=None,
        pages="lowest",
        stop_len=1,
        leave_out=[],
    )
    about = graphs.about(asked) | {"source": digest()}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "e.npz"
        graph.save(graph.Graph(), path, about)
        return path.read_bytes()


def _result() -> bytes:
    report = Report(command="kernel", seed=0)
    report.count(targets=[])
    return to_text(as_json(report, Verdict.UNDECIDED, 0.5)).encode()
