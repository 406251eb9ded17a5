from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from nudging._replay.losses import Loss, losses_of, per_sample
from nudging._replay.replay import Recorder, copied, versions
from nudging._replay.state import State, count_samples, run
from resonance_toolkit import find_layers, unwrap


def observe(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    blocks: str | Sequence[str],
    *,
    loss: Loss | None = None,
    full: str | None = None,
) -> State:
    """Run a model once on a batch and keep what a credit rule may look at.

    The model runs in eval mode, without gradients, and is left as it was.

    Args:
        model: Called as `model(inputs)`; a dict holds keyword, a tuple positional arguments.
        inputs: One batch, samples first, where the model is.
        targets: What the loss compares the outputs with.
        blocks: Names or patterns of modules that return one tensor, samples first.
        loss: `(outputs, targets)` to one loss per sample; cross-entropy by default. Means of
            torch are taken over each sample alone.
        full: Why full passes are needed; found out on two samples by default. An empty string
            means that what follows a block is enough.

    Returns:
        The state: `hidden`, `outputs`, `gradient()`, `rest(block, value)`.

    Raises:
        ValueError: If a block is unknown, did not run once, or the loss is not per sample.
        TypeError: If a block returns something else than a tensor.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        >>> state = observe(model, torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), "*")
        >>> state.blocks, state.hidden["0"].shape
        (('0', '1'), torch.Size([4, 3]))
    """
    modules = find_blocks(model, blocks)
    by_sample, core = per_sample(loss), unwrap(model)
    with torch.inference_mode(False):
        state = record(core, inputs, targets, modules, by_sample, full or "")
        return state if full is not None else replace(state, full=why_full(state))


def find_blocks(model: nn.Module, blocks: str | Sequence[str]) -> dict[str, nn.Module]:
    """The modules that patterns name; the error speaks of `blocks`."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model`: expected a torch.nn.Module, got {type(model).__name__}")
    try:
        return find_layers(model, blocks)
    except ValueError as error:
        raise ValueError(str(error).replace("`layers`", "`blocks`")) from None


@torch.no_grad()
def record(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    modules: dict[str, nn.Module],
    loss: Loss,
    full: str = "",
    first: int = 0,
    tensors: dict[str, Tensor] | None = None,
) -> State:
    """Run the model once, and keep every call that a replay may need."""
    inputs, targets = tree_map_only(Tensor, _usable, (inputs, targets))
    count, hidden = count_samples(inputs), dict[str, Tensor]()

    def keep(name: str, output: Any) -> None:
        _check_output(name, output, count, again=name in hidden)
        hidden[name] = copied(output)

    # A model that writes into its inputs must find them as they were in every pass.
    given = copied(inputs)
    before = versions(given)
    recorder = Recorder(model, modules.values())
    keepers = {name: lambda output, name=name: keep(name, output) for name in modules}
    through = None if full else recorder
    outputs = run(model, given, modules, keepers, recorder.watched, through, tensors)
    recorder.finish()
    spoils = versions(given) != before
    if missing := [name for name in modules if name not in hidden]:
        raise ValueError(f"`blocks`: {', '.join(missing)} did not run in a forward pass")
    outputs = tree_map_only(Tensor, Tensor.detach, outputs)
    losses_of(loss, outputs, targets, count)
    return State(
        model, tuple(hidden), inputs, targets, hidden, outputs, loss, first, full,
        _modules=modules, _record=recorder, _tensors=tensors, _spoils_inputs=spoils,
    )  # fmt: skip


@torch.no_grad()
def why_full(state: State) -> str:
    """Why full passes are needed, or nothing.

    On two samples, each block is changed and what follows compared with a full pass, bit by bit.
    Their losses must be those that they have in their batch.
    """
    together = state.losses()
    # Those of largest loss: where there is none to speak of, nothing could be seen.
    rows = together.nan_to_num(0.0, 0.0, 0.0).abs().topk(min(2, len(state))).indices
    if len(state) == 2:
        rows = rows[[0, 1, 0]]  # else they would be the batch itself
    x, y = tree_map_only(Tensor, itemgetter(rows), (state.inputs, state.targets))
    few = record(state.model, x, y, dict(state._modules), state.loss, tensors=state._tensors)
    _check_independent(few.losses(), together[rows])
    generator, whole = torch.Generator().manual_seed(0), replace(few, full="to compare")
    for name, rest in few.hidden.items():
        noise = torch.randn(rest.shape, generator=generator).to(rest)
        moved = rest + 0.1 * (rest.abs().mean() or 1.0) * noise
        if not _same(*(s.losses(s.rest(name, moved)) for s in (few, whole))):
            return f"what follows {name} depends on more than the outputs of its modules"
    return ""


def _usable(tensor: Tensor) -> Tensor:
    # No pass that is differentiated may see what was made in inference mode.
    return tensor.clone() if tensor.is_inference() else tensor


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _check_independent(alone: Tensor, together: Tensor) -> None:
    tolerance = torch.finfo(alone.dtype).eps ** 0.5 * together.abs().max()
    if ((alone - together).abs() > tolerance).any():
        raise ValueError(
            "`loss`: expected a loss of each sample by itself, but that of one is "
            f"{alone[0]:.6g} among few samples and {together[0]:.6g} in its batch; the loss or "
            "the model depends on the whole batch (or on random numbers drawn for it)"
        )


def _check_output(name: str, output: Any, count: int, *, again: bool) -> None:
    if again:
        raise ValueError(f"`blocks`: {name} ran more than once in a forward pass")
    if not isinstance(output, Tensor):
        raise TypeError(
            f"`blocks`: expected {name} to return one tensor, got {type(output).__name__}; "
            "choose a module inside it or around it"
        )
    if not output.is_floating_point() or output.dim() < 2 or len(output) != count:
        raise ValueError(
            f"`blocks`: expected {name} to return real numbers with {count} samples first, got "
            f"{str(output.dtype).removeprefix('torch.')} {tuple(output.shape)}"
        )
