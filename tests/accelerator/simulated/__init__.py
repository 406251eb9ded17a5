"""A device `sim` that obeys an accelerator's rules, in the processor's memory and arithmetic.

A tensor on `sim:0` is an ordinary tensor whose storage says so. Its bytes are those of a storage of
the processor's, and every operator runs the processor's own kernel on views of these bytes:

    sim tensors  --host_view-->  CPU views  --operator-->  CPU results  --from_host-->  sim tensors

    waits.py       what the host waits for, counted
    generator.py   `torch.sim`, with a random generator of its own
    memory.py      host_view and from_host
    kernel.py      one operator: the rules that a real device would enforce, then the line above
    special.py     operators that need more: copies, numbers for the host, storages that are set
    modules.py     storages and modules on their way from one device to the other
    install.py     all of it, registered with torch

What it can show: tensors of two devices mixed up, generators of the wrong device drawn from, a
host that waits. What it cannot: speed, rounding, asynchronous errors, more than one accelerator.
"""

from tests.accelerator.simulated.install import install, missing_names
from tests.accelerator.simulated.memory import DEVICE, without_float64
from tests.accelerator.simulated.waits import Waits, counting_waits

__all__ = [
    "DEVICE",
    "Waits",
    "counting_waits",
    "install",
    "missing_names",
    "without_float64",
]
