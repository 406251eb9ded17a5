"""What a loss surface costs, in one interleaved run against loss-landscapes and Hessian tools.

Run with `python benchmarks/landscape.py`; `--quick` takes smaller networks. CPU time of this
process on one thread, so that other work on the machine matters little.
"""

import argparse
import contextlib
import copy
import statistics
import time
import warnings
from collections.abc import Callable
from itertools import pairwise

import timing
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import landscape
from lab.backbones import cnn, mlp, vit6
from lab.data import digits

warnings.filterwarnings("ignore")
Data = tuple[Tensor, Tensor]


def main(argv: list[str] | None = None) -> None:
    """Print every ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller networks, fewer repeats")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(timing.machine(rounds=1))
    torch.manual_seed(0)
    exact(args.quick)
    adaptive(args.quick)
    curvature()
    memory()


def exact(quick: bool) -> None:
    """Every point of a plane: cost per point against loss-landscapes."""
    print("\nexact, CPU ms per point (500 images 32 x 32)")
    x, y = torch.randn(500, 3, 32, 32), torch.randint(0, 10, (500,))
    report("MLP 3072-6x64-10", _narrow_mlp(), (x, y), sizes=(5, 21), repeats=3)
    report("MLP of the paper", mlp(10), (x, y), sizes=(5, 21), repeats=3)
    if not quick:
        report("CNN", cnn(10), (x, y), sizes=(2, 3), repeats=2)
        report("ViT-6L", vit6(10), (x, y), sizes=(2, 3), repeats=2)


def report(
    name: str, model: nn.Module, data: Data, *, sizes: tuple[int, int], repeats: int
) -> None:
    """Time planes of two sizes: the difference is free of what is done once."""
    model = _without_zeros(model).eval()
    points = sizes[1] ** 2 - sizes[0] ** 2
    theirs, ours, forward = [], [], []
    for _ in range(repeats):
        theirs.append(
            1e3 * (_theirs(model, data, sizes[1]) - _theirs(model, data, sizes[0])) / points
        )
        ours.append(1e3 * (_ours(model, data, sizes[1]) - _ours(model, data, sizes[0])) / points)
        forward.append(1e3 * _cpu_time(lambda: _forward(model, data)))
    a, b, c = (statistics.median(t) for t in (theirs, ours, forward))
    runs = ", ".join(f"{s / t:.2f}" for s, t in zip(theirs, ours, strict=True))
    print(
        f"  {name:18s} loss-landscapes {a:8.2f}  ours {b:8.2f}  one forward {c:8.2f}"
        f"  speed-up {a / b:4.2f} x ({runs})",
        flush=True,
    )


def adaptive(quick: bool) -> None:
    """A 51 x 51 plane to 1e-2 of its range, end to end, against 2601 points of loss-landscapes."""
    print("\nadaptive, tolerance 1e-2, trained on digits, 500 images, CPU s for 51 x 51")
    images = digits()
    x, y = images.x_train[:500], images.y_train[:500]
    networks = {"MLP": mlp(10, inputs=64), "CNN": cnn(10, channels=1, dropout=0.0)}
    if not quick:
        networks["ViT-6L"] = vit6(10, image=8, patch=2, channels=1)
    for name, model in networks.items():
        _train(model, images.x_train, images.y_train)
        model = _without_zeros(model).eval()
        started = time.process_time()
        found = landscape.grid(model, (x, y), method="adaptive")
        ours = time.process_time() - started
        sizes = (7, 21) if name == "MLP" else (2, 4)
        points = sizes[1] ** 2 - sizes[0] ** 2
        theirs = (
            2601 * (_theirs(model, (x, y), sizes[1]) - _theirs(model, (x, y), sizes[0])) / points
        )
        count, error = found.attrs["n_evaluations"], found.attrs["error_estimate"]
        print(
            f"  {name:18s} loss-landscapes {theirs:7.1f} (projected from {points} points)  ours "
            f"{ours:7.1f}  speed-up {theirs / ours:5.1f} x  evaluations {count:4d}  "
            f"estimated error {error:.1e}",
            flush=True,
        )


def curvature() -> None:
    """Products with the Hessian, in forward passes, and how many eigenvalues need."""
    from landscape._curvature import curvature_of, start_vector
    from landscape._products import multiplying

    print("\ncurvature")
    x, y = torch.randn(500, 3, 32, 32), torch.randint(0, 10, (500,))
    model = _narrow_mlp().eval()
    about = curvature_of(
        model, (x, y), None, "hessian", None, samples=500, seed=0, memory=2**31, batch_size=None
    )
    vector = torch.randn_like(start_vector(about))
    ways: dict[str, Callable[[], object]] = {"forward": lambda: _forward(model, (x, y))}
    for peer, product_of in (("pyhessian", _pyhessian), ("curvlinops", _curvlinops)):
        with contextlib.suppress(ImportError):
            ways[peer] = product_of(copy.deepcopy(model), (x, y))
    with multiplying(about) as product:
        ways["ours"] = lambda: product(vector)
        times = timing.interleaved(ways, rounds=35, warmup=5)
    print("  product with the Hessian, MLP of 218k parameters, in forward passes")
    for name in [name for name in ways if name != "forward"]:
        print(f"    {name:12s} {timing.ratio(times, name, 'forward')}")
    images = digits()
    model = mlp(10, inputs=64)
    _train(model, images.x_train, images.y_train)
    data = images.x_train[:500], images.y_train[:500]
    none = {"trace_probes": 0, "density_runs": 0}
    best = landscape.curvature(model, data, k=5, tolerance=1e-8, **none)["largest"]
    for products in range(6, 30):
        found = landscape.curvature(model, data, k=5, tolerance=0.0, max_products=products, **none)
        if float(abs(found["largest"] / best - 1).max()) < 1e-3:
            break
    print(f"  top 5 to 1e-3, MLP on digits: {products} products")


def memory() -> None:
    """Peak memory of a grid, in copies of the model."""
    model = nn.Sequential(*(nn.Linear(1000, 1000) for _ in range(24)))
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    data = torch.randn(8, 1000), torch.randint(0, 10, (8,))
    landscape.grid(nn.Linear(1000, 10), data, samples=8, size=3)  # libraries are loaded by now
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # forget the peak so far
        before = _resident("VmRSS")
        landscape.grid(model, data, samples=8, size=3)
        print(
            f"\nmemory: {(_resident('VmHWM') - before) / size:.2f} copies of the model at the peak"
        )
    except OSError:
        print("\nmemory: not measured on this system")


def _narrow_mlp() -> nn.Sequential:
    widths = [3072, *[64] * 6, 10]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _without_zeros(model: nn.Module) -> nn.Module:
    # loss-landscapes divides by the norm of each vector, and fails where it is 0.
    for p in model.parameters():
        if not p.detach().any():
            nn.init.normal_(p, std=1e-3)
    return model


def _theirs(model: nn.Module, data: Data, size: int) -> float:
    import loss_landscapes
    from loss_landscapes.metrics import Loss

    moved = copy.deepcopy(model)
    metric = Loss(F.cross_entropy, *data)
    return _cpu_time(lambda: loss_landscapes.random_plane(moved, metric, 1, size, "filter"))


def _ours(model: nn.Module, data: Data, size: int) -> float:
    return _cpu_time(lambda: landscape.grid(model, data, size=size))


def _forward(model: nn.Module, data: Data) -> None:
    with torch.no_grad():
        F.cross_entropy(model(data[0]), data[1])


def _pyhessian(model: nn.Module, data: Data) -> Callable[[], object]:
    from pyhessian import hessian
    from pyhessian.utils import hessian_vector_product

    found = hessian(model, nn.CrossEntropyLoss(), data=data, cuda=False)
    vector = [torch.randn_like(p) for p in found.params]
    return lambda: hessian_vector_product(found.gradsH, found.params, vector)


def _curvlinops(model: nn.Module, data: Data) -> Callable[[], object]:
    from curvlinops import HessianLinearOperator

    params = list(model.parameters())
    operator = HessianLinearOperator(
        model, nn.CrossEntropyLoss(), params, [data], check_deterministic=False
    )
    vector = torch.randn(operator.shape[1])
    return lambda: operator @ vector


def _train(model: nn.Module, x: Tensor, y: Tensor, steps: int = 150) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(steps):
        rows = torch.randint(0, len(x), (64,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def _cpu_time(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _resident(field: str) -> int:
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
