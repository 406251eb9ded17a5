"""Logits of a large vocabulary are never kept: the peak of memory does not grow with the data."""

import subprocess
import sys

import pytest

_SCRIPT = """
import resource, sys
import torch
from torch import nn
import probes

torch.set_num_threads(1)
vocabulary, samples = 20_000, int(sys.argv[1])
model = nn.Sequential(nn.Embedding(vocabulary, 8), nn.Linear(8, 8), nn.Linear(8, 8),
                      nn.Linear(8, vocabulary, bias=False))
generator = torch.Generator().manual_seed(0)
ids = torch.randint(0, vocabulary, (samples, 65), generator=generator)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
record = probes.record_exits(model, (ids[:, :-1], ids[:, 1:]), ["1", "2"])
assert record.sizes["token"] == 64 * samples
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def megabytes(samples):
    command = [sys.executable, "-c", _SCRIPT, str(samples)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs elsewhere")
def test_peak_memory_does_not_grow_with_the_data():
    # All logits of two exits would be 2 x 64 x 20,000 x 4 bytes = 10 MB a sample, 1.2 GB in all.
    few, many = megabytes(30), megabytes(120)
    assert many < few + 100
    assert many < 500
