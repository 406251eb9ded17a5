"""Credit rules against numpy, autograd and closed forms."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nudging
from nudging._credits.positions import as_rows, from_rows
from tests.helpers.state import snapshot


class Small(nn.Module):
    """Two residual blocks between an embedding and a head; batch norm and dropout in the way."""

    def __init__(self, width=6, classes=3):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.2))
        self.blocks = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = block(torch.tanh(h))
        return self.head(self.norm(h))


class Tokens(nn.Module):
    """Sequences in, one or as many outputs: `pool` is a class token or nothing."""

    def __init__(self, *, pool):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)])
        self.head, self.pool = nn.Linear(5, 3), pool

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.tanh(block(x)).mean(1, keepdim=True)
        return self.head(x[:, 0]) if self.pool else self.head(x)


BLOCKS = ["embed", "blocks.*"]
CREDITS = {
    "direct_feedback": lambda: nudging.direct_feedback(seed=1),
    "feedback": lambda: nudging.feedback(seed=1),
    "state_bridge": lambda: nudging.StateBridge(hidden=16, seed=1),
    "credit_bridge": lambda: nudging.CreditBridge(hidden=16, draws=3, seed=1),
}


@pytest.fixture
def small():
    torch.manual_seed(0)
    model = Small().double()
    return model, torch.randn(9, 4).double(), torch.randint(3, (9,))


def observed(small):
    model, x, y = small
    return nudging.observe(model, x, y, BLOCKS)


def _error(model, x, y):
    with torch.no_grad():
        logits = model.eval()(x).numpy()
    exp = np.exp(logits - logits.max(1, keepdims=True))
    return exp / exp.sum(1, keepdims=True) - np.eye(3)[y.numpy()]


def fitted(name, small):
    model, x, y = small
    credit = CREDITS[name]()
    if hasattr(credit, "fit"):
        credit.fit(model, (x, y), BLOCKS, epochs=3, batch_size=4)
    return credit


def test_direct_feedback_is_error_times_matrix(small):
    credit = nudging.direct_feedback(seed=5)
    found = credit(observed(small))
    error = _error(*small)
    for block, tensor in found.items():
        expected = error @ credit.matrices[block].numpy().T
        np.testing.assert_allclose(tensor, expected, rtol=1e-6)
    assert list(found) == ["embed", "blocks.0", "blocks.1"]


def test_direct_feedback_has_scale_one_over_root_classes_and_shares_the_last():
    model = nn.Sequential(*(nn.Linear(400, 400) for _ in range(3)), nn.Linear(400, 100))
    state = nudging.observe(model, torch.randn(2, 400), torch.zeros(2).long(), "[0-2]")
    credit = nudging.direct_feedback(seed=0)
    credit(state)
    first, second, third = credit.matrices.values()
    assert second is third
    assert not torch.equal(first, second)
    assert first.std().item() == pytest.approx(0.1, rel=0.02)
    assert first.mean().item() == pytest.approx(0, abs=0.002)
    own = nudging.direct_feedback(seed=0, reuse_last=False, scale=2.0)
    own(state)
    assert not torch.equal(own.matrices["1"], own.matrices["2"])
    assert own.matrices["0"].std().item() == pytest.approx(2, rel=0.02)


def test_feedback_goes_back_block_by_block(small):
    credit = nudging.feedback(seed=5)
    found = credit(observed(small))
    expected = _error(*small)
    for block in ["blocks.1", "blocks.0", "embed"]:
        expected = expected @ credit.matrices[block].numpy().T
        np.testing.assert_allclose(found[block], expected, rtol=1e-6)


def test_feedback_has_the_scale_of_what_goes_in():
    model = nn.Sequential(nn.Linear(4, 900), nn.Linear(900, 400), nn.Linear(400, 100))
    credit = nudging.feedback(seed=0)
    credit(nudging.observe(model, torch.randn(2, 4), torch.zeros(2).long(), "[01]"))
    assert credit.matrices["0"].shape == (900, 400)
    assert credit.matrices["0"].std().item() == pytest.approx(400**-0.5, rel=0.02)
    assert credit.matrices["1"].std().item() == pytest.approx(0.1, rel=0.02)


@pytest.mark.parametrize("name", ["direct_feedback", "feedback"])
@pytest.mark.parametrize("pool", [True, False])
def test_tokens_get_their_own_error_or_the_common_one(name, pool):
    torch.manual_seed(0)
    model, x = Tokens(pool=pool), torch.randn(4, 7, 5)
    loss = F.mse_loss
    targets = torch.randn(4, 3) if pool else torch.randn(4, 7, 3)
    credit = CREDITS[name]()
    found = credit(nudging.observe(model, x, targets, "blocks.*", loss=loss))["blocks.1"]
    outputs = model(x).detach()
    error = 2 * (outputs - targets) / outputs[0].numel()
    for place in range(7):
        at = error if pool else error[:, place]
        expected = at @ credit.matrices["blocks.1"].T
        torch.testing.assert_close(found[:, place], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 5), (2, 7, 5), (2, 5, 3, 4)])
def test_rows_come_back_in_their_shape(shape):
    tensor = torch.randn(shape)
    rows = as_rows(tensor, "it")
    assert rows.shape[2] == 5
    assert torch.equal(from_rows(rows, tensor), tensor)
    if len(shape) == 4:
        assert torch.equal(rows[1, 7], tensor[1, :, 1, 3])  # row 1, column 3 of four columns


@pytest.mark.parametrize("name", list(CREDITS))
def test_a_credit_leaves_the_model_and_the_random_state_alone(name, small):
    model, x, y = small
    model.train()
    model.head(torch.randn(2, 6).double()).sum().backward()  # gradients of the user's own
    before = snapshot(model)
    credit = fitted(name, small)
    credit(nudging.observe(model, x, y, BLOCKS))
    assert snapshot(model) == before


@pytest.mark.parametrize("name", list(CREDITS))
@pytest.mark.parametrize("way", ["netcdf", "state_dict"])
def test_a_saved_credit_gives_the_same_bits(name, way, small, tmp_path):
    import xarray as xr

    credit, state = fitted(name, small), observed(small)
    expected = credit(state)
    if way == "netcdf":
        path = tmp_path / "result.nc"
        xr.Dataset({"x": 1.0}).to_netcdf(path, engine="h5netcdf")
        credit.to_dataset().to_netcdf(path, group="credit", mode="a", engine="h5netcdf")
        with xr.open_dataset(path, group="credit", engine="h5netcdf") as saved:
            again = nudging.load_credit(saved)
    else:
        torch.save(credit.state_dict(), tmp_path / "credit.pt")
        again = CREDITS[name]()
        again.load_state_dict(torch.load(tmp_path / "credit.pt"))
    found = again(state)
    assert all(torch.equal(found[block], expected[block]) for block in state.blocks)
    assert again.state_dict().keys() == credit.state_dict().keys()


@pytest.mark.parametrize("name", list(CREDITS))
def test_a_saved_credit_describes_itself(name, small):
    saved = fitted(name, small).to_dataset()
    assert all(saved[dim].attrs["long_name"] for dim in saved.dims)
    assert all(v.attrs["long_name"] and v.dtype == np.float64 for v in saved.data_vars.values())
    torch.manual_seed(1)  # which has no say
    assert saved.identical(fitted(name, small).to_dataset())  # the same seed, the same credit


def test_bad_input_is_said(small):
    model, x, y = small
    state = observed(small)
    with pytest.raises(ValueError, match="`scale`: expected a positive, finite number, got 0"):
        nudging.direct_feedback(scale=0)
    with pytest.raises(ValueError, match="not fitted; call `fit`"):
        nudging.StateBridge()(state)
    credit = nudging.direct_feedback()
    credit(nudging.observe(model, x, y, "blocks.*"))
    with pytest.raises(ValueError, match=r"feedback for blocks .*, not for 'embed'"):
        credit(state)
    with pytest.raises(ValueError, match="expected a saved credit"):
        nudging.load_credit(credit.to_dataset().assign_attrs(credit="other"))
    with pytest.raises(ValueError, match="`epochs`"):
        nudging.StateBridge().fit(model, (x, y), BLOCKS, epochs=0)
    with pytest.raises(ValueError, match="`blocks`: a bridge expects two or more"):
        nudging.CreditBridge().fit(model, (x, y), "embed")
    with pytest.raises(ValueError, match="outputs of one shape"):
        nudging.StateBridge().fit(model, (x, y), [*BLOCKS, "head"])
    for name, value in {"draws": 0, "temperature": -1.0, "decay": 1.0, "times": 3, "lr": 0}.items():
        with pytest.raises(ValueError, match=f"`{name}`"):
            nudging.CreditBridge(**{name: value})
