"""The captured features, or a refusal that says what to do: never a stale or partial set."""

import warnings
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from probes._model.capture import Capture
from probes._model.pass_state import UNCHECKED_COMPILED_CODE, PassState

# Which calls count where a layer runs several times in one forward pass.
Calls = Literal["last", "mean", "all"]


def ready_features(
    capture: Capture,
    layers: Sequence[str],
    calls: Calls | None,
    *,
    may_be_used: bool = False,
    depth: int = 0,
) -> dict[str, list[Tensor]]:
    """Return the features of each layer, one tensor for each call of the layer that counts.

    Args:
        capture: What the hooks have left.
        layers: Names of all attachment points.
        calls: Which calls of a repeated layer count; None takes the last and warns.
        may_be_used: Accept a pass whose loss has been taken.
        depth: How many calls are between the method that the user called and this function.

    Raises:
        RuntimeError: If not every layer was captured in the latest pass.
    """
    _check_pass(capture, may_be_used=may_be_used)

    missing = [name for name in layers if name not in capture.features]
    if missing:
        raise RuntimeError(
            f"the latest forward pass did not run {', '.join(missing)}, or ran copies; "
            f"{UNCHECKED_COMPILED_CODE}"
        )

    if any(_is_dead(x) for tensors in capture.features.values() for x in tensors):
        raise RuntimeError(
            "the latest forward pass ran inside a torch.func transform that has ended: call "
            "probe.loss inside the transformed function"
        )

    for name in layers:
        n_calls = len(capture.features[name])
        if n_calls > 1 and calls is None:
            # The user's line is three calls up: a method of the probe, wrapped by
            # `torch.compiler.disable`, calls this function.
            warnings.warn(
                f"layer {name!r} ran {n_calls} times in one forward pass; the last is used. Say "
                "calls='last', 'mean' or 'all' in attach",
                stacklevel=4 + depth,
            )

    return {name: _select_calls(capture.features[name], calls) for name in layers}


def _check_pass(capture: Capture, *, may_be_used: bool) -> None:
    if capture.reentrant:
        raise RuntimeError(
            "a layer ran without gradients in a pass that has them, so its loss would train "
            "nothing: use checkpoint(..., use_reentrant=False), or, if the model's forward says "
            "no_grad, freeze that part by requires_grad_(False) instead"
        )

    if capture.nested_layer:
        raise RuntimeError(
            f"layer {capture.nested_layer!r} gave a nested tensor, which is not pooled as in "
            "training: call torch.backends.mha.set_fastpath_enabled(False) before the pass (in "
            "eval mode nn.TransformerEncoder makes them), or attach with a callable `pool`"
        )

    if capture.flat_layer:
        raise RuntimeError(
            f"layer {capture.flat_layer!r} gave no axis of positions, which it had when it was "
            "attached to (a packed sequence?): choose a layer behind the unpacking, or attach with "
            "a callable `pool`"
        )

    if capture.deep_layer:
        raise RuntimeError(
            f"layer {capture.deep_layer!r} gave more axes than the (sample, feature) that it had "
            "when it was attached to: attach with a batch of this shape as `sample`"
        )

    accepted_states = (PassState.READY, PassState.USED) if may_be_used else (PassState.READY,)
    if capture.state not in accepted_states:
        raise RuntimeError(capture.state.refusal)


def _select_calls(features: list[Tensor], calls: Calls | None) -> list[Tensor]:
    if len(features) == 1 or calls == "all":
        return features
    if calls == "mean":
        return [torch.stack(features).mean(0)]
    return features[-1:]


def _is_dead(x: Tensor) -> bool:
    """Tell whether a tensor belongs to a torch.func transform that has ended."""
    return bool(torch._C._functorch.is_dead_tensor_wrapper(x))  # type: ignore[attr-defined]  # no stub
