"""Every test that traces the engine checks the shapes and dtypes that its signatures name."""

from jaxtyping import install_import_hook

TRACED = (
    "impl.attention",
    "impl.cache",
    "impl.commit",
    "impl.models",
    "impl.plan",
    "impl.state",
    "impl.status",
    "impl.steps",
)
"""The modules that are traced. Outside the tests nothing is checked, and nothing is slower."""

install_import_hook(TRACED, "shape_checks.checked")
