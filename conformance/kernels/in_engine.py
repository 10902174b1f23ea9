"""Our kernel for TPUs inside an engine, on any machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from conformance.kernels.interpret import CHIP, Mode, parameters
from impl.attention import tpu


@contextmanager
def interpreted() -> Iterator[None]:
    """Run the kernel in its interpreter, in all that is compiled in the block.

    What was compiled in it stays so: forget it afterwards, or use no such engine again.
    """
    kernel = tpu.append_and_attend
    tpu.append_and_attend = partial(kernel, interpret=parameters(Mode.WAIT), chip=CHIP)
    try:
        yield
    finally:
        tpu.append_and_attend = kernel
