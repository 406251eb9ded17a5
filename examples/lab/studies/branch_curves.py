"""Curves of networks with and without branches: measured between epochs, and drawn."""

import matplotlib.pyplot as plt
import torch
import xarray as xr
from matplotlib.figure import Figure
from torch import nn

import probes
from lab.data.images import Images
from resonance_toolkit import evaluating


@torch.no_grad()
def measure(
    model: nn.Module, probe: probes.Probe | None, images: Images, losses: list[float]
) -> xr.Dataset:
    """The epoch's mean loss, test accuracy, and test loss of every branch where there are any."""
    x, y = images.x_test, images.y_test
    with evaluating(model):
        if probe is None:
            result = xr.Dataset()
            logits = model(x)
        else:
            with probe.listening():
                logits = model(x)
            result = probe.measure(y)[["loss"]].rename(loss="branch_loss").drop_vars("step")
    accuracy = (logits.argmax(1) == y).double().mean().item()
    return result.assign(
        accuracy=((), accuracy, {"long_name": "test accuracy"}),
        loss=((), sum(losses) / len(losses), {"long_name": "main training loss"}),
    )


def join(epochs: list[xr.Dataset]) -> xr.Dataset:
    """What `measure` gave after each epoch, from the first on."""
    label = xr.Variable("epoch", range(1, len(epochs) + 1), {"long_name": "epoch"})
    return xr.concat(epochs, dim=label, combine_attrs="drop_conflicts")


def draw(result: xr.Dataset) -> Figure:
    """Loss and accuracy over epochs, and every branch's final loss.

    Args:
        result: `loss` and `accuracy (kind, epoch)`, `branch_loss (kind, epoch, layer, branch)`; the
            last kind has branches.
    """
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    result["loss"].plot.line(x="epoch", ax=axes[0], marker="o", markersize=3)
    result["accuracy"].plot.line(x="epoch", ax=axes[1], marker="o", markersize=3)
    last = result["branch_loss"].isel(epoch=-1, kind=-1)
    active = last["trained"].astype(bool)
    for mask, label, style in ((~active, "static", "C7."), (active, "active", "C1o")):
        for i, values in enumerate(last.where(mask, drop=True)):
            axes[2].plot([i] * values.size, values, style, label=label if i == 0 else None)
    axes[2].set(title="branches after the last epoch", xlabel="block", ylabel="mean test loss")
    axes[2].set_xticks(range(last.sizes["layer"]))
    axes[2].legend()
    axes[0].set_title("main loss while training")
    axes[1].set_title("accuracy on test images")
    return figure
