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
def measure_epoch(
    model: nn.Module, probe: probes.Probe | None, images: Images, losses: list[float]
) -> xr.Dataset:
    """Measure test accuracy and, where there are branches, the test loss of each.

    Args:
        model: After an epoch of training.
        probe: Its branches, if it has any.
        images: With the test images.
        losses: Main training losses of the epoch's batches, whose mean is kept.
    """
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


def join_epochs(epochs: list[xr.Dataset]) -> xr.Dataset:
    """Join what `measure_epoch` gave after each epoch, from the first on."""
    label = xr.Variable("epoch", range(1, len(epochs) + 1), {"long_name": "epoch"})
    return xr.concat(epochs, dim=label, combine_attrs="drop_conflicts")


def draw_curves(result: xr.Dataset) -> Figure:
    """Draw loss and accuracy over epochs, and every branch's final loss.

    Args:
        result: `loss` and `accuracy (kind, epoch)`, `branch_loss (kind, epoch, layer, branch)`; the
            last kind has branches.
    """
    figure, (loss_ax, accuracy_ax, branch_ax) = plt.subplots(
        1, 3, figsize=(13, 4), layout="constrained"
    )
    result["loss"].plot.line(x="epoch", ax=loss_ax, marker="o", markersize=3)
    result["accuracy"].plot.line(x="epoch", ax=accuracy_ax, marker="o", markersize=3)

    final = result["branch_loss"].isel(epoch=-1, kind=-1)
    is_active = final["trained"].astype(bool)
    for mask, label, style in ((~is_active, "static", "C7."), (is_active, "active", "C1o")):
        for position, losses in enumerate(final.where(mask, drop=True)):
            layer_label = None if position else label  # one entry in the legend
            branch_ax.plot([position] * losses.size, losses, style, label=layer_label)

    branch_ax.set(title="branches after the last epoch", xlabel="block", ylabel="mean test loss")
    branch_ax.set_xticks(range(final.sizes["layer"]))
    branch_ax.legend()
    loss_ax.set_title("main loss while training")
    accuracy_ax.set_title("accuracy on test images")
    return figure
