"""Pictures of exits: the numbers and words in them are those of the Dataset."""

import html
import re
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
import torch
import xarray as xr
from matplotlib.colors import to_hex

import probes
from lab.backbones.character_model import CharacterModel

mpl.use("agg")
TAUS = [0.4, 0.0, 1.01, 0.2]  # in no order


def record(seed=0):
    torch.manual_seed(seed)
    model = CharacterModel(9)
    model.head.weight.data *= 3
    data = torch.randint(9, (2, 6, 11))
    return probes.record_exits(model, (data[0], data[1]), "layers.*")


def routes(seed=0):
    return probes.route_exits(record(seed), thresholds=TAUS)


def lines(ax):
    return {line.get_label(): line for line in ax.get_lines()}


@pytest.mark.parametrize("compute", ["compute", "compute_with_head"])
def test_tradeoff_shows_routed_and_its_baselines(compute):
    found = routes()
    ax = probes.plot_tradeoff(found, exit="layers.1", measure="margin", compute=compute)
    cells = found.sel(exit="layers.1", measure="margin").sortby(compute)
    drawn = lines(ax)
    for label, name in (("routed by confidence", "perplexity"), ("at random", "random_perplexity")):
        np.testing.assert_allclose(drawn[label].get_ydata(), cells[name])
        np.testing.assert_allclose(drawn[label].get_xdata(), cells[compute])
    where = "depth" if compute == "compute" else "fixed_compute_with_head"
    np.testing.assert_allclose(drawn["fixed depth"].get_ydata(), found["fixed_perplexity"])
    np.testing.assert_allclose(drawn["fixed depth"].get_xdata(), found[where])
    assert drawn["oracle"].get_ydata()[0] == cells["oracle_perplexity"]
    assert ax.get_xlabel() == found[compute].attrs["long_name"]


def test_tradeoff_draws_seeds_thin_and_their_mean_thick():
    both = xr.concat([routes(0), routes(1)], xr.Variable("seed", [0, 1]))
    ax = probes.plot_tradeoff(both)
    routed = [line for line in ax.get_lines() if line.get_linestyle() == "-"]
    assert [line.get_linewidth() < 1 for line in routed] == [True, True, False]
    mean = both["perplexity"].sel(measure="max softmax", exit="layers.0").mean("seed")
    np.testing.assert_allclose(np.sort(routed[-1].get_ydata()), np.sort(mean))


def test_tradeoff_tells_a_further_dimension_by_colour():
    ax = probes.plot_tradeoff(routes(), hue="measure")
    drawn = lines(ax)
    assert (
        drawn["margin: routed by confidence"].get_color() != drawn["entropy: at random"].get_color()
    )
    legend = [t.get_text() for t in ax.get_legend().get_texts()]
    assert legend[:2] == ["max softmax: routed by confidence", "margin: routed by confidence"]
    assert legend[5:] == ["at random", "fixed depth", "oracle"]  # once for all colours
    with pytest.raises(ValueError, match="`hue`: expected one dimension"):
        probes.plot_tradeoff(routes().expand_dims(variant=["a", "b"]))
    for settings, words in (
        ({"measure": "luck"}, "`measure`: expected one of max softmax, .*got 'luck'"),
        ({"exit": "layers.7"}, "`exit`: expected one of layers.0, .*got 'layers.7'"),
        ({"compute": "time"}, "`routes`: expected a Dataset made by probes.route_exits"),
    ):
        with pytest.raises(ValueError, match=words):
            probes.plot_tradeoff(routes(), **settings)


