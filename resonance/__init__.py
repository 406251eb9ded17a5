"""The short name of `resonance_toolkit`: `import resonance` gives that very module."""

import sys

import resonance_toolkit
from resonance_toolkit import *  # noqa: F403  (what editors and type checkers see)

# Not a copy of the names: whatever is loaded late, or patched in a test, is the same under both.
sys.modules[__name__] = resonance_toolkit
