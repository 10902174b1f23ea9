"""The last row of an azure trace, with and without a line feed behind it: both have 345 tokens."""
import sys
import tempfile
from pathlib import Path

from conformance.traffic import traces

ROWS = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,345"
)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "trace.csv"
    for end in ("\n", "\r\n", ""):
        path.write_bytes((ROWS.replace("\n", end or "\n") + end).encode())
        lengths = [row.lengths for row in traces.load(path, "azure")]
        print(f"ends with {end!r}:", lengths)
        if lengths != [(374, 44), (396, 345)]:
            sys.exit(1)
