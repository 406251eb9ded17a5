"""What the scripts of figures read off their runs, which are made up here."""

import figure4_attention
import figure7_dynamics
import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr

mpl.use("agg")


@pytest.fixture
def rows_from(monkeypatch):
    """The rows of a figure's script, of runs that are made up."""

    def find(script, runs):
        rows = []
        monkeypatch.setattr(script, "main_runs", lambda *_, **__: (runs, "nothing"))
        monkeypatch.setattr(script, "publish", lambda _, __, found, **___: rows.extend(found))
        script.main([])
        return {row.quantity: row.here for row in rows}

    return find


KINDS = {"training": ["plain", "asymmetric"], "seed": [42, 43]}


def test_figure_7_divides_by_the_plain_runs(rows_from, monkeypatch):
    monkeypatch.setattr(figure7_dynamics, "draw", lambda _: None)
    runs = {}
    for factor, name in enumerate(("mlp", "cnn", "vit6"), start=2):
        norms = np.ones((2, 2, 4)) * np.array([1.0, factor])[:, None, None]
        losses = np.broadcast_to([8.0, 7.0, 5.0, 2.0 * factor], (2, 2, 4)).copy()
        losses[0] = np.nan
        dims = ("training", "seed", "step")
        values = {
            "gradient_norm": (dims, norms),
            "loss_aux": (dims, losses),
            "loss_main": (dims, norms),
        }
        runs[name] = xr.Dataset(values, KINDS | {"step": np.arange(4)})

    found = rows_from(figure7_dynamics, runs)
    for factor, label in enumerate(("MLP", "CNN", "ViT-6L"), start=2):
        assert found[f"{label}, gradient norm with / without"] == factor
        assert found[f"{label}, auxiliary loss last / first"] == factor / 4


@pytest.fixture
def no_drawing(monkeypatch):
    """Figure 4 without its pictures."""
    monkeypatch.setattr(figure4_attention, "draw", lambda *_: None)
    for name in ("plot_maps", "plot_statistics"):
        monkeypatch.setattr(figure4_attention.attention, name, lambda *_, **__: _axes())


@pytest.mark.usefixtures("no_drawing")
def test_figure_6_reads_the_last_layer_at_its_three_stages(rows_from):
    coords = KINDS | {"seen_epoch": np.arange(1, 11), "layer": [f"blocks.{i}" for i in range(6)]}
    coords |= {"sample": np.arange(2), "head": np.arange(2)}
    shape = [len(values) for values in coords.values()]
    kind, _, epoch, layer, _, _ = np.indices(shape)
    value = np.where(kind == 1, 100.0 * (epoch + 1) + 10.0 * layer, 1.0)
    run = xr.Dataset(coords=coords)
    for place, name in enumerate(figure4_attention.PUBLISHED):
        run[name] = tuple(coords), value + place * kind

    run["weight"] = (*coords, "key"), np.zeros((*shape, 4))
    found = rows_from(figure4_attention, {"vit6": run})
    for place, name in enumerate(("peak", "entropy", "gini", "coverage")):
        stages = (1, 2, 3)
        assert [found[f"{name}, plain, stage {stage}"] for stage in stages] == [1.0] * 3
        measured = [found[f"{name}, asymmetric, stage {stage}"] for stage in stages]
        assert measured == [epoch * 100 + 50 + place for epoch in (2, 6, 10)]


@pytest.mark.usefixtures("no_drawing")
def test_figure_4_sums_the_highest_quarter_of_the_last_layer(rows_from):
    coords = KINDS | {"seen_epoch": [1, 2], "layer": [f"blocks.{i}" for i in range(6)]}
    coords |= {"sample": np.arange(4), "head": np.arange(2), "key": np.arange(16)}
    weight = np.zeros([len(values) for values in coords.values()])
    weight[..., 3] = 1.0  # all on one patch, except at the end, in the last layer
    weight[0, :, -1, -1] = 1 / 16
    weight[1, :, -1, -1] = 0.2 / 12
    weight[1, :, -1, -1, :, :, [2, 5, 6, 11]] = 0.2
    run = xr.Dataset({"weight": (tuple(coords), weight)}, coords)
    for name in figure4_attention.PUBLISHED:
        run[name] = run["weight"].mean("key")

    found = rows_from(figure4_attention, {"vit6": run})
    assert found["ViT-6L, change of the focus"] == pytest.approx(0.8 - 0.25)


def _axes():
    return mpl.figure.Figure().subplots(1, 1, squeeze=False)
