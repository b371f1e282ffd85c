"""`python -m poet` is `poet`."""

from poet.cli.main import main

main()
