"""Marks of tests that need what only some systems have."""

import os
import sys

import pytest

# Processes that are killed at once, limits on files, links that anybody may make.
needs_posix = pytest.mark.skipif(os.name != "posix", reason="needs signals and links of POSIX")

# A folder in which nobody makes a file, root included.
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="needs the /proc of Linux")
