"""docs/recordings.md: `"refused": []` is a refusal of which the engine names no reason, and
`an action refused` is any refusal. Slot 0 is reserved and has no prompt, so its clone is rightly
refused (SLOT_EMPTY). The recording has reached `an action refused` and never `Clone: done`.
"""
import contextlib, io, json, os, sys, tempfile
from pathlib import Path
from conformance.cli.main import main

lines = [
    {"kvspec": "recording", "version": 2,
     "geometry": {"pages": 8, "page_size": 4, "slots": 2, "pages_per_seq": 4}},
    {"step": "Reserve", "slot": 0},
    {"step": "Clone", "parent": 0, "child": 1, "choice": 1, "refused": []},
]
wrong = []
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    for policy in ("any", "lowest"):
        lines[0]["policy"] = policy
        Path("run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for item, status in (("nothing", 0), ("Reserve: done", 0), ("an action refused", 0),
                             ("Clone: done", 3), ("Clone: SLOT_EMPTY", 0)):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                found = main(["validate", "run.jsonl", "--require", item])
            if found != status:
                wrong.append(f"{policy}: --require {item!r} ends with {found}, should be {status}")
    os.chdir("/")
print("\n".join(wrong) or "as it should be")
sys.exit(bool(wrong))
