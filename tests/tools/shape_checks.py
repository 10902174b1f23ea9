"""The checker of signatures that the import hook of `conftest` puts on what is traced."""

import numpy as np
from beartype import BeartypeConf, FrozenDict, beartype
from jax import Array

checked = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({Array: Array | np.ndarray})))
"""A signature that names no axes is that of a public function: a caller may pass numpy's arrays."""
