"""What does a gradient trace cost? Ratios to a plain training step on main + auxiliary loss.

    python benchmarks/bench_gradients.py [--rounds 7] [--batch 64] [--quick]

CPU time of the process on one thread; all ways take turns within each round; the median of the
rounds' ratios with the quartiles. About three minutes.

The unavoidable cost of the exact cosine is 1 + 2 f / 3, where f is the share of the forward pass
below the deepest attachment point: there the backward pass (two thirds of a step) must be made once
more. The naive way is one forward and backward pass for each gradient besides those of the step.
torchjd is left out if it is not installed; one by one it makes two whole backward passes. Where f
is 1 a trace makes the same two, and only bookkeeping is left to differ, 1 to 3 % of a plain step on
either side: expect a tie there, 0.98 to 1.02, on either side of its bar.

With `noise=True` norms of the micro-batches are read too: told beside the same trace without them.
`reweight` is run after training, on one recorded row.

All ways give what a trace gives: inner product and norms of both gradients in each layer, in
float64, and their sum in `.grad`; the other ways are told beforehand which parameters both losses
reach.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import gradients
import probes
import timing
from networks import Data, cnn, random_images, vit6
from resonance_toolkit import find_layers

Losses = tuple[Tensor, Tensor]
Gradients = Sequence[Tensor | None]
Work = Callable[[], None]

# Title: a backbone, and where its branches are attached.
CASES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "ViT-6L, all blocks": (vit6, "blocks.*"),
    "ViT-6L, block 2": (vit6, "blocks.2"),
    "CNN, all convolutions": (cnn, "features.*"),
    "CNN, convolution 2": (cnn, "features.2"),
}
NEVER = 10**9  # as `every`: a trace that sleeps while the others are measured


def main(argv: list[str] | None = None) -> None:
    """Print one table per case."""
    args = parse_args(argv)
    warnings.filterwarnings("ignore", message="There is a performance drop")  # torchjd's vmap

    for title, (build, layers) in list(CASES.items())[: 1 if args.quick else None]:
        torch.manual_seed(0)
        model = build()
        data = random_images(args.batch, classes=100)

        training = Training(model, layers, data)
        ways = training.ways()
        times = timing.interleaved(ways, rounds=args.rounds, warmup=1)

        fraction = depth_fraction(model, layers, data[0])
        bound = 1 + 2 * fraction / 3
        print(f"\n{title}: f = {fraction:.2f}, unavoidable 1 + 2f/3 = {bound:.2f}")
        print_ratios(times, training.cosines, bound)


def print_ratios(times: timing.Times, cosines: dict[str, float], bound: float) -> None:
    """Every way beside a plain step, with its cosine, then a trace beside its peers."""
    bars = {"trace": 1.05 * bound, "trace, activation level": 1.08}
    for name in times:
        cosine = f"   cosine {cosines[name]:+.5f}" if name in cosines else ""
        print(timing.row(times, name, "plain step", bar=bars.get(name)) + cosine)

    plain_title = "4 micro-batches, trace"
    title = "trace with noise / without"
    noise_pair = {title: times[f"{plain_title}, noise"], plain_title: times[plain_title]}
    print(timing.row(noise_pair, title, plain_title))

    for peer in times:
        if peer.startswith(("naive", "torchjd")):
            title = f"trace / {peer}"
            pair = {title: times["trace"], peer: times[peer]}
            print(timing.row(pair, title, peer, bar=1.0))


class Training:
    """Training steps of one model with branches, made in several ways.

    `cosines` has the cosine that each way found between the two losses' gradients: with a rate of
    0 the weights stay as they are, so all must agree.
    """

    def __init__(self, model: nn.Module, layers: str, data: Data) -> None:
        self.model = model
        self.layers = layers
        self.inputs, self.targets = data
        self.cosines: dict[str, float] = {}

        self.probe = probes.attach(model, layers=layers, n=20, alpha=0.1, sample=self.inputs[:2])
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD([*self.parameters, *self.probe.parameters()], lr=0.0)
        self.shared = list(self._shared_parameters())

    def ways(self) -> dict[str, Work]:
        """All ways by name, the plain step first."""
        ways: dict[str, Work] = {"plain step": self._step(self._plain_backward)}
        ways["trace"] = self._step(self._trace_backward())
        ways["trace, every 10"] = self._step(self._trace_backward(every=10))
        ways["trace, activation level"] = self._step(self._activation_backward())
        ways["4 micro-batches, trace"] = self._step(self._accumulated_backward(noise=False))
        ways["4 micro-batches, trace, noise"] = self._step(self._accumulated_backward(noise=True))
        ways["reweight, 1 row"] = self._reweighting()
        ways["naive, 3 passes"] = self._step(self._naive_backward)

        if (torchjd := find_torchjd()) is not None:
            for name, chunk in (("torchjd, one by one", 1), ("torchjd, default (vmap)", None)):
                ways[name] = self._step(self._torchjd_backward(torchjd, name, chunk))

        return ways

    def _step(self, backward: Work) -> Work:
        def step() -> None:
            self.optimizer.zero_grad()
            backward()
            self.optimizer.step()

        return step

    def _losses(self) -> Losses:
        main_loss = F.cross_entropy(self.model(self.inputs), self.targets)
        return main_loss, self.probe.loss(self.targets)

    def _gradient(self, index: int) -> Gradients:
        return torch.autograd.grad(self._losses()[index], self.parameters, allow_unused=True)

    def _shared_parameters(self) -> Iterator[tuple[int, str]]:
        # Index and layer of every parameter that both losses reach.
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        pairs = zip(names, self._gradient(0), self._gradient(1), strict=True)

        for index, (name, main_gradient, auxiliary_gradient) in enumerate(pairs):
            if main_gradient is not None and auxiliary_gradient is not None:
                layer = name.rpartition(".")[0] or name
                yield index, layer

    def _plain_backward(self) -> None:
        main_loss, auxiliary_loss = self._losses()
        (main_loss + auxiliary_loss).backward()

    def _trace_backward(self, *, every: int = 1) -> Work:
        trace = gradients.Trace(self.model, every=every)

        if every == 1:
            self._step(lambda: trace.backward(*self._losses()))()
            self.cosines["trace"] = float(trace.to_dataset()["cosine_total"].values[0])

        return lambda: trace.backward(*self._losses())

    def _activation_backward(self) -> Work:
        trace = gradients.Trace(self.model, level="activation", layers=self.layers)

        # Its hooks stay on the layers while the other ways run: asleep, they cost nothing.
        trace.every = NEVER

        def backward() -> None:
            trace.every = 1
            trace.step = 0
            trace.backward(*self._losses())
            trace.every = NEVER
            trace.step = 1

        return backward

    def _accumulated_backward(self, *, noise: bool) -> Work:
        trace = gradients.Trace(self.model, noise=noise)
        micro_batches = list(zip(self.inputs.chunk(4), self.targets.chunk(4), strict=True))

        def backward() -> None:
            for index, (inputs, targets) in enumerate(micro_batches):
                main_loss = F.cross_entropy(self.model(inputs), targets) / 4
                auxiliary_loss = self.probe.loss(targets) / 4
                trace.backward(main_loss, auxiliary_loss, update=index == 3)

        return backward

    def _reweighting(self) -> Work:
        trace = gradients.Trace(self.model)
        self._step(lambda: trace.backward(*self._losses()))()
        record = trace.to_dataset()
        return lambda: discard(gradients.reweight(record, equal_lengths))

    def _naive_backward(self) -> None:
        rows = products_by_layer(self.shared, self._gradient(0), self._gradient(1))
        self.cosines["naive, 3 passes"] = total_cosine(rows)
        self._plain_backward()

    def _torchjd_backward(
        self, torchjd: Callable[..., None], name: str, chunk_size: int | None
    ) -> Work:
        all_parameters = [*self.parameters, *self.probe.parameters()]

        def backward() -> None:
            losses = list(self._losses())
            torchjd(losses, inputs=all_parameters, parallel_chunk_size=chunk_size)

            main_gradients = [p.jac[0] for p in self.parameters]
            auxiliary_gradients = [p.jac[1] for p in self.parameters]
            rows = products_by_layer(self.shared, main_gradients, auxiliary_gradients)
            self.cosines[name] = total_cosine(rows)

            for parameter in all_parameters:
                parameter.grad = parameter.jac.sum(0)
                del parameter.jac

        return backward


def equal_lengths(gramian: Tensor) -> Tensor:
    """Weights under which all gradients are one long."""
    return gramian.diagonal() ** -0.5


def discard(result: object) -> None:
    """Only the time counts."""
    del result


def products_by_layer(
    shared: list[tuple[int, str]], main_gradients: Gradients, auxiliary_gradients: Gradients
) -> dict[str, np.ndarray]:
    """Inner product and squared norms of two gradients in each layer, shape `(3,)`."""
    products = {layer: np.zeros(3) for _, layer in shared}

    for index, layer in shared:
        a = main_gradients[index].flatten().double()
        b = auxiliary_gradients[index].flatten().double()
        products[layer] += [(a @ b).item(), (a @ a).item(), (b @ b).item()]

    return products


def total_cosine(products: dict[str, np.ndarray]) -> float:
    """The cosine over all layers."""
    inner_product, main_square, auxiliary_square = sum(products.values())
    return float(inner_product / (main_square * auxiliary_square) ** 0.5)


def find_torchjd() -> Callable[..., None] | None:
    """The peer's function, if it is installed."""
    try:
        from torchjd.autojac import backward
    except ImportError:
        return None
    return backward


def depth_fraction(model: nn.Module, layers: str, inputs: Tensor) -> float:
    """Share of the forward pass's operations up to the deepest layer."""
    *_, deepest_layer = find_layers(model, layers).values()

    counter = FlopCounterMode(display=False)
    operations_below: list[int] = []
    hook = deepest_layer.register_forward_hook(
        lambda *_: operations_below.append(counter.get_total_flops())
    )
    with hook, counter, torch.no_grad():
        model(inputs[:2])

    return operations_below[0] / counter.get_total_flops()


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = timing.command_line(__doc__, rounds=7)
    parser.add_argument("--batch", type=int, default=64)
    return timing.parse_args(parser, argv)


if __name__ == "__main__":
    main()
