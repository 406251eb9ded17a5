"""What somebody does who has installed the wheel and nothing else: run by `.ci/package`."""

import torch
from torch import nn

import attention
import gradients
import landscape
import nudging
import probes
import resonance_toolkit


def main() -> None:
    """Call a verb of each package, and save and draw a result."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(12, 4), torch.arange(12) % 3

    with probes.attach(model, "1", n=3, sample=x) as probe:
        loss = nn.functional.cross_entropy(model(x), y) + probe.loss(y)
        loss.backward()

    surface = landscape.grid(model, (x, y), size=3)
    surface.to_netcdf("surface.nc", engine="h5netcdf")
    nudging.nudge(model, (x, y), nudging.backprop(), ["0", "1"])
    gradients.compare(model, lambda: (model(x).sum(), model(x).square().sum()))
    attention.capture(nn.TransformerEncoderLayer(8, 2, batch_first=True), torch.randn(2, 5, 8))
    landscape.plot_contour(surface)

    print("resonance-toolkit", resonance_toolkit.__version__, "works")


if __name__ == "__main__":
    main()
