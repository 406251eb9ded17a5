"""What a loss surface costs, in one interleaved run against loss-landscapes and Hessian tools.

Run with `python benchmarks/landscape.py`; `--quick` leaves out the large networks, `--only` names
the parts, `--full` evaluates all 2601 points of the large networks with loss-landscapes, and with
us to know the true error, instead of projecting from a few (long: an hour). CPU time of this
process on one thread, so that other work on the machine matters little. A table of every goal
beside its bar comes last.
"""

import argparse
import contextlib
import copy
import statistics
import warnings
from collections.abc import Callable

import networks  # before `timing`, which moves this folder out of the way
import peers
import timing
import torch
from torch import nn
from torch.nn import functional as F

import landscape
from lab.backbones.asymmetric_paper import cnn, mlp, vit6
from lab.data.images import digits

warnings.filterwarnings("ignore")
PARTS = ("exact", "adaptive", "curvature", "memory")
Goals = list[tuple[str, float, str, float]]  # what, measured, "at least" or "at most", the bar


def main(argv: list[str] | None = None) -> None:
    """Print every ratio, then all of them beside their bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="no large networks")
    parser.add_argument("--full", action="store_true", help="all 2601 points, nothing projected")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(timing.machine(rounds=1))
    torch.manual_seed(0)
    goals: Goals = []
    for part in args.only:
        {"exact": exact, "adaptive": adaptive, "curvature": curvature, "memory": memory}[part](
            goals, args
        )
    print(f"\n{'goal':52s} {'measured':>9s}   bar")
    for what, measured, side, bar in goals:
        met = measured >= bar if side == "at least" else measured <= bar
        print(f"{what:52s} {measured:9.3g}   {side} {bar:g}: {'met' if met else 'MISSED'}")


def exact(goals: Goals, args: argparse.Namespace) -> None:
    """Every point of a plane: cost per point against loss-landscapes."""
    print("\nexact, CPU ms per point (500 images 32 x 32)")
    data = torch.randn(500, 3, 32, 32), torch.randint(0, 10, (500,))
    rows = [("MLP 3072-6x64-10", networks.narrow_mlp(), (5, 21), 3, 4.0)]
    rows += [("MLP of the paper", mlp(10), (5, 21), 3, 0.0)]  # no bar: see the note below
    if not args.quick:
        rows += [("CNN", cnn(10), (2, 3), 3, 1.35), ("ViT-6L", vit6(10), (2, 3), 3, 1.3)]
    for name, model, sizes, repeats, bar in rows:
        speed_up = _compare(name, peers.without_zeros(model).eval(), data, sizes, repeats)
        if bar:
            goals.append((f"exact, {name}: times faster", speed_up, "at least", bar))
    whole, rest = _beyond_first_layer(mlp(10).eval(), data)
    print(
        f"  MLP of the paper: a forward pass / what follows its first layer = {whole / rest:.2f}, "
        "the most that linearity can give"
    )


def _compare(
    name: str, model: nn.Module, data: peers.Data, sizes: tuple[int, int], repeats: int
) -> float:
    """Time planes of two sizes: the difference is free of what is done once."""
    points = sizes[1] ** 2 - sizes[0] ** 2
    theirs, ours, forward = [], [], []
    peers.random_plane(model, data, 2), _seconds(model, data, 2)  # both have loaded all they need
    for _ in range(repeats):
        few, many = (peers.random_plane(model, data, size) for size in sizes)
        theirs.append(1e3 * (many - few) / points)
        few, many = (_seconds(model, data, size) for size in sizes)
        ours.append(1e3 * (many - few) / points)
        forward.append(1e3 * timing.cpu_time(lambda: _forward(model, data)))
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    a, b, c = (statistics.median(t) for t in (theirs, ours, forward))
    print(
        f"  {name:18s} loss-landscapes {a:8.2f}  ours {b:8.2f}  one forward {c:8.2f}  speed-up "
        f"{statistics.median(ratios):4.2f} x ({', '.join(f'{r:.2f}' for r in ratios)})",
        flush=True,
    )
    return statistics.median(ratios)


def adaptive(goals: Goals, args: argparse.Namespace) -> None:
    """A 51 x 51 plane to 1e-2 of its range, end to end, against 2601 points of loss-landscapes."""
    print("\nadaptive, tolerance 1e-2, trained on digits, 500 images, CPU s for 51 x 51")
    images = digits()
    data = images.x_train[:500], images.y_train[:500]
    trained = {"MLP": mlp(10, inputs=64), "CNN": cnn(10, channels=1, dropout=0.0)}
    if not args.quick:
        trained["ViT-6L"] = vit6(10, image=8, patch=2, channels=1)
    warm = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    landscape.grid(warm, data, method="adaptive")  # libraries are loaded by now
    for name, model in trained.items():
        networks.train(model, images.x_train, images.y_train)
        peers.without_zeros(model).eval()
        full, rounds = args.full or name == "MLP", 5 if name == "MLP" else 1
        sizes = (0, 51) if full else (2, 4)
        points = sizes[1] ** 2 - sizes[0] ** 2
        found, theirs, ours = [], [], []
        for _ in range(rounds):
            few, many = (peers.random_plane(model, data, n) if n else 0.0 for n in sizes)
            theirs.append(2601 * (many - few) / points)
            ours.append(
                timing.cpu_time(
                    lambda m=model, f=found: f.append(landscape.grid(m, data, method="adaptive"))
                )
            )
        speed_up = statistics.median(a / b for a, b in zip(theirs, ours, strict=True))
        attrs = found[0].attrs
        print(
            f"  {name:8s} loss-landscapes {statistics.median(theirs):7.1f} (from {points} points)  "
            f"ours {statistics.median(ours):6.2f}  speed-up {speed_up:5.1f} x  "
            f"evaluations {attrs['n_evaluations']:4d}  "
            f"estimated error {attrs['error_estimate']:.1e}",
            flush=True,
        )
        goals.append((f"adaptive, {name}: times faster", speed_up, "at least", 10.0))
        if full:
            truth = landscape.grid(model, data)["loss"]
            error = float(abs(found[0]["loss"] - truth).max() / (truth.max() - truth.min()))
            goals.append((f"adaptive, {name}: true error", error, "at most", 1e-2))


def curvature(goals: Goals, _args: argparse.Namespace) -> None:
    """Products with the Hessian, in forward passes, and how many eigenvalues need."""
    from landscape._curvature.matrix import matrix_vector_product
    from landscape._curvature.setup import MatrixRequest, curvature_of, start_vector

    print("\ncurvature")
    data = torch.randn(500, 3, 32, 32), torch.randint(0, 10, (500,))
    model = networks.narrow_mlp().eval()
    request = MatrixRequest(
        data,
        loss=None,
        matrix="hessian",
        over=None,
        samples=500,
        seed=0,
        memory=2**31,
        batch_size=None,
    )
    hessian = curvature_of(model, request)
    vector = torch.randn_like(start_vector(hessian))
    ways: dict[str, Callable[[], object]] = {"forward": lambda: _forward(model, data)}
    for peer in (peers.pyhessian, peers.curvlinops):
        with contextlib.suppress(ImportError):
            ways[peer.__name__] = peer(copy.deepcopy(model), data)
    with matrix_vector_product(hessian) as product:
        ways["ours"] = lambda: product(vector)
        times = timing.interleaved(ways, rounds=35, warmup=5)
    print("  product with the Hessian, MLP of 218k parameters, in forward passes")
    for name in [name for name in ways if name != "forward"]:
        print(f"    {name:12s} {timing.ratio(times, name, 'forward')}")
    passes = statistics.median(times["ours"] / times["forward"])
    goals.append(("product with the Hessian: forward passes", passes, "at most", 3.0))
    images = digits()
    model = mlp(10, inputs=64)
    networks.train(model, images.x_train, images.y_train)
    data = images.x_train[:500], images.y_train[:500]
    none = {"trace_probes": 0, "density_runs": 0}
    best = landscape.curvature(model, data, k=5, tolerance=1e-8, **none)["largest"]
    for products in range(6, 30):
        found = landscape.curvature(model, data, k=5, tolerance=0.0, max_products=products, **none)
        if float(abs(found["largest"] / best - 1).max()) < 1e-3:
            break
    goals.append(("top 5 to 1e-3, MLP on digits: products", products, "at most", 15.0))


def memory(goals: Goals, _args: argparse.Namespace) -> None:
    """Peak memory of a grid beyond the model, in copies of the model."""
    model = nn.Sequential(*(nn.Linear(1000, 1000) for _ in range(24)))
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    data = torch.randn(8, 1000), torch.randint(0, 10, (8,))
    peak = timing.peak_bytes(lambda: landscape.grid(model, data, samples=8, size=3))
    # A hundredth for what is in use for a moment: activations, a quarter million numbers widened.
    goals.append(("memory beyond the model: copies of it", peak / size, "at most", 2.02))


def _beyond_first_layer(model: nn.Module, data: peers.Data) -> tuple[float, float]:
    with torch.no_grad():
        hidden = model.blocks[0][0](data[0].flatten(1))
        rest = nn.Sequential(nn.ReLU(), *model.blocks[1:], model.head)
        ways = {
            "whole": lambda: _forward(model, data),
            "rest": lambda: _forward(rest, (hidden, data[1])),
        }
        times = timing.interleaved(ways, rounds=35, warmup=5)
    return statistics.median(times["whole"]), statistics.median(times["rest"])


def _seconds(model: nn.Module, data: peers.Data, size: int) -> float:
    return timing.cpu_time(lambda: landscape.grid(model, data, size=size))


def _forward(model: nn.Module, data: peers.Data) -> None:
    with torch.no_grad():
        F.cross_entropy(model(data[0]), data[1])


if __name__ == "__main__":
    main()
