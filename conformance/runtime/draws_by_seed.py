"""Draws of Hypothesis that depend on the seed alone.

Now and then Hypothesis draws a constant from the source of a loaded module of the project. So each
edit of an engine, and each further module, would change what a seed draws.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants


@contextmanager
def by_seed_alone() -> Iterator[None]:
    """Within it, no constant of a module is drawn. Hypothesis has no public setting for that."""
    remembered = providers.CONSTANTS_CACHE.cache
    remembered.clear()
    try:
        with patch.object(providers, "_get_local_constants", Constants):
            yield
    finally:
        remembered.clear()
