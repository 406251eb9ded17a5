"""A monitor in two processes: both measure the whole batch, and the first logs and writes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import xarray as xr

from resonance_toolkit import Monitor, read_monitor
from tests.helpers.launch import run_ranks
from tests.resonance_toolkit.front.monitor.training import make_batch, make_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("monitor")
    run_ranks("ranks_monitor.py", str(folder))
    return folder


def whole_batch():
    model = make_model().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, layers="head", every=1, data=make_batch(9))
    for step in range(2):
        x, y = make_batch(step)
        out = model(x)
        monitor.backward(F.cross_entropy(out, y), out.square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return monitor.tree()


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_both_measure_and_the_first_tells(folder, kind):
    first, second = (torch.load(folder / f"{kind}.{rank}", weights_only=False) for rank in (0, 1))
    assert first["logged"] == [0, 1]
    assert second["logged"] == []
    assert first["is_bitwise"]
    assert second["is_bitwise"]
    assert not [name for name in first["attributes"] if name.endswith("_reason")]

    written = read_monitor(folder / f"{kind}.jsonl")
    expected = whole_batch()
    assert list(first["nodes"]) == list(second["nodes"]) == list(expected.children)
    for part, node in expected.children.items():
        found, other = (xr.Dataset.from_dict(rank["nodes"][part]) for rank in (first, second))
        xr.testing.assert_allclose(found, other)
        xr.testing.assert_allclose(found, written[part].to_dataset())
        for name in node.data_vars:
            np.testing.assert_allclose(
                found[name], node[name], rtol=2e-4, atol=1e-6, err_msg=f"{part} {name}"
            )
