"""Hostile values for options that take a number, sizes, or a text."""

from typing import Final

NUMBERS: Final = (
    *("", " ", "0", "00", "-0", "-1", "1", " 1", "1 ", "+1", "1_0", "0x10", "1e9", "1.5", ".5"),
    *("2147483648", "9" * 400, "9" * 5000, "\N{ARABIC-INDIC DIGIT THREE}", "\N{SUPERSCRIPT TWO}"),
    *("nan", "inf", "-inf", "1e400", "-1e-400", "1e-400", "True", "None"),
)
SIZES: Final = (
    "pages=0,slots=1,page_size=1,pages_per_seq=1",
    "pages=1,slots=1,page_size=1",
    "pages=1,pages=1,slots=1,page_size=1,pages_per_seq=1",
    f"pages={'9' * 20},slots=1,page_size=1,pages_per_seq=1",
    f"pages={'9' * 5000},slots=1,page_size=1,pages_per_seq=1",
    "pages=2147483647,slots=2147483647,page_size=2147483647,pages_per_seq=2147483647",
    "pages=1,slots=1,page_size=1,pages_per_seq=2",
    "pages=\N{SUPERSCRIPT TWO},slots=1,page_size=1,pages_per_seq=1",
    "pages==1,slots=1,page_size=1,pages_per_seq=1",
)
TEXTS: Final = (
    *("", ":", "a:b", ":make", "toy:", "toy:absent", "toy.make", "..toy:make", "toy:make:make"),
    *("os:_exit", "sys:exit", "json:loads", "builtins:print", "--", "-", "--json", "%s", "{0}"),
    *(
        "CW5,",
        ",",
        "CW5,CW5,nosuch",
        "\udcff",
        "x" * 5000,
        "a\nb",
        "toy:make\n",
        "[red]",
        "\x1b[2J",
    ),
)
