import copy
import math

import torch
from torch import Tensor

from nudging._credits.bridge import Bridge
from nudging._credits.network import Trunk
from nudging._credits.positions import as_rows, from_rows, root_mean_square
from nudging._replay.state import State


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
        draws: Noise draws in it.
        noise: Standard deviation of the noise, relative to the RMS of the state.
        relative_noise: False takes `noise` as it is.
        decay: Of the slow copy, per step.
        terminal: Weight of the gradient term.
        lr: Learning rate of its optimizer, AdamW.
        seed: Decides its initial weights and the noise.
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
        if not temperature > 0:
            raise ValueError(f"`temperature`: expected a positive number, got {temperature!r}")
        if not isinstance(draws, int) or draws < 1:
            raise ValueError(f"`draws`: expected a whole number of at least 1, got {draws!r}")
        if not 0 <= decay < 1:
            raise ValueError(f"`decay`: expected a number in [0, 1), got {decay!r}")
        super().__init__(
            {
                "hidden": hidden, "layers": layers, "times": times, "temperature": temperature,
                "draws": draws, "noise": noise, "relative_noise": relative_noise, "decay": decay,
                "terminal": terminal, "lr": lr, "seed": seed,
            }
        )  # fmt: skip
        self.generator = torch.Generator().manual_seed(seed)
        self.slow: Trunk

    def __call__(self, state: State) -> dict[str, Tensor]:
        signal = self._signal(state)
        rows, time, signals = self._stack(state, list(state.hidden), signal)
        with torch.enable_grad():
            rows.requires_grad_()
            (grad,) = torch.autograd.grad(value(self.net, rows, time, signals).sum(), rows)
        parts = zip(state.hidden.items(), grad.split(len(signal)), strict=True)
        return {block: from_rows(part, h) for (block, h), part in parts}

    def update(self, state: State) -> float:
        """Train the bridge by one step on a batch; the slow copy follows."""
        loss = super().update(state)
        pairs = zip(self.slow.parameters(), self.net.parameters(), strict=True)
        with torch.no_grad():
            for slow, fast in pairs:
                slow.lerp_(fast, 1 - self.settings["decay"])
        return loss

    def _loss(self, state: State, signal: Tensor) -> Tensor:
        inner, goal = self.blocks[:-1], self._soft_minimum(state, signal)
        bridge = (value(self.net, *self._stack(state, inner, signal)) - goal).square().mean()
        last = self.blocks[-1]
        true = state.hidden[last].detach().requires_grad_()
        losses = state.losses(state.rest(last, true))
        (slope,) = torch.autograd.grad(losses.sum(), true)
        rows, time, _ = self._stack(state, [last], signal)
        guess = value(self.net, rows.requires_grad_(), time, signal)
        (guessed,) = torch.autograd.grad(guess.sum(), rows, create_graph=True)
        level = (guess - losses.detach()).square().mean()
        apart = normalised(guessed) - normalised(as_rows(slope.to(signal), last))
        terminal: float = self.settings["terminal"]
        return bridge + level + terminal * apart.square().mean()

    @torch.no_grad()
    def _soft_minimum(self, state: State, signal: Tensor) -> Tensor:
        rows, time, signals = self._stack(state, self.blocks[1:], signal)
        shape = (self.settings["draws"], *rows.shape)
        noise = self.settings["noise"] * torch.randn(shape, generator=self.generator).to(rows)
        if self.settings["relative_noise"]:
            noise *= root_mean_square(rows)
        values = value(self.slow, rows + noise, time, signals)
        return soft_minimum(values, self.settings["temperature"])

    def _build(self) -> None:
        self.net = self._trunk(1)
        self.slow = copy.deepcopy(self.net).requires_grad_(False)


def value(net: Trunk, rows: Tensor, time: Tensor, signal: Tensor) -> Tensor:
    """The value of every sample, `(..., sample)`."""
    out: Tensor = net(rows, time, signal)
    return out.mean((-2, -1))


def soft_minimum(values: Tensor, temperature: float) -> Tensor:
    """`-T log mean exp(-values / T)` over the first axis."""
    total = torch.logsumexp(-values / temperature, dim=0)
    return -temperature * (total - math.log(len(values)))


def normalised(rows: Tensor) -> Tensor:
    """Each sample divided by its root mean square."""
    return rows / root_mean_square(rows)
