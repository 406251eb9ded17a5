"""Two gloo processes on this machine, each with half of the batch, against one with all of it."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from small_network import make_batch, make_network, two_losses

from gradients import Trace

KINDS = [f"{a}{b}" for a in ("ddp", "fsdp") for b in ("", " accumulated", " activation")]
SCRIPT = Path(__file__).with_name("two_processes.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    output = tmp_path_factory.mktemp("ranks") / "result"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = SCRIPT.parent.parent
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(root), str(SCRIPT.parent), *sys.path]),
    }
    command = [sys.executable, str(SCRIPT), str(output), ",".join(KINDS)]
    ranks = [
        subprocess.Popen(
            command, env=environment | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=180)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)
    return [torch.load(f"{output}.{rank}", weights_only=False) for rank in range(2)]


def whole_batch(**options):
    model = make_network(dropout=0.0).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trace = Trace(model, **options)
    for step in range(2):
        optimizer.zero_grad()
        trace.backward(*two_losses(model, *make_batch(seed=step)))
        optimizer.step()
    return trace.to_dataset()


@pytest.mark.parametrize("kind", KINDS)
def test_both_processes_have_the_numbers_of_the_whole_batch(results, kind):
    options = {"level": "activation", "layers": "drop"} if "activation" in kind else {}
    expected = whole_batch(**options)
    first, second = (xr.Dataset.from_dict(rank[kind]["trace"]) for rank in results)
    xr.testing.assert_identical(first, second)
    for name in expected.data_vars:
        np.testing.assert_allclose(first[name], expected[name], rtol=1e-9, err_msg=name)
    assert list(first["layer"].values) == list(expected["layer"].values)


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_bitwise_what_it_is_without(results, kind):
    assert all(rank[kind]["bitwise"] for rank in results)


def test_what_cannot_be_right_is_refused(results):
    for rank in results:
        plain, joined, unsynchronised, late = rank["refused"]
        assert "expected the DistributedDataParallel or fully_shard model" in plain
        assert "needs `backward` instead of `join`" in joined
        assert "set_requires_gradient_sync(False)" in unsynchronised
        assert "expected `fully_shard` before the trace" in late
