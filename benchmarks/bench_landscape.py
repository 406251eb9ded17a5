"""What does a loss surface cost, beside loss-landscapes and tools for Hessians?

    python benchmarks/bench_landscape.py [--quick] [--full] [--only exact adaptive]

CPU time of the process on one thread; tools take turns. `--only` names the parts, `--quick` leaves
out the large networks; `--full` evaluates all 2601 points of the large networks with
loss-landscapes, and with us to know the true error, instead of projecting from a few (long: an
hour). A table of every goal beside its bar comes last.
"""

import argparse
import contextlib
import copy
import functools
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from torch.nn import functional as F

import landscape
import networks
import peers
import timing
from networks import Data

SIZE = 51  # points along each axis, as in the figures of Li et al. (2018)
N_SAMPLES = 500
N_PRODUCTS = 20  # between the two calls whose difference is the cost of a product


@dataclass(frozen=True)
class Goal:
    """A number that should not fall below, or not rise above, its bar."""

    name: str
    measured: float
    side: str  # "at least" or "at most"
    bar: float

    def __str__(self) -> str:
        is_met = self.measured >= self.bar if self.side == "at least" else self.measured <= self.bar
        verdict = "met" if is_met else "MISSED"
        return f"{self.name:52s} {self.measured:9.3g}   {self.side} {self.bar:g}: {verdict}"


def main(argv: list[str] | None = None) -> None:
    """Print every ratio, then all of them beside their bars."""
    parser = timing.command_line(__doc__, rounds=3)
    parser.add_argument("--full", action="store_true", help="all 2601 points, nothing projected")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    args = timing.parse_args(parser, argv)
    warnings.filterwarnings("ignore")  # of the peers

    goals: list[Goal] = []
    for part in args.only:
        # A part finds the same networks whatever ran before it.
        torch.manual_seed(0)
        goals += PARTS[part](args)

    print(f"\n{'goal':52s} {'measured':>9s}   bar")
    print(*goals, sep="\n")


def measure_exact(args: argparse.Namespace) -> list[Goal]:
    """Every point of a plane: cost per point against loss-landscapes."""
    print(f"\nexact, CPU ms per point ({N_SAMPLES} images 32 x 32)")
    data = networks.random_images(N_SAMPLES)

    # Name: a network, two sizes of its plane, and the bar.
    cases: dict[str, tuple[nn.Module, tuple[int, int], float | None]] = {
        "MLP 3072-6x64-10": (networks.narrow_mlp(), (5, 21), 4.0),
        # No bar: `print_most_by_linearity` says what is possible.
        "MLP of the paper": (networks.paper_mlp(), (5, 21), None),
    }
    if not args.quick:
        cases["CNN"] = (networks.cnn(10), (2, 3), 1.35)
        cases["ViT-6L"] = (networks.vit6(10), (2, 3), 1.3)

    goals = []
    for name, (model, sizes, bar) in cases.items():
        peers.without_zeros(model).eval()
        speed_up = compare_planes(name, model, data, sizes, args.rounds)
        if bar is not None:
            goals.append(Goal(f"exact, {name}: times faster", speed_up, "at least", bar))

    print_most_by_linearity(networks.paper_mlp().eval(), data, 5 if args.quick else 35)
    return goals


def compare_planes(
    name: str, model: nn.Module, data: Data, sizes: tuple[int, int], rounds: int
) -> float:
    """Time planes of two sizes: their difference is free of what is done once."""
    n_points = sizes[1] ** 2 - sizes[0] ** 2

    def milliseconds_per_point(plane_seconds: Callable[[int], float]) -> float:
        few, many = (plane_seconds(size) for size in sizes)
        return 1e3 * (many - few) / n_points

    def peer_plane(size: int) -> float:
        return peers.random_plane(model, data, size)

    def our_plane(size: int) -> float:
        return timing.cpu_time(lambda: landscape.grid(model, data, size=size))

    # Both tools import on first use.
    peer_plane(2)
    our_plane(2)

    theirs: list[float] = []
    ours: list[float] = []
    forward: list[float] = []
    for _ in range(rounds):
        theirs.append(milliseconds_per_point(peer_plane))
        ours.append(milliseconds_per_point(our_plane))
        forward.append(1e3 * timing.cpu_time(lambda: evaluate_loss(model, data)))

    speed_ups = [a / b for a, b in zip(theirs, ours, strict=True)]
    speed_up = statistics.median(speed_ups)
    print(
        f"  {name:18s} loss-landscapes {statistics.median(theirs):8.2f}  "
        f"ours {statistics.median(ours):8.2f}  one forward {statistics.median(forward):8.2f}  "
        f"speed-up {speed_up:4.2f} x ({', '.join(f'{value:.2f}' for value in speed_ups)})",
        flush=True,
    )
    return speed_up


