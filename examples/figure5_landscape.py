"""Do branches smooth the loss surface, or do they only dilute directions? (figure 5, tables 7, 8)

    python examples/figure5_landscape.py [--data cifar10.npz] [--size 51] [--backbone mlp]

A 51 x 51 plane around the initialisation, plain and with 1, 20 and 300 branches at each layer,
along Gaussian directions normalised as one vector over backbone and branches, as the paper drew
them; then over the backbone alone, where branches cannot matter. Prints the change beside the
published one, and writes the statistics (`--output`, netCDF), a figure and a page beside them.
"""

import argparse
from pathlib import Path

import torch
import xarray as xr

import landscape
import probes
from lab.backbones import LAYERS, cnn, mlp, vit6
from lab.data import load

BRANCHES = (1, 20, 300)
# Tables 7 and 8: change of Std(Loss), Range(Loss) and Mean(Grad) in percent.
PUBLISHED = {
    "mlp": [(-52.3, -57.6, -49.8), (-64.4, -64.9, -65.0), (-90.2, -90.3, -90.4)],
    "cnn": [(-16.3, -17.3, -15.9), (-66.7, -68.0, -66.9), (-90.2, -90.3, -90.2)],
    "vit6": [(-3.7, -3.7, -3.6), (-37.7, -38.0, -37.1), (-80.1, -79.3, -77.6)],
}
STATISTICS = ["std", "range", "mean_grad_per_step"]


def main(argv: list[str] | None = None) -> None:
    """Measure every number of branches, print the table, save and draw."""
    args = parse_args(argv)
    images = load(args.data)
    torch.manual_seed(args.seed)
    model = {
        "mlp": lambda: mlp(images.classes, inputs=images.x_train[0].numel()),
        "cnn": lambda: cnn(images.classes, channels=images.channels),
        "vit6": lambda: vit6(
            images.classes, image=images.image, patch=images.image // 8, channels=images.channels
        ),
    }[args.backbone]()
    data = images.x_train, images.y_train
    settings = {"over": "**", "samples": args.samples, "span": args.span, "seed": args.seed}
    if args.tolerance is not None:
        settings |= {"method": "adaptive", "tolerance": args.tolerance}
    drawing = settings | {"normalisation": "unit", "size": min(args.size, 25)}
    surfaces = {"plain": landscape.grid(model, data, **drawing)}
    print(f"{args.backbone}: change in percent of Std(Loss), Range(Loss), Mean(Grad)")
    print("  n   published               backbone + branches     dilution alone")
    rows = []
    for n, published in zip(BRANCHES, PUBLISHED[args.backbone], strict=True):
        layers, sample = LAYERS[args.backbone], data[0][:2]
        with probes.attach(model, layers, n=n, seed=args.seed, sample=sample) as probe:
            rows.append(landscape.dilution(model, data, probe, size=args.size, **settings))
            surfaces[f"{n} x"] = landscape.grid(model, data, extra=probe, **drawing)
        change = (100 * rows[-1]["change"].sel(statistic=STATISTICS)).values
        texts = ["".join(f"{c:7.1f}" for c in numbers) for numbers in (published, change)]
        print(f"{n:4d}{texts[0]}   {texts[1]}   {100 * (rows[-1]['factor'].item() - 1):14.1f}")
    number = xr.Variable("n", list(BRANCHES), {"long_name": "branches at each layer"})
    result = xr.concat(rows, dim=number, combine_attrs="drop_conflicts")
    alone = result["std"].sel(covers="backbone").values
    print(f"Std(Loss) over the backbone alone, with 1, 20, 300 branches: {alone}")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    result.to_netcdf(args.output, engine="h5netcdf")
    axes = landscape.plot_surfaces(surfaces)
    axes[0].figure.savefig(args.output.with_suffix(".png"), dpi=120)
    args.output.with_suffix(".html").write_text(landscape.html_surface(surfaces["plain"]))
    print(f"wrote {args.output}, and a figure and a page beside it")


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help=".npz images; scikit-learn's digits by default")
    parser.add_argument("--backbone", choices=list(PUBLISHED), default="mlp")
    parser.add_argument("--size", type=int, default=51, help="points along each axis")
    parser.add_argument("--span", type=float, default=1.0, help="length of the directions")
    parser.add_argument("--tolerance", type=float, help="interpolate; every point by default")
    parser.add_argument("--samples", type=int, default=500, help="training images")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--output", type=Path, default=Path("results/figure5.nc"))
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
