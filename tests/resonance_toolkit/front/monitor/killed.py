"""Trains under a monitor until it is killed: `python killed.py FILE`, a line for each row."""

import sys

from resonance_toolkit import Monitor
from tests.resonance_toolkit.front.monitor.training import Run, make_batch

if __name__ == "__main__":
    run = Run()
    monitor = Monitor(run.model, probe=run.probe, every=1, data=make_batch(9), path=sys.argv[1])
    while True:
        run.train(1, monitor.backward, first=monitor.step)
        print(monitor.step, flush=True)
