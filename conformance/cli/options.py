"""The types of command line options: each refuses what it cannot take, and says why."""

import argparse
import math
from collections.abc import Callable

from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import INT32_MAX


def integer(*, least: int) -> Callable[[str], object]:
    """The type of an option that is an integer, `least` or more."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= INT32_MAX):
            allowed = f"an integer from {least} to {INT32_MAX}"
            raise InvalidInput("number", seen=text, allowed=allowed, remedy="Change it.")
        return int(text)

    return argument(parse)


def number(*, least: float) -> Callable[[str], object]:
    """The type of an option that is a finite number, `least` or more."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= least):
            allowed = f"a finite number, {least:g} or more"
            raise InvalidInput("number", seen=text, allowed=allowed, remedy="Change it.")
        return value

    return argument(parse)


def argument(parse: Callable[[str], object]) -> Callable[[str], object]:
    """Parse an option so that argparse shows the reason: by itself it hides a ValueError's."""

    def convert(text: str) -> object:
        try:
            return parse(text)
        except InvalidInput as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert
