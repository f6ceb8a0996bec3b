"""`python -m diffrender`."""

import sys

from diffrender.cli import main

if __name__ == "__main__":
    sys.exit(main())
