"""Does asymmetric training spread the attention of a vision transformer? (figures 6, 9; table 27)

python examples/figure6_attention.py [--output results/figure6.nc]
python examples/figure6_attention.py --data cifar10.npz --images 50000 --epochs 100
"""

import argparse
from pathlib import Path

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
    """Train both, save and draw the class token's attention, print it beside published values."""
    args = parse_args(argv)
    data = load(args.data)
    kinds = xr.Variable("training", ["plain", "asymmetric"], {"long_name": "training"})
    runs = [train(data, branches, args) for branches in (0, args.branches)]
    result = xr.concat(runs, dim=kinds, combine_attrs="drop_conflicts")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    result.to_netcdf(args.output, engine="h5netcdf")
    late = result.isel(step=[max(round(share * args.epochs), 1) - 1 for share in (0.2, 0.6, 1)])
    maps = attention.plot_maps(late.isel(layer=[0, 2, 5]), data.x_test)
    maps[0, 0].figure.savefig(args.output.with_suffix(".png"))
    curves = attention.plot_statistics(result.isel(layer=[-1]), hue="training")
    curves[0, 0].figure.savefig(args.output.with_suffix(".statistics.png"))
    print(f"class token of the last layer over {result.sizes['key']} patches: ours (published: 64)")
    for name, published in PUBLISHED.items():
        ours = late[name].isel(layer=-1).mean(["sample", "head"])
        for kind, numbers in zip(("plain", "asymmetric"), published, strict=True):
            pairs = zip(ours.sel(training=kind).values, numbers, strict=True)
            print(f"{name:9} {kind:11}", *(f"{a:6.3f} ({b:5.3f})" for a, b in pairs))
    print(f"wrote {args.output}, and figures beside it")


def train(data: Images, branches: int, args: argparse.Namespace) -> xr.Dataset:
    """Train one model; its attention on test images after every epoch."""
    torch.manual_seed(args.seed)
    patch = 4 if data.image > 8 else 2
    model = vit6(data.classes, image=data.image, patch=patch, channels=data.channels)
    model.to(args.device)
    probe = probes.attach(model, "blocks.*", branches, args.alpha) if branches else None
    learned = [*model.parameters(), *(probe.parameters() if probe else ())]
    optimizer = torch.optim.AdamW(learned, lr=args.rate)
    x_train, y_train = data.x_train[: args.images], data.y_train[: args.images]
    seen = []
    for _ in tqdm(range(args.epochs), desc=f"{branches} branches", unit="epoch", disable=None):
        for rows in torch.randperm(len(x_train)).split(64):
            x, y = x_train[rows].to(args.device), y_train[rows].to(args.device)
            loss = F.cross_entropy(model(x), y) + (probe.loss(y) if probe else 0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seen.append(attention.capture(model, data.x_test[:64], maps=True))
    steps = [(epoch + 1) * -(-len(x_train) // 64) for epoch in range(args.epochs)]
    updates = xr.Variable("step", steps, {"long_name": "optimizer updates"})
    return xr.concat(seen, dim=updates, combine_attrs="drop_conflicts")


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the settings; the defaults end within a minute."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help=".npz with images; default: bundled digits")
    parser.add_argument("--output", type=Path, default=Path("results/figure6.nc"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    defaults = {"epochs": 5, "images": 300, "branches": 20, "seed": 42, "alpha": 1.0, "rate": 1e-3}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