def test_reliability_shows_frequencies_with_their_errors():
    found = probes.exit_reliability(record(), bins=5)
    ax = probes.plot_reliability(found, event="agrees", measure="margin")
    assert len(ax.containers) == 2 * found.sizes["layer"]
    for i, layer in enumerate(found["layer"].values):
        row = found.sel(layer=layer, event="agrees", measure="margin")
        curve, rare = ax.containers[2 * i : 2 * i + 2]
        common = row["share"].values >= 0.01
        np.testing.assert_allclose(curve[0].get_xdata(), row["mean_confidence"])
        np.testing.assert_allclose(curve[0].get_ydata(), row["frequency"].where(common))
        np.testing.assert_allclose(rare[0].get_ydata(), row["frequency"].where(~common))
        assert rare[0].get_alpha() < 0.5
        assert f"ECE {float(row['ece']):.3f}" in curve.get_label()
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert [words.split(":")[0] for words in legend[-3:]] == ["bar", "area of a dot", "pale"]
    assert ax.get_xlabel() == "confidence (margin), mean of a bin"
    assert ax.get_ylabel() == "share of the bin's tokens: agrees"
    for settings, words in (
        ({"event": "luck"}, "`event`: expected one of correct, agrees, as good, got 'luck'"),
        ({"measure": "luck"}, "`measure`: expected one of max softmax"),
    ):
        with pytest.raises(ValueError, match=words):
            probes.plot_reliability(found, **settings)
    with pytest.raises(ValueError, match="`reliability`: expected a Dataset made by"):
        probes.plot_reliability(routes())


def passage():
    """Twelve tokens by hand: exits 0, 1, 2 in turn; every fourth one wrong."""
    token = np.arange(12)
    return xr.Dataset(
        {
            "left_at": ("token", token % 3),
            "correct": ("token", (token % 4 != 0).astype(int)),
            "confidence": ("token", token / 12),
        },
        coords={"layer": ["a", "b", "c"]},
    )


def test_every_letter_stands_on_the_colour_of_its_exit():
    ax = probes.plot_exit_text(passage(), list("print($x)\n<&"), width=5)
    board = ax.get_images()[0]
    drawn = {(round(t.get_position()[1]), round(t.get_position()[0])): t for t in ax.texts}
    assert len(drawn) == 12
    legend = {
        t.get_text(): p.get_facecolor()
        for t, p in zip(ax.get_legend().get_texts(), ax.get_legend().get_patches(), strict=True)
    }
    for i, letter in enumerate("print(\\$x)\u21b5<&".replace("\\$", "$")):
        text = drawn[divmod(i, 5)]
        assert text.get_text().replace("\\$", "$") == letter
        assert (to_hex(text.get_color()) == "#c00000") == (i % 4 == 0)
        colour = board.cmap(board.norm(board.get_array()[divmod(i, 5)]))
        assert to_hex(colour) == to_hex(legend[f"after {'abc'[i % 3]}: 33%"])
    assert "wrong: 25%" in legend


def test_a_token_of_several_letters_lends_them_its_exit():
    ax = probes.plot_exit_text(passage().isel(token=[0, 1]), ["if", " x"])
    assert ax.get_images()[0].get_array()[0, :4].tolist() == [0, 0, 1, 1]


def test_the_page_has_every_letter_its_exit_and_what_was_measured():
    page = probes.html_exit_text(passage(), list("print($x)\n<&"), title="a < b")
    spans = re.findall(r'<span class="(e\d)( w)?" title="([^"]*)">([^<]*)</span>', page)
    assert html.unescape("".join(s[3] for s in spans)) == "print($x)\u21b5\n<&"
    assert [s[0] for s in spans] == [f"e{i % 3}" for i in range(12)]
    assert [bool(s[1]) for s in spans] == [i % 4 == 0 for i in range(12)]
    assert spans[4][2] == "after b, confidence 0.333, wrong"
    assert "<title>a &lt; b</title>" in page
    assert "http" not in page  # nothing to load


def test_generated_text_is_drawn_too():
    torch.manual_seed(0)
    made = probes.generate(
        CharacterModel(9), torch.zeros(2, 1).long(), 6, layers="layers.0", threshold=0.0
    )
    ax = probes.plot_exit_text(made.isel(sample=0), list("abcdef"))
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["after 1 layer: 100%"]
    with pytest.raises(ValueError, match=r"such as \.isel\(sample=0\), got \{'sample': 2"):
        probes.plot_exit_text(made, list("abcdef"))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="`text`: expected 12 strings, got 3"):
        probes.plot_exit_text(passage(), list("abc"))
    with pytest.raises(ValueError, match="`exits`: expected `left_at` of exit_map"):
        probes.html_exit_text(xr.Dataset(), list("abc"))
    with pytest.raises(ValueError, match="`width`: expected at least 1, got 0"):
        probes.plot_exit_text(passage(), list("abcdefghijkl"), width=0)


def test_computing_needs_no_matplotlib():
    script = "import sys, probes; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=900)
