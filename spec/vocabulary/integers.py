"""The constants of the exact model: a two-layer transformer in wrapping 32-bit integers.

The model itself is written twice, in `spec.model` and in the engine, because the comparison of the
two is the point; its constants stand here once. Multipliers are odd, so that each is invertible
modulo 2**32 and a change of any one cell always changes the sum it enters.
"""

from typing import Final

LAYERS: Final = 2
VOCABULARY: Final = 1 << 15
TOKEN_FACTOR: Final = 0x9E3779B1
POSITION_FACTOR: Final = 0x85EBCA77
KEY_FACTOR: Final = 0xC2B2AE3D
VALUE_FACTOR: Final = 0x27D4EB2F
KEY_SALTS: Final = (0x165667B1, 0x2545F491)
VALUE_SALTS: Final = (0x6C62272E, 0x51ED270B)
MIX_FACTORS: Final = (0x7FEB352D, 0x846CA68B)
