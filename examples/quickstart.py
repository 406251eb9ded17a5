"""Does a small vision transformer learn better with auxiliary branches? The first thing to run.

Trains the same network twice, plain and with branches at every block, and compares them.

    python examples/quickstart.py [--epochs 25] [--n 20] [--alpha 1.0] [--data cifar10.npz]

Writes the measurements (`--output`, netCDF) and a figure beside them; about a minute on two cores.
Digits are too easy to need the branches: expect a slower start and a similar end.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
import xarray as xr

import probes
import resonance
from lab.backbones.tiny_vit import tiny_vit
from lab.data.images import Images, load
from lab.results.files import dataset_writer, write_atomically
from lab.studies.branch_curves import draw_curves, join_epochs, measure_epoch

KINDS = ("plain", "with branches")


def main(argv: list[str] | None = None) -> None:
    """Train both networks, save the curves, draw them."""
    args = parse_args(argv)
    images = load(args.data)
    runs = [train(images, n, args) for n in (0, args.n)]
    kind = xr.Variable("kind", list(KINDS), {"long_name": "network"})
    result = xr.concat(runs, dim=kind, combine_attrs="drop_conflicts", join="outer")

    picture = args.output.with_suffix(".png")
    figure = draw_curves(result)
    writers = {picture: lambda path: figure.savefig(path, format="png", dpi=120)}
    write_atomically(writers | {args.output: dataset_writer(result)})

    for name in KINDS:
        accuracy = float(result["accuracy"].sel(kind=name)[-1])
        print(f"{name:14s} test accuracy {accuracy:.4f}")
    print(f"wrote {args.output} and {picture}")


def train(images: Images, n: int, args: argparse.Namespace) -> xr.Dataset:
    """Train one network with `n` branches per block (none if 0), and measure it every epoch."""
    torch.manual_seed(args.seed)
    model = tiny_vit(images.classes, image=images.image, channels=images.channels)
    probe = probes.attach(model, "blocks.*", n=n, alpha=args.alpha) if n else None

    # A probe gives the optimizer its active branches; the static ones stay as they are.
    parameters = [*model.parameters(), *(probe.parameters() if probe else ())]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.05)
    generator = torch.Generator().manual_seed(args.seed)

    epochs = []
    for _ in resonance.track(range(args.epochs), f"n={n}", unit="epoch"):
        losses = []
        for rows in torch.randperm(len(images.x_train), generator=generator).split(64):
            x, y = images.x_train[rows], images.y_train[rows]
            main_loss = F.cross_entropy(model(x), y)
            loss = main_loss + probe.loss(y) if probe else main_loss

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(main_loss.item())
        epochs.append(measure_epoch(model, probe, images, losses))
    return join_epochs(epochs)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line: what to train on, how long, with how many branches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--n", type=int, default=20, help="branches per block")
    parser.add_argument("--alpha", type=float, default=1.0, help="strength of the branches' loss")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, help=".npz with images; the bundled digits if none")
    parser.add_argument("--output", type=Path, default=Path("results/quickstart.nc"))
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
