"""`python -m benchmarks.fuzz [MUTANTS [SEED]]`: leaves with 1 where a mutant failed."""

import sys

from benchmarks.fuzz import main

if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