@torch.no_grad()
def print_most_by_linearity(model: nn.Sequential, data: Data, rounds: int) -> None:
    """The first layer is linear in the weights, so its outputs can be added instead of computed."""
    images, labels = data
    first_layer = model[:2]  # flatten, linear
    remaining_layers = model[2:]
    hidden = first_layer(images)

    ways = {
        "model": lambda: evaluate_loss(model, data),
        "remaining layers": lambda: evaluate_loss(remaining_layers, (hidden, labels)),
    }
    times = timing.interleaved(ways, rounds=rounds, warmup=5)

    most = statistics.median(times["model"]) / statistics.median(times["remaining layers"])
    print(
        f"  MLP of the paper: a forward pass / what follows its first layer = {most:.2f}, "
        "the most that linearity can give"
    )


def measure_adaptive(args: argparse.Namespace) -> list[Goal]:
    """A 51 x 51 plane to 1e-2 of its range, end to end, against 2601 points of loss-landscapes."""
    print(f"\nadaptive, tolerance 1e-2, trained on digits, 500 images, CPU s for {SIZE} x {SIZE}")
    images, labels = networks.digits()
    data = images[:N_SAMPLES], labels[:N_SAMPLES]

    models: dict[str, nn.Module] = {
        "MLP": networks.paper_mlp(inputs=64),
        "CNN": networks.cnn(10, channels=1),
    }
    if not args.quick:
        models["ViT-6L"] = networks.vit6(10, image=8, patch=2, channels=1)

    # What is imported on first use is imported by now.
    landscape.grid(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), data, method="adaptive")

    goals = []
    for name, model in models.items():
        networks.train(model, images, labels)
        peers.without_zeros(model).eval()

        # Large networks take minutes for a plane, where a processor's noise averages out.
        is_small = name == "MLP"
        surface, speed_up = compare_adaptive(
            name,
            model,
            data,
            all_points=args.full or is_small,
            rounds=5 if is_small and not args.quick else 1,
        )
        goals.append(Goal(f"adaptive, {name}: times faster", speed_up, "at least", 10.0))

        if args.full or is_small:
            true_loss = landscape.grid(model, data)["loss"]
            loss_range = true_loss.max() - true_loss.min()
            error = float(abs(surface["loss"] - true_loss).max() / loss_range)
            goals.append(Goal(f"adaptive, {name}: true error", error, "at most", 1e-2))

    return goals


def compare_adaptive(
    name: str, model: nn.Module, data: Data, *, all_points: bool, rounds: int
) -> tuple[xr.Dataset, float]:
    """Our surface, and how many times faster it was made than the peer's (projected) plane."""
    # The cost per point is the difference of two planes, or that of the whole plane.
    few, many = (0, SIZE) if all_points else (2, 4)
    n_points = many**2 - few**2

    surfaces: list[xr.Dataset] = []
    theirs: list[float] = []
    ours: list[float] = []
    for _ in range(rounds):
        few_seconds = peers.random_plane(model, data, few) if few else 0.0
        many_seconds = peers.random_plane(model, data, many)
        theirs.append(SIZE**2 * (many_seconds - few_seconds) / n_points)

        def make_surface() -> None:
            surfaces.append(landscape.grid(model, data, method="adaptive"))

        ours.append(timing.cpu_time(make_surface))

    speed_up = statistics.median(a / b for a, b in zip(theirs, ours, strict=True))
    surface = surfaces[0]
    print(
        f"  {name:8s} loss-landscapes {statistics.median(theirs):7.1f} (from {n_points} points)  "
        f"ours {statistics.median(ours):6.2f}  speed-up {speed_up:5.1f} x  "
        f"evaluations {surface.attrs['n_evaluations']:4d}  "
        f"estimated error {surface.attrs['error_estimate']:.1e}",
        flush=True,
    )
    return surface, speed_up


