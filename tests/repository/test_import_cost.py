"""What `import probes` and its like must not load: told by names, since times differ by machine."""

import subprocess
import sys

import pytest

PACKAGES = ["probes", "landscape", "gradients", "attention", "nudging", "resonance_toolkit"]

# Each takes as long as a good part of torch itself, and few calls need it.
SLOW = [
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.utils.flop_counter",  # says on standard error where triton is missing
    "scipy.stats",
    "scipy.optimize",
    "matplotlib",
]

_CODE = """
import sys
sys.modules["triton"] = None  # as on machines without it
import {package}
print(*(name for name in {slow} if name in sys.modules))
"""


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_loads_nothing_slow_and_prints_nothing(package):
    code = _CODE.format(package=package, slow=SLOW)
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == []
    assert process.stderr == ""
