"""Do the auxiliary and the main loss pull an architecture the same way (table 5, figures 3, 7)?

Run: python examples/table5_gradient_conflict.py [--data cifar10.npz] [--output results/table5.nc]
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
import xarray as xr
from tqdm import trange

import gradients
import probes
from lab import backbones, data

STATISTICS = ("final", "mean", "min", "max")
PUBLISHED = {  # the asymmetric-training paper: MLP on CIFAR-10, the others on CIFAR-100
    "mlp": (-0.0309, -0.0801, -0.3422, 0.0701, "incoherent"),
    "cnn": (-0.1926, -0.2574, -0.8210, 0.0464, "conflict"),
    "vit6": (0.2631, 0.1870, -0.1845, 0.3654, "synergy"),
}


def main(argv: list[str] | None = None) -> None:
    """Train each backbone without and with 20 branches; print the table, save and draw."""
    args = parse_args(argv)
    images = data.load(args.data)
    plain, traced = ({k: train(k, images, args, n) for k in PUBLISHED} for n in (0, 20))
    label = xr.Variable("architecture", list(traced), {"long_name": "backbone"})
    whole = [trace.drop_dims("layer") for trace in traced.values()]  # layers differ
    result = xr.concat(whole, label, combine_attrs="drop_conflicts")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    result.to_netcdf(args.output, engine="h5netcdf")
    table = gradients.summarise(result)
    print(f"{'cosine':<12}", *(f"{name:>8}" for name in STATISTICS), "conflicts  verdict")
    for name, (*numbers, verdict) in PUBLISHED.items():
        row = table.sel(architecture=name)
        rest = f"{row['conflict_share']:9.0%}  {row['verdict'].item()}"
        print(f"{name:<12}", *(f"{row[s]:8.4f}" for s in STATISTICS), rest)
        print(f"{'  published':<12}", *(f"{v:8.4f}" for v in numbers), f"{'':10} {verdict}")
    figure, axes = plt.subplots(3, 3, figsize=(12, 10), layout="constrained")
    for column, name in enumerate(traced):
        gradients.plot_trace(traced[name], smooth=9, ax=axes[0, column]).set_title(name)
        both = {"plain": plain[name], "asymmetric": traced[name]}
        gradients.plot_dynamics(both, axes=axes[1:, column])
    figure.savefig(args.output.with_suffix(".png"), dpi=120)
    gradients.plot_layers(traced["vit6"]).figure.savefig(args.output.with_suffix(".layers.png"))
    print(f"wrote {args.output}, and figures beside it")


def train(name: str, images: data.Images, args: argparse.Namespace, branches: int) -> xr.Dataset:
    """Train one backbone on its losses, and return the trace."""
    torch.manual_seed(42)
    c, size = images.channels, images.image
    vit = {"image": size, "patch": max(size // 8, 2), "channels": c}
    shape = {"mlp": {"inputs": c * size**2}, "cnn": {"channels": c}, "vit6": vit}
    model = getattr(backbones, name)(images.classes, **shape[name])
    x, y = images.x_train[: args.samples], images.y_train[: args.samples]
    where = {"layers": backbones.LAYERS[name], "sample": x[:2]}
    probe = probes.attach(model, **where, n=branches, alpha=0.1) if branches else None
    trainable = [*model.parameters(), *(probe.parameters() if probe else [])]
    trace, optimizer = gradients.Trace(model), torch.optim.AdamW(trainable, lr=1e-3)
    for _ in trange(args.epochs, desc=f"{name}, {branches} branches", disable=None):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[rows]), y[rows])
            trace.backward(loss, *([probe.loss(y[rows])] if probe else []))
            optimizer.step()
    return trace.to_dataset()


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help=".npz with x_train, y_train, x_test, y_test")
    parser.add_argument("--output", type=Path, default=Path("results/table5.nc"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=1000, help="training images to use")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
