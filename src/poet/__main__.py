"""`python -m poet` is `poet`."""

from poet.cli import main

main()
