"""The captured features, or a refusal that says what to do: never a stale or partial set."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from probes._model.capture import Capture
from probes._model.pass_state import UNCHECKED_COMPILED_CODE, PassState


def ready_features(
    capture: Capture, layers: Sequence[str], calls: str | None, *, used: bool = False
) -> dict[str, list[Tensor]]:
    """Features per layer, one tensor for each call of the layer that counts.

    Args:
        capture: What the hooks have left.
        layers: Names of all attachment points.
        calls: Which calls of a repeated layer count: "last", "mean", "all"; None: last, and warn.
        used: Accept a pass whose loss has been taken.

    Raises:
        RuntimeError: If not every layer was captured in the latest pass.
    """
    if capture.reentrant:
        raise RuntimeError(
            "a layer ran without gradients in a pass that has them, so its loss would train "
            "nothing: use checkpoint(..., use_reentrant=False), or, if the model's forward says "
            "no_grad, freeze that part by requires_grad_(False) instead"
        )
    if capture.nested:
        raise RuntimeError(
            f"layer {capture.nested!r} gave a nested tensor, which is not pooled as in training: "
            "call torch.backends.mha.set_fastpath_enabled(False) before the pass (in eval mode "
            "nn.TransformerEncoder makes them), or attach with a callable `pool`"
        )
    accepted_states = (PassState.READY, PassState.USED) if used else (PassState.READY,)
    if capture.state not in accepted_states:
        raise RuntimeError(capture.state.refusal)
    missing = [name for name in layers if name not in capture.features]
    if missing:
        raise RuntimeError(
            f"the latest forward pass did not run {', '.join(missing)}, or ran copies; {UNCHECKED_COMPILED_CODE}"
        )
    if any(_is_dead(x) for xs in capture.features.values() for x in xs):
        raise RuntimeError(
            "the latest forward pass ran inside a torch.func transform that has ended: call "
            "probe.loss inside the transformed function"
        )
    return {name: _merged(name, capture.features[name], calls) for name in layers}


def _merged(name: str, xs: list[Tensor], calls: str | None) -> list[Tensor]:
    if len(xs) == 1:
        return xs
    if calls is None:
        warnings.warn(
            f"layer {name!r} ran {len(xs)} times in one forward pass; the last is used. Say "
            "calls='last', 'mean' or 'all' in attach",
            stacklevel=4,
        )
    if calls == "mean":
        return [torch.stack(xs).mean(0)]
    return xs if calls == "all" else xs[-1:]


def _is_dead(x: Tensor) -> bool:
    return bool(torch._C._functorch.is_dead_tensor_wrapper(x))  # type: ignore[attr-defined]  # no stub
