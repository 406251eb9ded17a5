"""What do branches cost? ViT-6L, batch 128, 100 classes, 6 attachment points.

    python benchmarks/bench_probes.py [--rounds 15] [--quick]

CPU time of the process on one thread; all ways take turns in one process; the median of the rounds'
ratios with the quartiles. The unavoidable work of exact static branches is two matrix products:
features to logits, and back.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import probes
import timing
from networks import random_images, vit6

BATCH = 128
CLASSES = 100
WIDTH = 128  # of the ViT-6L
N_POINTS = 6  # attachment points: one per block
N_BRANCHES = 300  # at each point: the largest number in the paper

Work = Callable[[], object]


def main(argv: list[str] | None = None) -> None:
    """Print the ratios of losses and of whole training steps."""
    args = timing.parse_args(timing.command_line(__doc__, rounds=15), argv)
    print_losses(args.rounds)
    print_training_steps(args.rounds)
    print_measures(args.rounds)


def print_losses(rounds: int) -> None:
    """The auxiliary loss and its gradient alone, in time and in memory."""
    ways = ways_to_make_losses()
    times = timing.interleaved(ways, rounds=rounds)
    ratio = timing.ratio

    print(f"\nthe auxiliary loss and its gradient at all six points, n = {N_BRANCHES}")
    print("  separate nn.Linear heads / exact      ", ratio(times, "separate", "exact"), "(>= 2.5)")
    print("  exact / two matrix products           ", ratio(times, "exact", "matmuls"), "(<= 1.8)")
    print("  compressed n=300 / compressed n=1     ", ratio(times, "compressed", "one"), "(<= 1.1)")
    print("  exact / compressed                    ", ratio(times, "exact", "compressed"))

    peaks = {name: timing.peak_bytes(ways[name]) for name in ("separate", "exact", "compressed")}
    for name, peak in peaks.items():
        share = peak / peaks["separate"]
        print(f"  peak extra memory, {name:19s} {peak / 2**20:8.1f} MiB, {share:.3f} of separate")


def print_training_steps(rounds: int) -> None:
    """Whole training steps with branches over one without."""
    times = timing.interleaved(training_steps(), rounds=rounds, warmup=1)
    ratio = timing.ratio

    print("\na training step (AdamW) over one without branches")
    print("  exact n=20                        ", ratio(times, "exact 20", "plain"), "(<= 1.06)")
    print("  compressed n=300                  ", ratio(times, "compressed", "plain"), "(<= 1.08)")
    print("  exact n=300                       ", ratio(times, "exact 300", "plain"))
    print("  listening only, n=1               ", ratio(times, "listening", "plain"))


def print_measures(rounds: int) -> None:
    """Linear probes fitted in closed form, and similarity, beside forward passes."""
    images, labels = random_images(4 * BATCH, classes=CLASSES)
    model, other = vit6(CLASSES).eval(), vit6(CLASSES).eval()
    probe = probes.attach(model, "blocks.*", listen_only=True)
    probe.detach()

    def fit() -> None:
        with probe.reattach(model):
            probe.fit((images, labels), samples=None)

    @torch.no_grad()
    def one_pass(model: nn.Module) -> None:
        for batch in images.split(BATCH):
            model(batch)

    def two_passes() -> None:
        one_pass(model)
        one_pass(other)

    ways = {
        "pass": lambda: one_pass(model),
        "two passes": two_passes,
        "fit": fit,
        "similarity": lambda: probes.similarity(model, other, images, samples=None),
    }
    times = timing.interleaved(ways, rounds=rounds, warmup=1)
    ratio = timing.ratio

    print(f"\nmeasures on {len(images)} images, {N_POINTS} blocks")
    print("  fit, ridge, and its accuracy / pass   ", ratio(times, "fit", "pass"), "(<= 2.5)")
    print(
        "  similarity / a pass of both models    ", ratio(times, "similarity", "two passes"), end=""
    )
    print(" (<= 1.2)")


def ways_to_make_losses() -> dict[str, Work]:
    """Ways to make the loss and the gradient of the features, the backbone left out."""
    features = [torch.randn(BATCH, WIDTH, requires_grad=True) for _ in range(N_POINTS)]
    targets = torch.randint(0, CLASSES, (BATCH,))

    return {
        "separate": separate_heads(features, targets),
        "exact": stacked_branches(features, targets, n=N_BRANCHES, method="exact"),
        "compressed": stacked_branches(features, targets, n=N_BRANCHES, method="compressed"),
        "one": stacked_branches(features, targets, n=1, method="compressed"),
        "matmuls": two_matrix_products(features),
    }


def stacked_branches(features: Sequence[Tensor], targets: Tensor, *, n: int, method: str) -> Work:
    """The toolkit's branches, one set for each attachment point."""
    branches_by_point = [make_branches(n, method) for _ in features]
    active = [weight for branches in branches_by_point for weight in branches.parameters()]

    def work() -> object:
        losses = [
            branches.loss(hidden, targets)
            for branches, hidden in zip(branches_by_point, features, strict=True)
        ]
        return torch.autograd.grad(torch.stack(losses).sum(), [*features, *active])

    return work