def measure_curvature(args: argparse.Namespace) -> list[Goal]:
    """Products with the Hessian, in forward passes, and how many eigenvalues need."""
    print("\ncurvature")
    n_passes = compare_products(rounds=2 if args.quick else 35)
    n_products = count_products_of_eigenvalues()
    speed_ups = compare_eigenvalues(rounds=1 if args.quick else 7)
    print_critical_sharpness(rounds=2 if args.quick else 15)

    return [
        Goal("product with the Hessian: forward passes", n_passes, "at most", 2.6),
        Goal("top 5 to 1e-3, MLP on digits: products", n_products, "at most", 15.0),
        *(
            Goal(f"eigenvalues: times faster than {peer}", ratio, "at least", 1.0)
            for peer, ratio in speed_ups.items()
        ),
    ]


def compare_products(rounds: int) -> float:
    """Print what a product costs here and elsewhere; return ours, in forward passes."""
    # Enough samples that drawing a probe, which is no part of a product, hardly counts.
    data = networks.random_images(8 * N_SAMPLES)
    model = networks.narrow_mlp().eval()

    def estimate_trace(n_probes: int) -> None:
        # Two Lanczos steps, then one product for each probe; no tolerance stops it earlier.
        landscape.curvature(
            model,
            data,
            samples=None,
            k=1,
            max_products=2,
            trace_probes=n_probes,
            trace_tolerance=0.0,
            density_runs=0,
        )

    # Our product by difference: both calls set up the same graph and differ in products alone.
    ways: dict[str, Callable[[], object]] = {
        "forward": lambda: evaluate_loss(model, data),
        "few products": lambda: estimate_trace(1),
        "many products": lambda: estimate_trace(1 + N_PRODUCTS),
    }
    for peer in (peers.pyhessian, peers.curvlinops, peers.hessian_eigenthings):
        with contextlib.suppress(ImportError):
            ways[peer.__name__] = peer(copy.deepcopy(model), data)

    times = timing.interleaved(ways, rounds=rounds, warmup=5 if rounds > 5 else 1)
    times["ours"] = (times.pop("many products") - times.pop("few products")) / N_PRODUCTS

    print("  product with the Hessian, MLP of 218k parameters, in forward passes")
    for name in times:
        if name != "forward":
            print(f"    {name:20s} {timing.ratio(times, name, 'forward')}")

    return statistics.median(times["ours"] / times["forward"])


def count_products_of_eigenvalues() -> int:
    """Products until the five largest eigenvalues are right to 1e-3."""
    images, labels = networks.digits()
    torch.manual_seed(0)
    model = networks.paper_mlp(inputs=64)
    networks.train(model, images, labels)
    data = images[:N_SAMPLES], labels[:N_SAMPLES]

    def five_largest(tolerance: float, max_products: int) -> xr.DataArray:
        result = landscape.curvature(
            model,
            data,
            k=5,
            tolerance=tolerance,
            max_products=max_products,
            trace_probes=0,
            density_runs=0,
        )
        return result["largest"]

    converged = five_largest(tolerance=1e-8, max_products=200)
    for n_products in range(6, 30):
        estimate = five_largest(tolerance=0.0, max_products=n_products)
        if float(abs(estimate / converged - 1).max()) < 1e-3:
            break

    return n_products


def compare_eigenvalues(rounds: int) -> dict[str, float]:
    """How many times faster whole calls are than each peer's, for the same eigenvalues.

    Tools stop by rules of their own. So each is given the least effort with which none of its
    residuals `||H v - value v||` is larger than the largest of ours.
    """
    images, labels = networks.digits()
    torch.manual_seed(0)
    model = networks.paper_mlp(inputs=64)
    networks.train(model, images, labels)
    model.eval()
    data = images[:N_SAMPLES].flatten(1), labels[:N_SAMPLES]

    def largest() -> xr.Dataset:
        return landscape.curvature(
            model, data, samples=None, ends="largest", trace_probes=0, density_runs=0
        )

    def both_ends() -> xr.Dataset:
        return landscape.curvature(model, data, samples=None, trace_probes=0, density_runs=0)

    # Peer: what it does, what of ours does the same, and efforts, the least first.
    tolerances = np.logspace(0, -7, 29).tolist()
    steps = list(range(10, 50))
    cases = {
        "pyhessian": (peers.pyhessian_eigenpairs, "largest", tolerances),
        "curvlinops": (peers.curvlinops_eigenpairs, "largest", tolerances),
        "hessian-eigenthings": (peers.hessian_eigenthings_eigenpairs, "largest", steps),
        "curvlinops, both ends": (peers.curvlinops_both_ends, "both ends", tolerances),
    }
    residuals = {
        "largest": float(largest()["largest_residual"].max()),
        "both ends": float(both_ends()[["largest_residual", "smallest_residual"]].to_array().max()),
    }

    ways: dict[str, Callable[[], object]] = {"largest": largest, "both ends": both_ends}
    for name, (peer, ours, efforts) in cases.items():
        with contextlib.suppress(ImportError):
            effort = least_effort(peer, model, data, efforts, residuals[ours])
            ways[name] = functools.partial(peer, copy.deepcopy(model), data, effort)
            print(f"  {name}: effort {effort:.3g} for residuals of {residuals[ours]:.2g}")

    times = timing.interleaved(ways, rounds=rounds, warmup=1)
    print("  five eigenvalues to the same residual, whole calls beside ours, MLP on digits")
    speed_ups = {}
    for name, (_, ours, _) in cases.items():
        if name in times:
            print(f"    {name:22s} {timing.ratio(times, name, ours)}")
            speed_ups[name] = float(np.median(times[name] / times[ours]))
    return speed_ups


