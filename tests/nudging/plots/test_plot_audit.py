import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

import nudging

mpl.use("agg")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def make_audit(**rows):
    columns = np.array(list(rows.values()), dtype=object).T
    value, threshold, verdict, reason = columns
    return xr.Dataset(
        {
            "value": ("check", value.astype(float)),
            "threshold": ("check", threshold.astype(float)),
            "verdict": ("check", verdict.astype(str)),
            "reason": ("check", reason.astype(str)),
        },
        coords={"check": list(rows)},
    )


def places_of(ax):
    """Where the mark of each row stands, in decades past the threshold."""
    marks = [c for c in ax.collections if isinstance(c, mpl.collections.PathCollection)]
    return {int(y): x for mark in marks for x, y in mark.get_offsets()}


def test_distances_are_decades_on_the_side_where_the_check_fires():
    audit = make_audit(
        scale=(500.0, 50.0, "fired", ""),  # above, ten times
        reference=(1e-5, 1e-7, "passed", ""),  # fires below: a hundred times away
        stability=(0.003, 0.3, "passed", ""),
        depth=(np.nan, 0.02, "not measured", "needs both accuracies"),
    )
    ax = nudging.plot_audit(audit, title="checks")
    assert places_of(ax) == pytest.approx({0: 1.0, 1: -2.0, 2: -2.0})
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "scale: fired\n500, fires above 50",
        "reference: passed\n1e-05, fires below 1e-07",
        "stability: passed\n0.003, fires above 0.3",
        "depth\nnot measured",
    ]
    assert [text.get_text() for text in ax.texts] == ["needs both accuracies"]
    assert ax.get_title() == "checks"


def test_what_is_off_the_paper_is_at_its_edge():
    audit = make_audit(
        scale=(np.inf, 50.0, "fired", ""),
        reference=(0.0, 1e-7, "fired", ""),
        stability=(-0.2, 0.3, "passed", ""),  # the other sign
        depth=(-0.1, 0.02, "fired", ""),
    )
    assert places_of(nudging.plot_audit(audit)) == {0: 3.0, 1: 3.0, 2: -3.0, 3: 3.0}


def test_other_datasets_are_refused():
    with pytest.raises(ValueError, match=r"`audit`: expected a result of nudging\.audit"):
        nudging.plot_audit(xr.Dataset())
