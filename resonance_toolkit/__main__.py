"""`python -m resonance_toolkit`, and `python -m resonance`, which is the same module."""

import os
import sys
from pathlib import Path

from resonance_toolkit._front.command import main

if __name__ == "__main__":
    # `-m` puts the current folder first, where a file of the user's may be called like an
    # instrument of ours. It goes last, unless it is where we are ourselves.
    current_folder = Path.cwd()
    is_first = bool(sys.path) and sys.path[0] in ("", os.getcwd())
    if is_first and current_folder != Path(__file__).parents[1]:
        sys.path.append(sys.path.pop(0))
    sys.exit(main())
