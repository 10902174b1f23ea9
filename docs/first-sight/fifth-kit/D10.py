"""`validate latest.jsonl --json run-12.jsonl`, where `latest.jsonl` is a link to `run-12.jsonl`.

README.md: "No command overwrites a file that it reads", and bad usage has status 2. Both names are
one file, and links are followed where a result is written. So the command must be refused with status
2, and the recording must stay as it is.
"""

import tempfile
from pathlib import Path

from common_d import conclude, kvspec

RECORDING = (
    '{"kvspec": "recording", "version": 2, "geometry": {"pages": 8, "page_size": 4, "slots": 2, '
    '"pages_per_seq": 4}, "shows": ["used"]}\n'
    '{"step": "Reserve", "slot": 0, "saw": {"used": {"0": true}}}\n'
)
with tempfile.TemporaryDirectory() as folder:
    run = Path(folder) / "run-12.jsonl"
    run.write_text(RECORDING)
    (Path(folder) / "latest.jsonl").symlink_to(run.name)
    words = ("validate", "latest.jsonl", "--require", "nothing", "--json", "run-12.jsonl")
    done = kvspec(*words, folder=folder)
    whole = run.read_text() == RECORDING
print(done.stderr[-300:])
conclude((2, True), (done.returncode, whole))
