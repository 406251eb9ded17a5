"""What do exits cost, beside the same objective written by hand, and beside a bare forward pass?

    python benchmarks/bench_exits.py [--rounds 9] [--quick]

CPU time of the process on one thread; all ways take turns in one process. A row is the median of
the ratios, with their quartiles.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import probes
import timing
from decoder import Decoder

EXITS = ["layers.0", "layers.2"]
WEIGHTS = (0.7, 0.3)


def main(argv: list[str] | None = None) -> None:
    """Train and analyse with a small and a large vocabulary, and print ratios."""
    args = timing.parse_args(timing.command_line(__doc__, rounds=9), argv)

    for vocabulary, n_samples in [(100, 64), (20_000, 8)][: 1 if args.quick else None]:
        torch.manual_seed(0)
        model = Decoder(vocabulary, width=64, depth=3, heads=4)
        ids = torch.randint(vocabulary, (n_samples, 65))
        inputs = ids[:, :-1]
        targets = ids[:, 1:]

        print(f"3 layers of width 64, {vocabulary:,} classes, {n_samples} x 64 tokens")
        compare_training(model, inputs, targets, args.rounds)
        compare_analysis(model, inputs, targets, args.rounds)
        compare_lens(model, inputs, args.rounds)


def compare_training(model: Decoder, inputs: Tensor, targets: Tensor, rounds: int) -> None:
    """A forward and a backward pass: the model alone, two losses by hand, the same by exits."""
    model.train()

    # Each way attaches its exits for the time of one step, so that no other way pays for them.
    last_exit = probes.attach_exits(model, EXITS, weights="standard")
    last_exit.detach()
    both_exits = probes.attach_exits(model, EXITS, weights=WEIGHTS)
    both_exits.detach()

    def model_alone() -> None:
        token_loss(model(inputs), targets).backward()

    def two_losses_by_hand() -> None:
        shallow_logits, deep_logits = logits_of_two_exits(model, inputs)
        shallow_loss = token_loss(shallow_logits, targets)
        deep_loss = token_loss(deep_logits, targets)
        (WEIGHTS[0] * shallow_loss + WEIGHTS[1] * deep_loss).backward()

    def by_exits(exits: probes.Exits) -> None:
        with exits.reattach(model):
            model(inputs)
            exits.loss(targets).backward()

    ways = {
        "the model's own loss": model_alone,
        "the same by exits": partial(by_exits, last_exit),
        "two losses by hand": two_losses_by_hand,
        "two losses by exits": partial(by_exits, both_exits),
    }
    times = timing.interleaved(ways, rounds=rounds)
    print(timing.row(times, "the same by exits", "the model's own loss", bar=1.1))
    print(timing.row(times, "two losses by exits", "two losses by hand", bar=1.1))

    model.zero_grad()


def compare_analysis(model: Decoder, inputs: Tensor, targets: Tensor, rounds: int) -> None:
    """A record of both exits, beside a bare pass and beside the logits and one softmax of each."""
    model.eval()

    @torch.no_grad()
    def bare_pass() -> None:
        model(inputs)

    @torch.no_grad()
    def two_softmaxes() -> None:
        for logits in logits_of_two_exits(model, inputs):
            logits.flatten(0, 1).softmax(-1).max(-1)
            token_loss(logits, targets, reduction="none")

    ways = {
        "a bare pass": bare_pass,
        "pass, two heads, softmax, loss": two_softmaxes,
        "record_exits": partial(probes.record_exits, model, (inputs, targets), EXITS),
    }
    times = timing.interleaved(ways, rounds=rounds)
    print(timing.row(times, "pass, two heads, softmax, loss", "a bare pass"))
    print(timing.row(times, "record_exits", "a bare pass"))
    print(timing.row(times, "record_exits", "pass, two heads, softmax, loss", bar=1.5))


def compare_lens(model: Decoder, inputs: Tensor, rounds: int) -> None:
    """A training step of a tuned lens, beside the same divergence written by hand."""
    model.eval()
    lens = probes.attach_exits(model, EXITS, weights=WEIGHTS, head="tuned")
    lens.detach()
    (translator,) = lens.heads

    @torch.no_grad()
    def bare_pass() -> None:
        model(inputs)

    def divergence() -> None:
        with lens.reattach(model), lens.listening():
            model(inputs)
            lens.divergence().backward()

    def by_hand() -> None:
        states: list[Tensor] = []
        first_exit = model.get_submodule(EXITS[0])
        with (
            torch.no_grad(),
            first_exit.register_forward_hook(lambda _, __, output: states.append(output)),
        ):
            expected = model(inputs).log_softmax(-1)

        # The head itself is not trained: it needs no gradient of its weights.
        model.requires_grad_(False)
        logits = model.head(translator(states[0]))
        model.requires_grad_(True)
        F.kl_div(logits.log_softmax(-1), expected, log_target=True, reduction="sum").backward()

    ways = {
        "a bare pass": bare_pass,
        "tuned lens by hand": by_hand,
        "tuned lens, a step": divergence,
    }
    times = timing.interleaved(ways, rounds=rounds)
    print(timing.row(times, "tuned lens, a step", "a bare pass"))
    print(timing.row(times, "tuned lens, a step", "tuned lens by hand", bar=1.5))


def logits_of_two_exits(model: Decoder, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Logits after the first exit and after the last layer, in one pass."""
    shallow_states: list[Tensor] = []
    first_exit = model.get_submodule(EXITS[0])

    with first_exit.register_forward_hook(lambda _, __, output: shallow_states.append(output)):
        deep_logits = model(inputs)

    return model.head(shallow_states[0]), deep_logits


def token_loss(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy over all tokens of all samples."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)


if __name__ == "__main__":
    main()
