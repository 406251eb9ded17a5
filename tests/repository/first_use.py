"""What somebody does who has installed the wheel and nothing else: run by `.ci/package`."""

import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import attention
import gradients
import landscape
import nudging
import probes
import resonance_toolkit


def main() -> None:
    """Call a verb of each package, save and draw a result, make a page, and use the command."""
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

    # Pages are made of templates, which the wheel must have brought along.
    tree = resonance_toolkit.examine(model, (x, y), parts=["model", "gradients"], budget=2, n=2)
    page = resonance_toolkit.page(tree, "examined.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "</html>" in page
    assert "const data" in landscape.html_surface(surface)

    for arguments in (["info"], ["show", "surface.nc", "--output", "shown.html"]):
        subprocess.run([sys.executable, "-m", "resonance", *arguments], check=True)
    assert Path("shown.html").stat().st_size > 10_000

    print("resonance-toolkit", resonance_toolkit.__version__, "works")


if __name__ == "__main__":
    main()
