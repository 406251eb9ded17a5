"""Run by `test_sweep.py`: a sweep that is killed in its third run."""

import os
import signal
import sys
from pathlib import Path

import torch

from lab.studies import sweep as module
from tests.lab.test_sweep import RECIPES


def main(cache: Path) -> None:
    torch.set_num_threads(1)
    train, started = module.train, []

    def killed(recipe, **settings):
        started.append(recipe)
        if len(started) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return train(recipe, **settings)

    module.train = killed
    module.sweep(RECIPES, cache=cache)


if __name__ == "__main__":  # pytest imports every file here, for its doctests
    main(Path(sys.argv[1]))
