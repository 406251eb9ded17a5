"""What someone else saved as a credit is a credit, or refused with a ValueError or TypeError."""

import json

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import nudging
import tests.helpers.nudging_models as nets
from resonance_toolkit import with_digest

BLOCKS = ["embed", "blocks.*"]


def direct():
    credit = nudging.direct_feedback(seed=5)
    nudging.nudge(nets.make(nets.ResMLP), nets.batch(), credit, BLOCKS, samples=None)
    return credit.to_dataset()


def bridge():
    credit = nudging.StateBridge(hidden=8)
    model, (x, y) = nets.make(nets.ResMLP), nets.batch()
    credit.update(nudging.observe(model, x, y, BLOCKS))
    return credit.to_dataset()


def settings(**changes):
    """Change settings, at any depth, and make the digest right again."""

    def change(saved):
        contents = json.loads(saved.attrs["settings"])
        for path, value in changes.items():
            *parents, last = path.split("__")
            inner = contents
            for parent in parents:
                inner = inner[parent]
            inner[last] = value
        return saved.assign_attrs(settings=json.dumps(contents))

    return change


def raw_settings(text):
    return lambda saved: saved.assign_attrs(settings=text)


def dtype(name):
    def change(saved):
        saved[next(iter(saved.data_vars))].attrs["torch_dtype"] = name
        return saved

    return change


def first_as(make):
    def change(saved):
        name = next(iter(saved.data_vars))
        notes = saved[name].attrs
        return saved.drop_vars(name).assign({name: make(saved[name]).assign_attrs(notes)})

    return change


DIRECT = {
    "no settings": lambda saved: saved.drop_attrs(deep=False).assign_attrs(credit="DirectFeedback"),
    "no json": raw_settings("{"),
    "json of a number": raw_settings("3"),
    "json of a list": raw_settings("[]"),
    "deep json": raw_settings("[" * 100_000),
    "settings are a number": lambda saved: saved.assign_attrs(settings=3),
    "none of them": raw_settings("{}"),
    "settings are a list": settings(settings=[1]),
    "an unknown one": settings(settings__os="system"),
    "a seed of words": settings(settings__seed="x"),
    "a seed that is a flag": settings(settings__seed=True),
    "a scale of words": settings(settings__scale="1"),
    "a negative scale": settings(settings__scale=-1.0),
    "no finite scale": settings(settings__scale=float("nan")),
    "a flag that is a number": settings(settings__reuse_last=1),
    "a tensor too many": settings(tensors=["embed", "no such"]),
    "names that are numbers": settings(tensors=[1, 2]),
    "names that are none": settings(tensors=None),
    **{
        f"dtype {name}": dtype(name)
        for name in ("torch.load", "os", "torch.int64", "", "__class__", "torch.save", 3)
    },
    "no dtype": lambda saved: (saved[next(iter(saved.data_vars))].attrs.clear(), saved)[1],
    "vectors": first_as(lambda matrix: matrix[:, 0]),
    "texts": first_as(lambda matrix: matrix.astype(str)),
    "complex": first_as(lambda matrix: matrix.astype(complex)),
    "integers": first_as(lambda matrix: matrix.astype(int)),
    "a variable missing": lambda saved: saved.drop_vars(next(iter(saved.data_vars))),
    "another kind": lambda saved: saved.assign_attrs(credit="StateBridge"),
    "an unknown kind": lambda saved: saved.assign_attrs(credit="os.system"),
    "a kind that is a list": lambda saved: saved.assign_attrs(credit=["DirectFeedback"]),
    "a kind that is an array": lambda saved: saved.assign_attrs(credit=np.zeros(3)),
}
BRIDGE = {
    "terabytes": settings(settings__settings__hidden=10**12),
    "layers without end": settings(settings__settings__layers=10**9),
    "wide states": settings(settings__fitted__shape__width=10**12),
    "no shape": settings(settings__fitted__shape={}),
    "a shape of words": settings(settings__fitted__shape__width="wide"),
    "blocks that are a number": settings(settings__fitted__blocks=3),
    "not fitted, with tensors": settings(settings__fitted__blocks=[]),
    "nothing fitted": settings(settings__fitted=None),
    "a rate of words": settings(settings__settings__lr="fast"),
    "a skip of words": settings(settings__settings__skip="yes"),
    "half a time": settings(settings__settings__times=31),
    "two dtypes": dtype("torch.float16"),
    "flat weights": first_as(lambda weights: weights[0]),
}


@pytest.mark.parametrize("name", DIRECT)
def test_hostile_feedback_is_refused(name):
    with pytest.raises((ValueError, TypeError), match="`dataset`: "):
        nudging.load_credit(with_digest(DIRECT[name](direct())))


@pytest.mark.parametrize("name", BRIDGE)
def test_a_hostile_bridge_is_refused(name):
    with pytest.raises(ValueError, match="`dataset`: holds no complete StateBridge: "):
        nudging.load_credit(with_digest(BRIDGE[name](bridge())))


@pytest.mark.parametrize("make", [direct, bridge])
def test_a_changed_number_is_noticed(make):
    saved = make()
    name = next(iter(saved.data_vars))
    saved[name].values.flat[0] = np.nextafter(saved[name].values.flat[0], np.inf)
    with pytest.raises(ValueError, match="is damaged: its contents and its digest do not agree"):
        nudging.load_credit(saved)
    with pytest.raises(ValueError, match="is damaged: it has no digest"):
        nudging.load_credit(make().drop_attrs(deep=False).assign_attrs(credit="DirectFeedback"))


def test_the_order_of_blocks_is_that_of_the_network_however_variables_are_sorted():
    model, data = nets.make(lambda: nets.ResMLP(classes=16)), nets.batch()  # all of one shape
    credit = nudging.feedback(seed=3)
    expected = nudging.nudge(model, data, credit, BLOCKS, samples=None)
    saved = credit.to_dataset()

    backwards = saved[sorted(saved.data_vars, reverse=True)]
    again = nudging.load_credit(backwards)
    assert list(again.matrices) == list(credit.matrices)
    xr.testing.assert_identical(nudging.nudge(model, data, again, BLOCKS, samples=None), expected)


def test_blocks_of_any_name_are_saved(tmp_path):
    torch.manual_seed(0)
    layers = nn.ModuleDict({"a/b": nn.Linear(4, 3), "c%2Fd": nn.Linear(3, 3), "e f": nn.Identity()})
    model = nn.Sequential(*layers.values())
    model = type("Named", (nn.Module,), {"forward": lambda self, x: self.run(x)})()
    model.layers = layers
    model.run = nn.Sequential(*layers.values()).forward
    data = torch.randn(5, 4), torch.arange(5) % 3

    credit = nudging.direct_feedback(seed=1)
    result = nudging.nudge(model, data, credit, "layers.*", samples=None)
    result.to_netcdf(tmp_path / "result.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "result.nc", engine="h5netcdf") as opened:
        again = nudging.load_credit(nudging.saved_credit(opened.load()))

    assert list(again.matrices) == ["layers.a/b", "layers.c%2Fd", "layers.e f"]
    for block, matrix in credit.matrices.items():
        torch.testing.assert_close(again.matrices[block], matrix, rtol=0, atol=0)