def least_effort(
    peer: Callable[[nn.Module, Data, float], peers.Pairs],
    model: nn.Module,
    data: Data,
    efforts: list[float],
    residual: float,
) -> float:
    """The first of the efforts with which a peer's residuals are small enough."""
    for effort in efforts:
        values, vectors = peer(copy.deepcopy(model), data, effort)
        if largest_residual(model, data, values, vectors) <= residual:
            return effort
    raise RuntimeError(f"{peer.__name__} does not come to residuals of {residual:.2g}")


def largest_residual(model: nn.Module, data: Data, values: Tensor, vectors: Tensor) -> float:
    """The largest `||H v - value v||` of unit vectors, by differentiating twice."""
    inputs, targets = data
    params = list(model.parameters())
    loss = F.cross_entropy(model(inputs), targets)
    slopes = torch.autograd.grad(loss, params, create_graph=True)
    slope = torch.cat([piece.flatten() for piece in slopes])

    lengths = []
    for value, vector in zip(values, vectors, strict=True):
        unit = (vector / vector.norm()).float()
        pieces = torch.autograd.grad(slope, params, unit, retain_graph=True)
        product = torch.cat([piece.flatten() for piece in pieces])
        lengths.append((product - value.float() * unit).norm().item())
    return max(lengths)


def print_critical_sharpness(rounds: int) -> None:
    """Print what critical sharpness costs, in forward passes and beside the largest eigenvalue."""
    data = networks.random_images(N_SAMPLES)
    model = networks.paper_mlp().eval()

    ways: dict[str, Callable[[], object]] = {
        "forward": lambda: evaluate_loss(model, data),
        "critical sharpness": lambda: landscape.critical_sharpness(model, data),
        "largest eigenvalue": lambda: landscape.curvature(
            model, data, k=1, trace_probes=0, density_runs=0
        ),
    }
    times = timing.interleaved(ways, rounds=rounds, warmup=1)
    print("  sharpness, MLP of the paper, in forward passes")
    for name in times:
        if name != "forward":
            print(f"    {name:18s} {timing.ratio(times, name, 'forward')}")


def measure_memory(_args: argparse.Namespace) -> list[Goal]:
    """Peak memory of a grid and of curvature beyond the model, in copies of the model."""
    model = nn.Sequential(*(nn.Linear(1000, 1000) for _ in range(24)))
    model_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    data = torch.randn(8, 1000), torch.randint(0, 10, (8,))

    peak = timing.peak_bytes(lambda: landscape.grid(model, data, samples=8, size=3))

    curvature_peak = timing.peak_bytes(
        lambda: landscape.curvature(model, data, samples=8, max_products=40, trace_probes=2)
    )

    return [
        # A hundredth for what is in use for a moment: activations, numbers widened.
        Goal("grid, memory beyond the model: copies of it", peak / model_bytes, "at most", 2.02),
        Goal(
            "curvature, memory beyond the model: copies of it",
            curvature_peak / model_bytes,
            "at most",
            30.0,
        ),
    ]


@torch.no_grad()
def evaluate_loss(model: nn.Module, data: Data) -> None:
    """A forward pass with its loss."""
    inputs, targets = data
    F.cross_entropy(model(inputs), targets)


PARTS: dict[str, Callable[[argparse.Namespace], list[Goal]]] = {
    "exact": measure_exact,
    "adaptive": measure_adaptive,
    "curvature": measure_curvature,
    "memory": measure_memory,
}


if __name__ == "__main__":
    main()
