"""Does asymmetric training spread the attention of a vision transformer? (figures 6, 9; table 27)

Trains a plain and an asymmetric ViT-6L, and follows the class token's attention over the patches:

    python examples/figure6_attention.py --output figure6.nc
    python examples/figure6_attention.py --data cifar10.npz --epochs 100 --output figure6.nc
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
import xarray as xr
from tqdm import tqdm

import attention
import probes
from lab.backbones import vit6
from lab.data import Images, load

# Table 27: a fifth, three fifths and all of the way through training, plain and asymmetric.
PUBLISHED = {
    "peak": ([0.092, 0.063, 0.051], [0.053, 0.049, 0.045]),
    "entropy": ([3.73, 3.89, 3.97], [4.02, 4.03, 4.05]),
    "gini": ([0.471, 0.415, 0.374], [0.254, 0.287, 0.302]),
    "coverage": ([0.58, 0.70, 0.84], [0.96, 0.95, 0.94]),
}


def main(argv: list[str] | None = None) -> None:
    """Train both, save the attention, draw it, and print it beside the published values."""
    args = parse_args(argv)
    data = load(args.data)
    runs = [train(data, branches, args) for branches in (0, args.branches)]
    kinds = xr.Variable("training", ["plain", "asymmetric"], {"long_name": "training"})
    result = xr.concat(runs, dim=kinds, combine_attrs="drop_conflicts")
    result.to_netcdf(args.output, engine="h5netcdf")
    late = result.isel(step=[round(share * args.epochs) - 1 for share in (0.2, 0.6, 1)])
    axes = attention.plot_maps(late.isel(layer=[0, 2, 5]), data.x_test)
    axes[0, 0].figure.savefig(args.output.with_suffix(".png"), dpi=150)
    axes = attention.plot_statistics(result.isel(layer=[-1]), hue="training")
    axes[0, 0].figure.savefig(args.output.with_suffix(".statistics.png"), dpi=150)
    plt.close("all")
    print(f"class token of the last layer over {result.sizes['key']} patches: ours (published: 64)")
    for name, published in PUBLISHED.items():
        ours = late[name].isel(layer=-1).mean(["sample", "head"])
        for kind, numbers in zip(("plain", "asymmetric"), published, strict=True):
            pairs = zip(ours.sel(training=kind).values, numbers, strict=True)
            print(f"{name:9} {kind:11}", *(f"{a:6.3f} ({b:5.3f})" for a, b in pairs))


def train(data: Images, branches: int, args: argparse.Namespace) -> xr.Dataset:
    """Train one model; its attention on test images after every epoch."""
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    patch = 4 if data.image > 8 else 2
    model = vit6(data.classes, image=data.image, patch=patch, channels=data.channels).to(device)
    probe = probes.attach(model, layers="blocks.*", n=max(branches, 1), alpha=args.alpha)
    optimizer = torch.optim.AdamW([*model.parameters(), *probe.parameters()], lr=args.rate)
    x_train, y_train = data.x_train[: args.images], data.y_train[: args.images]
    seen, steps, step = [], [], 0
    for _ in tqdm(range(args.epochs), desc=f"{branches} branches", unit="epoch", disable=None):
        for rows in torch.randperm(len(x_train)).split(64):
            x, y = x_train[rows].to(device), y_train[rows].to(device)
            loss = F.cross_entropy(model(x), y) + (probe.loss(y) if branches else 0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        seen.append(attention.capture(model, data.x_test[:64], maps=True))
        steps.append(step)
    updates = xr.Variable("step", steps, {"long_name": "optimizer updates"})
    return xr.concat(seen, dim=updates, combine_attrs="drop_conflicts")


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the settings; the defaults end within a minute."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help=".npz with images; default: bundled digits")
    parser.add_argument("--output", type=Path, default=Path("figure6.nc"))
    for name, default in {"epochs": 5, "images": 500, "branches": 20, "seed": 42}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, value in {"alpha": 1.0, "rate": 1e-3}.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
