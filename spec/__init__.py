"""kvspec: what a paged KV cache must do, as executable documentation.

Start with `spec.machines.naive`, the meaning of generation, and climb the ladder: `cache`, `pages`,
`sharing`, `lifecycle`, `scheduling`, `admission`. Each rung has a `State`, its actions, `refusals`,
`step`, and towards the rung below `abstract` and `lower`. `spec.clauses` lists what must hold.
"""

from typing import Final

SPEC_VERSION: Final = "0.1.0"
__kvspec__: Final = True
