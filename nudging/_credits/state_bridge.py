import torch
from torch import Tensor

from nudging._credits.bridge import Bridge
from nudging._credits.positions import as_rows, from_rows, root_mean_square
from nudging._replay.padding import zero_padding
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
        seed: Determines its initial weights.

    Examples:
        >>> bridge = StateBridge(hidden=8)
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 3))
        >>> data = torch.randn(6, 2), torch.zeros(6, dtype=torch.long)
        >>> bridge.fit(model, data, "*", epochs=2)["loss"].sizes
        Frozen({'epoch': 2})
        >>> bridge
        <StateBridge(hidden=8, layers=3, ..., seed=0), fitted for 0, 1>
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
                "hidden": hidden,
                "layers": layers,
                "times": times,
                "skip": skip,
                "at_prediction": at_prediction,
                "lr": lr,
                "seed": seed,
            }
        )

    def __call__(self, state: State) -> dict[str, Tensor]:
        """The credit of every block, through the predicted terminal state."""
        signal = self._read_signal(state)
        last_block = self.blocks[-1]
        earlier_blocks = [block for block in state.hidden if block != last_block]
        credit_rows = {}

        if earlier_blocks:
            rows, time, signals, counts = self._stack_blocks(state, earlier_blocks, signal)
            with torch.enable_grad():
                prediction = self._predict(rows.requires_grad_(), time, signals, counts)
                # The chain rule in two steps: the readout's gradient at each prediction, then its
                # product with the Jacobian of the network.
                readout_gradients = [
                    self._readout_gradient(state, terminal_rows)
                    for terminal_rows in prediction.detach().split(len(signal))
                ]
                (gradient,) = torch.autograd.grad(prediction, rows, torch.cat(readout_gradients))
            credit_rows = dict(zip(earlier_blocks, gradient.split(len(signal)), strict=True))

        terminal_rows = as_rows(state.hidden[last_block].to(signal), last_block)
        credit_rows[last_block] = self._readout_gradient(state, terminal_rows)
        return {
            block: from_rows(credit_rows[block], hidden) for block, hidden in state.hidden.items()
        }

    def _predict(self, rows: Tensor, time: Tensor, signal: Tensor, counts: Tensor | None) -> Tensor:
        change: Tensor = root_mean_square(rows, counts) * self.net(rows, time, signal, counts)
        return rows + change if self.settings["skip"] else change

    def _readout_gradient(self, state: State, rows: Tensor) -> Tensor:
        """Return the gradient of each sample's loss at a terminal state, given as rows."""
        last_block = self.blocks[-1]
        true_state = state.hidden[last_block]
        point = from_rows(rows, true_state) if self.settings["at_prediction"] else true_state
        point = point.to(true_state).detach().requires_grad_()

        with torch.enable_grad():
            loss = state.losses(state.replay(last_block, point)).sum()
            (gradient,) = torch.autograd.grad(loss, point)
        return as_rows(gradient.to(rows), last_block)

    def _loss(self, state: State, signal: Tensor) -> Tensor:
        earlier_blocks = self.blocks[:-1]
        rows, time, signals, counts = self._stack_blocks(state, earlier_blocks, signal)
        terminal_rows = as_rows(state.hidden[self.blocks[-1]].detach().to(signal), "`blocks`")
        goal = zero_padding(terminal_rows.repeat(len(earlier_blocks), 1, 1), counts)

        prediction = zero_padding(self._predict(rows, time, signals, counts), counts)
        error = (prediction - goal).square().sum((1, 2))
        return (error / (goal.square().sum((1, 2)) + 1e-6)).mean()

    def _build_networks(self) -> None:
        self.net = self._make_network(self.shape["width"])
