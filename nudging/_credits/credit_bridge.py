import copy
import math

import torch
from torch import Tensor

from nudging._credits.bridge import Bridge
from nudging._credits.network import BridgeNetwork
from nudging._credits.positions import as_rows, from_rows, mean_of_rows, root_mean_square
from nudging._replay.padding import zero_padding
from nudging._replay.state import State
from resonance_toolkit import check_positive, check_whole


class CreditBridge(Bridge):
    """The gradient of a learned value of a hidden state.

    One network V estimates the final loss from any hidden state h, its depth t and the output
    error s. It is trained on three terms: its value at a block against a soft minimum of a slow
    copy's values around the next block, `-T log mean_k exp(-V'(h' + noise_k) / T)`; at
    the terminal block its value against the true loss; and there its gradient against the true
    one, both normalised. The credit is `dV/dh`.

    An independent implementation of a method that its authors describe in words; see
    `docs/credit_audit.md`. Blocks must have outputs of one shape. In token sequences and feature
    maps the value is the mean over positions of one network that also sees their mean, so that
    every token, the class token among them, has its credit.

    Args:
        hidden: Width of the network.
        layers: Its linear layers.
        times: Numbers in the embedding of the depth; even.
        temperature: T of the soft minimum; larger is nearer to a mean.
        draws: Number of noise draws in the soft minimum.
        noise: Standard deviation of the noise, relative to the RMS of the state.
        relative_noise: False takes `noise` as an absolute standard deviation.
        decay: Decay of the slow copy, per step.
        terminal: Weight of the gradient term.
        lr: Learning rate of its optimizer, AdamW.
        seed: Determines its initial weights and the noise.

    Examples:
        >>> CreditBridge(hidden=8)
        <CreditBridge(hidden=8, layers=3, ..., seed=0), not fitted>
    """

    parts = ("net", "slow")

    def __init__(
        self,
        *,
        hidden: int = 256,
        layers: int = 3,
        times: int = 32,
        temperature: float = 0.1,
        draws: int = 8,
        noise: float = 0.1,
        relative_noise: bool = True,
        decay: float = 0.995,
        terminal: float = 1.0,
        lr: float = 1e-3,
        seed: int = 0,
    ) -> None:
        check_positive("temperature", temperature)
        draws = check_whole("draws", draws)
        if not 0 <= decay < 1:
            raise ValueError(f"`decay`: expected a number in [0, 1), got {decay!r}")

        super().__init__(
            {
                "hidden": hidden,
                "layers": layers,
                "times": times,
                "temperature": temperature,
                "draws": draws,
                "noise": noise,
                "relative_noise": relative_noise,
                "decay": decay,
                "terminal": terminal,
                "lr": lr,
                "seed": seed,
            }
        )
        self.generator = torch.Generator().manual_seed(seed)
        self.slow: BridgeNetwork

    def __call__(self, state: State) -> dict[str, Tensor]:
        """The credit of every block, the slope of the learned value."""
        signal = self._read_signal(state)
        rows, time, signals, counts = self._stack_blocks(state, list(state.hidden), signal)

        with torch.enable_grad():
            rows.requires_grad_()
            total = value(self.net, rows, time, signals, counts).sum()
            (gradient,) = torch.autograd.grad(total, rows)

        gradients = gradient.split(len(signal))
        return {
            block: from_rows(block_gradient, hidden)
            for (block, hidden), block_gradient in zip(state.hidden.items(), gradients, strict=True)
        }

    def update(self, state: State) -> float:
        """Train the bridge by one step on a batch; the slow copy follows."""
        loss = super().update(state)

        parameters = zip(self.slow.parameters(), self.net.parameters(), strict=True)
        with torch.no_grad():
            for slow, fast in parameters:
                slow.lerp_(fast, 1 - self.settings["decay"])
        return loss

    def _loss(self, state: State, signal: Tensor) -> Tensor:
        # Between the blocks: the value of each against a soft minimum around the next one.
        earlier_inputs = self._stack_blocks(state, self.blocks[:-1], signal)
        goal = self._soft_minimum_of_next(state, signal)
        bridge_term = (value(self.net, *earlier_inputs) - goal).square().mean()

        # At the terminal block, the true loss and its gradient are known.
        last_block = self.blocks[-1]
        terminal_state = state.hidden[last_block].detach().requires_grad_()
        losses = state.losses(state.replay(last_block, terminal_state))
        (true_gradient,) = torch.autograd.grad(losses.sum(), terminal_state)

        rows, time, _, counts = self._stack_blocks(state, [last_block], signal)
        terminal_value = value(self.net, rows.requires_grad_(), time, signal, counts)
        (value_gradient,) = torch.autograd.grad(terminal_value.sum(), rows, create_graph=True)

        value_term = (terminal_value - losses.detach()).square().mean()
        true_rows = zero_padding(as_rows(true_gradient.to(signal), last_block), counts)
        true_direction = divide_by_rms(true_rows, counts)
        error = divide_by_rms(zero_padding(value_gradient, counts), counts) - true_direction
        gradient_term = error.square().mean() if counts is None else _mean_square(error, counts)
        terminal_weight: float = self.settings["terminal"]
        return bridge_term + value_term + terminal_weight * gradient_term

    @torch.no_grad()
    def _soft_minimum_of_next(self, state: State, signal: Tensor) -> Tensor:
        rows, time, signals, counts = self._stack_blocks(state, self.blocks[1:], signal)

        # Drawn on the CPU, so that every device gets the same numbers.
        shape = (self.settings["draws"], *rows.shape)
        gaussian = torch.randn(shape, generator=self.generator, device="cpu")
        noise = self.settings["noise"] * gaussian.to(rows)
        if self.settings["relative_noise"]:
            noise *= root_mean_square(rows, counts)

        values = value(self.slow, rows + noise, time, signals, counts)
        return soft_minimum(values, self.settings["temperature"])

    def _build_networks(self) -> None:
        self.net = self._make_network(1)
        self.slow = copy.deepcopy(self.net).requires_grad_(False)


def value(
    network: BridgeNetwork,
    rows: Tensor,
    time: Tensor,
    signal: Tensor,
    counts: Tensor | None = None,
) -> Tensor:
    """Return the value of every sample, `(..., sample)`: the mean over its positions."""
    outputs: Tensor = network(rows, time, signal, counts)
    if counts is None:
        return outputs.mean((-2, -1))
    return mean_of_rows(outputs, counts).mean((-2, -1))


def soft_minimum(values: Tensor, temperature: float) -> Tensor:
    """Return `-T log mean exp(-values / T)` over the first axis."""
    total = torch.logsumexp(-values / temperature, dim=0)
    return -temperature * (total - math.log(len(values)))


def divide_by_rms(rows: Tensor, counts: Tensor | None = None) -> Tensor:
    """Divide each sample by its root mean square."""
    return rows / root_mean_square(rows, counts)


def _mean_square(rows: Tensor, counts: Tensor) -> Tensor:
    """Average over all positions that count, of all samples alike."""
    return rows.square().sum() / (counts.sum() * rows.shape[-1])
