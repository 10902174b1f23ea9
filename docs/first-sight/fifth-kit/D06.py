"""The time limits for `--hang-seconds 100`: of a step, and of a step of the warm-up.

README.md: "`--hang-seconds` is the time limit of one step", and docs/adapters.md: "A step that takes
longer than `--hang-seconds` counts as hung"; "A step of the warm-up has at least 40 seconds". A step
that compiles for 60 seconds is within both, so the limit of the warm-up must be 100 and not 40. With
5 seconds it stays 40.
"""

from common_d import conclude
from conformance.lockstep.watchdog import patience_of

seen = {seconds: (patience_of(seconds).step, patience_of(seconds).first) for seconds in (5.0, 100.0)}
conclude({5.0: (5.0, 40.0), 100.0: (100.0, 100.0)}, seen)
