"""The figures of the asymmetric-exit study."""

import matplotlib.pyplot as plt
import xarray as xr
from matplotlib.figure import Figure

import probes
from lab.backbones.character_model import CharacterModel
from lab.data.text import Corpus, windows

PASSAGE = 10  # windows of validation text whose exits are drawn letter by letter


def draw_tradeoffs(result: xr.Dataset) -> Figure:
    """Draw perplexity against compute for three ways of training."""
    names = ["standard", "asymmetric 0.7", "asymmetric l2 0.7"]
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained", sharey=True)

    for ax, name in zip(axes, names, strict=True):
        probes.plot_tradeoff(result.sel(variant=name), ax=ax).set_title(name)

        # Plain numbers at the minor ticks, too: perplexities may lie within one power of ten.
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("{x:g}")
        ax.label_outer()
    return figure


def draw_details(
    result: xr.Dataset, model: CharacterModel, corpus: Corpus, tau: float
) -> dict[str, Figure]:
    """Draw the reliability of the exits, and where the characters of a passage left."""
    x, y = windows(corpus.validation)
    x, y = x[:PASSAGE], y[:PASSAGE]
    record = probes.record_exits(model, (x, y), "layers.*")
    passage = probes.exit_map(record, tau)
    letters = list(corpus.decode(y.flatten()))

    variant = result.sel(variant="asymmetric 0.7")
    return {
        "reliability": probes.plot_reliability(variant).figure,
        "text": probes.plot_exit_text(passage, letters).figure,
    }
