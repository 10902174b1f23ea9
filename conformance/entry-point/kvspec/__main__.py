"""`python -m kvspec` is the command `kvspec`."""

from kvspec import main

main()
