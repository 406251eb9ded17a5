"""What every verb owes its user, tested on one table of all verbs.

A package lists its verbs in `contract_<package>.py`: `VERBS` maps a name to a callable
`(model, (x, y)) -> Dataset`. The model has batch norm, dropout, attention and a frozen layer.
"""

import random

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor, nn

from tests.contract import verbs_attention as contract_attention
from tests.contract import verbs_gradients as contract_gradients
from tests.contract import verbs_landscape as contract_landscape
from tests.contract import verbs_nudging as contract_nudging
from tests.contract import verbs_probes as contract_probes
from tests.helpers.state import snapshot

VERBS = {
    **contract_probes.VERBS,
    **contract_landscape.VERBS,
    **contract_gradients.VERBS,
    **contract_attention.VERBS,
    **contract_nudging.VERBS,
}


class SmallHybrid(nn.Module):
    """Convolution, batch norm, attention, dropout and a frozen bias, under telling names."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.drop = nn.Dropout(0.5)
        self.blocks = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 4)
        self.stem.bias.requires_grad_(False)
        self.norm.eval()
        self.calls, self.fail_at, self.failure = 0, None, RuntimeError

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.fail_at is not None and self.calls >= self.fail_at:
            raise self.failure("forward failed")
        tokens = self.norm(self.stem(x)).relu().flatten(2).mT
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        tokens = tokens + self.blocks(self.drop(tokens))
        return self.head(tokens.mean(1))


def make_model() -> SmallHybrid:
    torch.manual_seed(0)
    model = SmallHybrid()
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.randn_like(p)
    return model


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(0, 4, (24,), generator=generator)
    return torch.randn(24, 3, 6, 6, generator=generator), y


@pytest.fixture(params=list(VERBS))
def verb(request):
    return VERBS[request.param]


def test_model_and_random_state_are_untouched(verb):
    model = make_model()
    before = snapshot(model)
    verb(model, make_data())
    assert snapshot(model) == before


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_model_is_untouched_when_its_forward_raises(verb, failure):
    counting = make_model()
    verb(counting, make_data())
    for fail_at in sorted({1, (counting.calls + 1) // 2, counting.calls}):
        model = make_model()
        before = snapshot(model)
        model.fail_at, model.failure = fail_at, failure
        # A verb may say in its own words that a forward pass failed, but not go on.
        with pytest.raises((failure, ValueError)):
            verb(model, make_data())
        assert snapshot(model) == before


def test_result_describes_itself(verb):
    result = verb(make_model(), make_data())
    assert isinstance(result, xr.Dataset)
    assert {"made_by", "toolkit_version", "torch_version", "model"} <= result.attrs.keys()
    for dim in result.dims:
        assert dim in result.coords, f"dimension {dim} has no coordinate"
    for name, variable in result.variables.items():
        assert variable.attrs.get("long_name"), f"{name} has no long_name"
        assert name not in result.data_vars or name not in result.dims
        if variable.dtype.kind == "f":
            assert variable.dtype == np.float64, f"{name} is {variable.dtype}"
    for key, value in result.attrs.items():
        assert type(value) in (str, int, float), key


def test_result_survives_netcdf(verb, tmp_path):
    result = verb(make_model(), make_data())
    result.to_netcdf(tmp_path / "result.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "result.nc", engine="h5netcdf") as again:
        xr.testing.assert_identical(again.load(), result)


def test_result_is_the_same_twice_whatever_the_global_seed(verb):
    results = []
    for seed in (1, 2):
        model, data = make_model(), make_data()
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        results.append(verb(model, data))
    xr.testing.assert_identical(*results)