def make_branches(n: int, method: str) -> nn.Module:
    """Branches for features of the backbone's width, without the backbone."""
    model = nn.Sequential(nn.Identity(), nn.Linear(WIDTH, CLASSES))
    probe = probes.attach(model, "0", n=n, method=method)

    (branches,) = probe.branches.values()
    return branches


def separate_heads(features: Sequence[Tensor], targets: Tensor) -> Work:
    """The same by hand: one `nn.Linear` and one loss for each branch, the last one trained."""
    one_hot = F.one_hot(targets, CLASSES).float()

    heads_by_point = []
    for _ in features:
        heads = [nn.Linear(WIDTH, CLASSES, bias=False) for _ in range(N_BRANCHES)]
        for head in heads[:-1]:
            head.requires_grad_(False)
        heads_by_point.append(heads)

    active = [heads[-1].weight for heads in heads_by_point]

    def work() -> object:
        losses = [
            F.binary_cross_entropy_with_logits(head(hidden), one_hot)
            for heads, hidden in zip(heads_by_point, features, strict=True)
            for head in heads
        ]
        return torch.autograd.grad(torch.stack(losses).sum(), [*features, *active])

    return work


def two_matrix_products(features: Sequence[Tensor]) -> Work:
    """Logits of all static branches, and back to the features: what cannot be avoided."""
    n_rows = (N_BRANCHES - 1) * CLASSES
    weights_by_point = [torch.randn(n_rows, WIDTH) / WIDTH**0.5 for _ in features]

    @torch.no_grad()
    def work() -> object:
        return [
            hidden @ weights.mT @ weights
            for hidden, weights in zip(features, weights_by_point, strict=True)
        ]

    return work


def training_steps() -> dict[str, Work]:
    """Whole training steps of the backbone, each on a copy of its own."""
    images, labels = random_images(BATCH, classes=CLASSES)

    return {
        "plain": training_step(images, labels, n=0),
        "exact 20": training_step(images, labels, n=20, method="exact"),
        "compressed": training_step(images, labels, n=300, method="compressed"),
        "exact 300": training_step(images, labels, n=300, method="exact"),
        "listening": training_step(images, labels, n=1, listen_only=True),
    }


def training_step(
    images: Tensor, labels: Tensor, *, n: int, method: str = "exact", listen_only: bool = False
) -> Work:
    """A step of AdamW with `n` branches at every block, or with none."""
    torch.manual_seed(0)
    model = vit6(CLASSES)
    parameters = list(model.parameters())

    probe = None
    if n:
        probe = probes.attach(model, "blocks.*", n=n, method=method, listen_only=listen_only)
        parameters += probe.parameters()

    optimizer = torch.optim.AdamW(parameters)

    def work() -> None:
        loss = F.cross_entropy(model(images), labels)
        if probe is not None:
            loss = loss + probe.loss(labels)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return work


if __name__ == "__main__":
    main()
