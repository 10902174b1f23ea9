"""The specification of a paged KV cache, as executable documentation.

Start with `spec.machines.naive`, the meaning of generation, and climb the ladder: `cache`, `pages`,
`sharing`, `rollback`, `lifecycle`, `scheduling`, `admission`. Each module ends with its `RUNG`: its
components of the state, its actions with their refusals and effects, and its edges to lower rungs.
`spec.ladder` composes rungs to machines, and `spec.clauses` lists the invariants.
"""

from typing import Final

SPEC_VERSION: Final = "0.1.0"
__kvspec__: Final = True
