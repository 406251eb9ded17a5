import torch
from torch import Tensor

from nudging._credits.bridge import Bridge
from nudging._credits.positions import as_rows, from_rows, root_mean_square
from nudging._replay.state import State


class StateBridge(Bridge):
    """The gradient of the loss through a learned prediction of the last hidden state.

    One network G predicts the terminal state from any earlier one, its depth t and the output
    error s; `prediction = h + rms(h) * MLP([norm(h), t, s])`. It is trained by the squared error
    relative to the terminal state. The credit is `d loss(rest(G(h, t, s))) / dh`, with the true
    readout after the terminal block, held fixed. At the terminal block itself nothing needs to be
    predicted: its credit is the exact gradient through the readout.

    An independent implementation of a method that its authors describe in words; see
    `docs/credit_audit.md`. Blocks must have outputs of one shape. Vectors are predicted as such.
    Token sequences and feature maps are predicted position by position, by one network that also
    sees the mean over positions: in a vision transformer every token, the class token among them,
    has its prediction and its credit.

    Args:
        hidden: Width of the network.
        layers: Its linear layers.
        times: Numbers in the embedding of the depth; even.
        skip: Whether it predicts the change of the state, or the state.
        at_prediction: Whether the readout is differentiated at the predicted terminal state (by
            default) or at the true one.
        lr: Learning rate of its optimizer, AdamW.
        seed: Decides its initial weights.

    Examples:
        >>> bridge = StateBridge(hidden=8)
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 3))
        >>> data = torch.randn(6, 2), torch.zeros(6, dtype=torch.long)
        >>> bridge.fit(model, data, "*", epochs=2)["loss"].sizes
        Frozen({'epoch': 2})
    """

    def __init__(
        self,
        *,
        hidden: int = 256,
        layers: int = 3,
        times: int = 32,
        skip: bool = False,
        at_prediction: bool = True,
        lr: float = 1e-3,
        seed: int = 0,
    ) -> None:
        super().__init__(
            {
                "hidden": hidden, "layers": layers, "times": times, "skip": skip,
                "at_prediction": at_prediction, "lr": lr, "seed": seed,
            }
        )  # fmt: skip

    def __call__(self, state: State) -> dict[str, Tensor]:
        signal = self._signal(state)
        last = self.blocks[-1]
        earlier = [block for block in state.hidden if block != last]
        credit = {}
        if earlier:
            rows, time, signals = self._stack(state, earlier, signal)
            with torch.enable_grad():
                guess = self._predict(rows.requires_grad_(), time, signals)
                slopes = [self._slope(state, part) for part in guess.detach().split(len(signal))]
                (grad,) = torch.autograd.grad(guess, rows, torch.cat(slopes))
            credit = dict(zip(earlier, grad.split(len(signal)), strict=True))
        exact = self._slope(state, as_rows(state.hidden[last].to(signal), last))
        credit[last] = exact
        return {block: from_rows(credit[block], h) for block, h in state.hidden.items()}

    def _predict(self, rows: Tensor, time: Tensor, signal: Tensor) -> Tensor:
        change: Tensor = root_mean_square(rows) * self.net(rows, time, signal)
        return rows + change if self.settings["skip"] else change

    def _slope(self, state: State, rows: Tensor) -> Tensor:
        """The gradient of each sample's loss with respect to the terminal state, at `rows`."""
        last = self.blocks[-1]
        like = state.hidden[last]
        value = from_rows(rows, like) if self.settings["at_prediction"] else like
        value = value.to(like).detach().requires_grad_()
        with torch.enable_grad():
            loss = state.losses(state.rest(last, value)).sum()
            (grad,) = torch.autograd.grad(loss, value)
        return as_rows(grad.to(rows), last)

    def _loss(self, state: State, signal: Tensor) -> Tensor:
        rows, time, signals = self._stack(state, self.blocks[:-1], signal)
        goal = as_rows(state.hidden[self.blocks[-1]].detach().to(signal), "`blocks`")
        goal = goal.repeat(len(self.blocks) - 1, 1, 1)
        error = (self._predict(rows, time, signals) - goal).square().sum((1, 2))
        return (error / (goal.square().sum((1, 2)) + 1e-6)).mean()

    def _build(self) -> None:
        self.net = self._trunk(self.shape["width"])
