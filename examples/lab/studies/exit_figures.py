"""The figures of the asymmetric-exit study."""

import matplotlib.pyplot as plt
import xarray as xr
from matplotlib.figure import Figure

import probes
from lab.backbones.character_model import CharacterModel
from lab.data.text import Corpus, windows


def draw_tradeoffs(result: xr.Dataset) -> Figure:
    """Perplexity against compute for three ways of training."""
    names = ["standard", "asymmetric 0.7", "asymmetric l2 0.7"]
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained", sharey=True)
    for ax, name in zip(axes, names, strict=True):
        probes.plot_tradeoff(result.sel(variant=name), ax=ax).set_title(name)
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("{x:g}")
        ax.label_outer()
    return figure


def draw_details(
    result: xr.Dataset, model: CharacterModel, corpus: Corpus, tau: float
) -> dict[str, Figure]:
    """Reliability of the exits, and where the characters of a passage left."""
    chosen = result.sel(variant="asymmetric 0.7")
    x, y = windows(corpus.validation)
    passage = probes.exit_map(probes.record_exits(model, (x[:10], y[:10]), "layers.*"), tau)
    letters = list(corpus.decode(y[:10].flatten()))
    return {
        "reliability": probes.plot_reliability(chosen).figure,
        "text": probes.plot_exit_text(passage, letters).figure,
    }
