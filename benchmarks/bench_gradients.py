"""What does a gradient trace cost? Ratios to a plain training step on main + auxiliary loss.

Run: python benchmarks/gradients.py [--rounds 7] [--batch 64]

One thread, CPU time of the process, all ways in turn within each round; the median of the rounds'
ratios with the quartiles. The unavoidable cost of the exact cosine is 1 + 2 f / 3, where f is the
share of the forward pass below the deepest attachment point: there the backward pass (two thirds
of a step) must be made once more. The naive way is one forward and backward pass for each gradient
besides those of the step. torchjd is left out if it is not installed; one by one it makes two whole
backward passes. Where f is 1 a trace makes the same two, and only bookkeeping is left to differ, 1
to 3 % of a plain step on either side: expect a tie there, 0.98 to 1.02, on either side of its bar.
All ways give what a trace gives: inner product and norms of both gradients in each layer, in
float64, and their sum in `.grad`; the other ways are told beforehand which parameters both losses
reach. About three minutes.
"""

import argparse
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import timing
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import gradients
import probes
from lab.backbones import asymmetric_paper as backbones
from resonance_toolkit import find_layers

Losses = tuple[Tensor, Tensor]
CASES = {
    "ViT-6L, all blocks": ("vit6", "blocks.*"),
    "ViT-6L, block 2": ("vit6", "blocks.2"),
    "CNN, all convolutions": ("cnn", "features.*"),
    "CNN, convolution 2": ("cnn", "features.2"),
}


def main(argv: list[str] | None = None) -> None:
    """Print one table per case."""
    args = parse_args(argv)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="There is a performance drop")  # torchjd's vmap
    print(timing.machine(args.rounds))
    for title, (backbone, layers) in CASES.items():
        torch.manual_seed(0)
        model = getattr(backbones, backbone)(classes=100)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0  # so that all ways must find the same cosine
        x, y = torch.randn(args.batch, 3, 32, 32), torch.randint(0, 100, (args.batch,))
        f = depth_fraction(model, layers, x)
        ways, cosine = make_ways(model, layers, x, y)
        times = timing.interleaved(ways, rounds=args.rounds, warmup=1)
        bound = 1 + 2 * f / 3
        print(f"\n{title}: f = {f:.2f}, unavoidable 1 + 2f/3 = {bound:.2f}")
        bars = {"trace": 1.05 * bound, "trace, activation level": 1.08}
        for name in ways:
            agrees = f"   cosine {cosine[name]:+.5f}" if name in cosine else ""
            print(timing.row(times, name, "plain step", bar=bars.get(name)) + agrees)
        for peer in ways:
            if peer.startswith(("naive", "torchjd")):
                ours = {f"trace / {peer}": times["trace"], peer: times[peer]}
                print(timing.row(ours, f"trace / {peer}", peer, bar=1.0))


def make_ways(
    model: nn.Module, layers: str, x: Tensor, y: Tensor
) -> tuple[dict[str, Callable[[], None]], dict[str, float]]:
    """Ways to make a training step; each notes the cosine it found."""
    probe = probes.attach(model, layers=layers, n=20, alpha=0.1, sample=x[:2])
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD([*parameters, *probe.parameters()], lr=0.0)
    traces = {
        "trace": gradients.Trace(model),
        "trace, every 10": gradients.Trace(model, every=10),
    }
    features = gradients.Trace(model, level="activation", layers=layers)
    features.every = 10**9  # asleep while the others are measured
    cosine: dict[str, float] = {}

    def losses() -> Losses:
        return F.cross_entropy(model(x), y), probe.loss(y)

    def stepping(backward: Callable[[], None]) -> Callable[[], None]:
        def step() -> None:
            optimizer.zero_grad()
            backward()
            optimizer.step()

        return step

    def plain() -> None:
        main, auxiliary = losses()
        (main + auxiliary).backward()

    def activation() -> None:
        features.every, features.step = 1, 0
        features.backward(*losses())
        features.every, features.step = 10**9, 1

    def single(index: int) -> Sequence[Tensor | None]:
        return torch.autograd.grad(losses()[index], parameters, allow_unused=True)

    both = [a is not None and b is not None for a, b in zip(single(0), single(1), strict=True)]
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    shared = [(i, name.rpartition(".")[0] or name) for i, name in enumerate(names) if both[i]]

    def naive() -> None:
        cosine["naive, 3 passes"] = cosine_of(by_layer(shared, single(0), single(1)))
        plain()

    ways = {"plain step": stepping(plain)}
    for name, trace in traces.items():
        ways[name] = stepping(lambda trace=trace: trace.backward(*losses()))
    ways["trace, activation level"] = stepping(activation)
    ways["naive, 3 passes"] = stepping(naive)
    if backward := torchjd_backward():
        for chunk, name in ((1, "torchjd, one by one"), (None, "torchjd, default (vmap)")):

            def jacobian(chunk: int | None = chunk, name: str = name) -> None:
                inputs = [*parameters, *probe.parameters()]
                backward(list(losses()), inputs=inputs, parallel_chunk_size=chunk)
                rows = ([p.jac[i] for p in parameters] for i in (0, 1))
                cosine[name] = cosine_of(by_layer(shared, *rows))
                for p in inputs:
                    p.grad = p.jac.sum(0)
                    del p.jac

            ways[name] = stepping(jacobian)
    stepping(lambda: traces["trace"].backward(*losses()))()
    cosine["trace"] = traces["trace"].to_dataset()["cosine_total"].values[0]
    return ways, cosine


def by_layer(
    shared: list[tuple[int, str]], one: Sequence[Tensor | None], other: Sequence[Tensor | None]
) -> dict[str, np.ndarray]:
    """Inner product and squared norms of two gradients, over the parameters that both reach."""
    found = {layer: np.zeros(3) for _, layer in shared}
    for i, layer in shared:
        a, b = one[i].flatten().double(), other[i].flatten().double()
        found[layer] += [(a @ b).item(), (a @ a).item(), (b @ b).item()]
    return found


def cosine_of(layers: dict[str, np.ndarray]) -> float:
    """Over all layers."""
    dot, square, other = sum(layers.values())
    return float(dot / (square * other) ** 0.5)


def torchjd_backward() -> Callable[..., None] | None:
    """The peer's function, if there is one."""
    try:
        from torchjd.autojac import backward
    except ImportError:
        return None
    return backward


def depth_fraction(model: nn.Module, layers: str, x: Tensor) -> float:
    """Share of the forward pass's operations up to the deepest layer."""
    *_, deepest = find_layers(model, layers).values()
    counter, below = FlopCounterMode(display=False), []
    hook = deepest.register_forward_hook(lambda *_: below.append(counter.get_total_flops()))
    with hook, counter, torch.no_grad():
        model(x[:2])
    return below[0] / counter.get_total_flops()


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=64)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
