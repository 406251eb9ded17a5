import matplotlib as mpl
import numpy as np
import pytest
import torch
import xarray as xr
from matplotlib import pyplot as plt
from torch import nn

import landscape

mpl.use("agg")


@pytest.mark.parametrize(
    ("normalisation", "factor"), [("unit", 0.5), ("tensor", 0.5**0.5), ("filter", None)]
)
def test_bars_are_ratios_beside_what_dilution_alone_does(normalisation, factor):
    torch.manual_seed(0)
    model, branches = nn.Linear(4, 2, bias=False), nn.Linear(4, 6, bias=False)
    data = torch.randn(5, 4), torch.tensor([0, 1, 0, 1, 0])
    diluted = landscape.dilution(
        model, data, branches, samples=5, size=5, normalisation=normalisation
    )

    ax = landscape.plot_dilution(diluted, title=True)
    for bar, name in zip(ax.patches, diluted["statistic"].values, strict=True):
        joint, alone = diluted[name].values
        assert bar.get_height() == pytest.approx(joint / alone)

    heights = [line.get_ydata()[0] for line in ax.get_lines()]
    np.testing.assert_allclose(heights, [1] if factor is None else [1, factor, factor**2])
    assert ax.get_title() == "landscape.dilution of Linear, 5 samples, seed 0"
    plt.close("all")


def test_other_datasets_are_refused():
    with pytest.raises(ValueError, match=r"`dilution`: expected a result of landscape\.dilution"):
        landscape.plot_dilution(xr.Dataset())
