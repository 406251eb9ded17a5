from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from landscape._directions.parameters import Params
from landscape._directions.states import State, parameter_names, read_state, state_tensors
from landscape._evaluation.objective import check_measures, evaluate_on_batch
from landscape._evaluation.samples import (
    FEW_SAMPLES,
    SampleRequest,
    draw_samples,
    slice_samples,
    try_out,
)
from resonance_toolkit import (
    Batches,
    call_model,
    check_module,
    check_no_nan,
    check_positive,
    check_whole,
    count_samples,
    devices_of,
    index_rows,
    preserving,
    seed_generators,
    track,
    unwrap,
)


def bend(
    model: nn.Module,
    to: State,
    data: Any,
    *,
    loss: Callable[..., Any] | None = None,
    steps: int = 200,
    lr: float = 1e-2,
    batch_size: int = 100,
    samples: int | None = None,
    seed: int = 0,
) -> Params:
    """Train the control point of a Bezier curve that joins two minima at a low loss.

    The curve is `(1 - t)^2 a + 2 t (1 - t) c + t^2 b` (Garipov et al. 2018); `c` is trained by Adam
    on the loss at random `t`. This works for any architecture: the model is called in train mode,
    with the weights of the curve in place of its own.

    Args:
        model: The model at the beginning; left as it was found.
        to: The model or state dict at the end.
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches. Inputs are a tensor, a tuple (passed as positional
            arguments) or a mapping (passed as keywords). Batches that are padded to different
            lengths are not merged.
        loss: `(outputs, targets)`; by default the loss that the targets ask for, such as
            cross-entropy.
        steps: Updates of the control point.
        lr: Adam's learning rate.
        batch_size: Samples in an update.
        samples: How many samples to draw once, to train on; None takes all.
        seed: Determines samples, batches and positions on the curve.

    Returns:
        The control point, for `curve`: tensors by parameter name.

    Raises:
        ValueError: If both models do not fit each other, or a number is out of range.

    Examples:
        >>> here, there = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.ones_(here.weight), nn.init.ones_(there.weight)
        >>> ones = torch.ones(4, 1)
        >>> middle = bend(here, there, (ones, ones), loss=nn.functional.mse_loss, steps=3)
        >>> middle["weight"].round(decimals=3)  # straight already
        tensor([[1.]])
    """
    check_module(model)
    steps = check_whole("steps", steps)
    batch_size = check_whole("batch_size", batch_size)
    seed = check_whole("seed", seed, at_least=None)
    lr = check_positive("lr", lr)
    measures = check_measures(loss, None)
    if measures.kind != "outputs":
        raise TypeError("`loss`: expected a callable of (outputs, targets)")

    names = parameter_names(model)
    tensors = state_tensors(model)
    start = {name: tensors[name].detach() for name in names}
    end = read_state(to, start, "to")
    request = SampleRequest(data, samples=samples, seed=seed, batch_size=batch_size)
    objective, pieces = draw_samples(model, measures, request)
    n_samples = sum(count_samples(piece) for piece in pieces)
    few_samples, most_samples = (slice_samples(pieces[0], 0, n) for n in (FEW_SAMPLES, batch_size))
    trial = try_out(model, objective, few_samples, most_samples)

    control = {name: ((start[name] + end[name]) / 2).requires_grad_(True) for name in names}
    optimizer = torch.optim.Adam(control.values(), lr=lr)
    generator = torch.Generator().manual_seed(seed)
    inner_model = unwrap(model)
    caller = _Caller(inner_model)

    with ExitStack() as stack:
        stack.enter_context(preserving(model))  # batch norm writes to its buffers
        stack.enter_context(torch.enable_grad())
        model.train()
        seed_generators(seed, devices_of(model))

        for _ in track(range(steps), "bend", unit="step"):
            t = torch.rand((), generator=generator, device="cpu").item()
            rows = torch.randperm(n_samples, generator=generator, device="cpu")[:batch_size]
            if not trial.is_divisible:
                rows = rows.sort().values  # nodes of a graph have an order

            curve_weights = {
                name: (1 - t) ** 2 * a + 2 * t * (1 - t) * control[name] + t**2 * end[name]
                for name, a in start.items()
            }
            called_weights = {f"model.{name}": w for name, w in curve_weights.items()}

            # The mean over samples is a sum over pieces of one shape, each with its share.
            shares = []
            for batch in _pick_rows(pieces, rows):
                outputs = functional_call(caller, called_weights, (batch[0],))
                losses = evaluate_on_batch(
                    trial.objective.loss, "outputs", inner_model, batch, outputs
                )
                shares.append(losses.mean() * (count_samples(batch) / len(rows)))

            optimizer.zero_grad()
            torch.stack(shares).sum().backward()
            optimizer.step()

    if any(bool(tensor.isnan().any()) for tensor in control.values()):
        check_no_nan(pieces)
    return {name: tensor.detach() for name, tensor in control.items()}


class _Caller(nn.Module):
    """Calls a model the way its inputs ask for, which `functional_call` leaves to its caller."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Any:
        return call_model(self.model, inputs)


def _pick_rows(pieces: Batches, rows: Tensor) -> Iterator[tuple[Any, Any]]:
    """Samples by their numbers, counted through all pieces, in batches of one shape."""
    offset = 0
    for piece in pieces:
        n_samples = count_samples(piece)
        is_here = (rows >= offset) & (rows < offset + n_samples)
        if is_here.any():
            yield index_rows(piece, rows[is_here] - offset)
        offset += n_samples
