"""A prompt of exactly two blocks of 512 tokens has two ids, in a trace of Mooncake."""
import json, tempfile
from pathlib import Path
from common import *
from conformance.traffic import replay
from spec.vocabulary import InvalidInput

path = Path(tempfile.mkdtemp()) / "trace.jsonl"
rows = [(600, [1, 2]), (1024, [1, 3])]
path.write_text("".join(json.dumps({"timestamp": 0, "input_length": n, "output_length": 40, "hash_ids": ids}) + "\n" for n, ids in rows))
try:
    found = [len(one.prompt) for one in replay.requests(path, "mooncake", page_size=16, limit=None)]
except InvalidInput as error:
    found = str(error)
# lengths are divided by 512 / 16 = 32, rounded up
seen("the lengths of the prompts", found, [19, 32])
