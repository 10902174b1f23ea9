"""The reason why a program does not compile, in one line: no stack, no folders of this machine."""

import re
import traceback
from pathlib import Path
from typing import Final

LONGEST: Final = 200
"""The limit of characters of a reason."""
NEEDS: Final = (
    re.compile(r"memory space (\w+).*?size (\S+) and limit (\S+) exceeded", re.DOTALL),
    re.compile(r"memory space (\w+).*?Used (\S+) of (\S+)", re.DOTALL),
)
"""The compiler's messages for too little memory: which memory, needed, available."""
FOLDERS: Final = re.compile(r"(?<![\w.:/])/(?:[^\s/\"']+/)+")


def explain(error: BaseException) -> tuple[str, str]:
    """The cause of a compiler error in one word, and a short reason: no stack, no folders."""
    text = str(error)
    for pattern in NEEDS:
        match = pattern.search(text)
        if match:
            memory, needed, limit = match.groups()
            return memory, f"needs {_plain(needed)} of {memory}, limit {_plain(limit)}"
    kind = type(error).__name__
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if not line:
        last = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{last.line} ({Path(last.filename).name})"
    return kind, short(f"{kind}: {line}")


def _plain(size: str) -> str:
    """The compiler's own figure; its M are 2**20 bytes."""
    number, unit = size.rstrip(".,"), ""
    if number[-1:] in "KMG":
        number, unit = number[:-1], f" {number[-1]}iB"
    return f"{number}{unit}"


def short(text: str) -> str:
    """One line, without folders."""
    line = " ".join(FOLDERS.sub("", text).split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."
