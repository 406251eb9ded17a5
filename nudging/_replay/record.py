"""One forward pass in which everything is kept that a credit rule or a replay may ask for."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from nudging._replay.losses import evaluate_loss
from nudging._replay.replay import Recorder, copy_tensors, intercepting, tensor_versions
from nudging._replay.run import run
from nudging._replay.setup import Setup
from nudging._replay.state import State
from resonance_toolkit import count_samples, dtype_name


@torch.no_grad()
def record_state(
    setup: Setup, inputs: Any, targets: Any, *, full_pass_reason: str = "", first_sample: int = 0
) -> State:
    """Run the model once on a batch.

    Args:
        setup: The model, its blocks and the loss.
        inputs: One batch, samples first.
        targets: What the loss compares the outputs with.
        full_pass_reason: As in `State`; where full passes are needed, no call is recorded.
        first_sample: Place of the first sample in the data.
    """
    inputs, targets = tree_map_only(Tensor, _leave_inference_mode, (inputs, targets))
    n_samples = count_samples(inputs)
    hidden: dict[str, Tensor] = {}
    refusals: dict[str, Exception] = {}

    def keep(name: str, output: Tensor | None) -> None:
        try:
            _check_block_runs_once(name, has_run=name in hidden or name in refusals)
            hidden[name] = copy_tensors(_check_output(name, output, n_samples))
        except (TypeError, ValueError) as error:
            if not setup.may_leave_out:
                raise
            refusals.setdefault(name, error)
            hidden.pop(name, None)

    # A model that writes into its inputs must find them as they were in every pass.
    inputs_of_pass = copy_tensors(inputs)
    versions_before = tensor_versions(inputs_of_pass)

    recorder = Recorder(setup.model, setup.modules.values())
    outputs = run(
        setup,
        inputs_of_pass,
        {module: partial(keep, name) for name, module in setup.modules.items()},
        interception=None if full_pass_reason else intercepting(recorder.watched, recorder),
    )
    recorder.finish()

    if refusals and not hidden:
        raise next(iter(refusals.values()))
    missing_blocks = [name for name in setup.modules if name not in hidden]
    if missing_blocks and not (setup.may_leave_out and hidden):
        raise ValueError(f"`blocks`: {', '.join(missing_blocks)} did not run in a forward pass")
    outputs = tree_map_only(Tensor, Tensor.detach, outputs)
    losses = evaluate_loss(setup.loss, outputs, targets, n_samples)  # which checks its shape
    _check_numbers(losses, inputs)

    return State(
        model=setup.model,
        blocks=tuple(hidden),
        inputs=inputs,
        targets=targets,
        hidden=hidden,
        outputs=outputs,
        loss=setup.loss,
        first_sample=first_sample,
        full_pass_reason=full_pass_reason,
        _setup=setup.keep_blocks(list(hidden)),
        _recorder=recorder,
        _overwrites_inputs=tensor_versions(inputs_of_pass) != versions_before,
    )


def _leave_inference_mode(tensor: Tensor) -> Tensor:
    # No pass that is differentiated may see what was made in inference mode.
    return tensor.clone() if tensor.is_inference() else tensor


def _check_numbers(losses: Tensor, inputs: Any) -> None:
    """Refuse inputs with NaN, unless the model knows what to make of them."""
    if not losses.isnan().any():
        return

    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    if any(bool(tensor.isnan().any()) for tensor in tensors):
        raise ValueError("`data`: expected inputs that are numbers, got NaN, and so is the loss")


def _check_block_runs_once(name: str, *, has_run: bool) -> None:
    if has_run:
        raise ValueError(f"`blocks`: {name} ran more than once in a forward pass")


def _check_output(name: str, output: Tensor | None, n_samples: int) -> Tensor:
    if output is None:
        raise TypeError(
            f"`blocks`: expected {name} to return a tensor, or a tuple or list with one, got none; "
            "choose a module inside it or around it"
        )
    if not output.is_floating_point() or output.dim() < 2 or len(output) != n_samples:
        raise ValueError(
            f"`blocks`: expected {name} to return real numbers with {n_samples} samples first, got "
            f"{dtype_name(output.dtype)} {tuple(output.shape)}"
        )
    return output
