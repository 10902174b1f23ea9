"""The text of the index page: README.md, with each link to a file as the path of that file.

A relative link leads nowhere there. Everything else about the package stands in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup

LINK = re.compile(r"\[([^]]+)\]\(([^):\s]+)\)")
NOTE = "\nFiles and folders named here are paths of the source distribution.\n"


def _path(link: re.Match[str]) -> str:
    label, target = link.groups()
    return f"`{target}`" if label == target else f"{label} (`{target}`)"


setup(
    long_description=LINK.sub(_path, Path("README.md").read_text(encoding="utf-8")) + NOTE,
    long_description_content_type="text/markdown",
)
