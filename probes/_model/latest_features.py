"""The captured features, or a refusal that says what to do: never a stale or partial set."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from probes._model.capture import Capture

_COMPILED = (
    "code that was compiled or recorded without a check for hooks ignores them: attach first, or "
    "call torch.compiler.reset(), or use torch.compiler.set_stance('force_eager')"
)

_REASONS = {
    "detached": "expected an attached model, but this is detached (by detach(), by the end of its "
    "`with` block, or as a copy): attach anew, or call reattach(model), then model(x)",
    "never": "expected a forward pass of the attached model first, but no forward pass was seen: "
    "call model(x) in train mode, the model itself and not a method such as model.forward(x). If "
    f"that was done: {_COMPILED}",
    "eval": "the latest forward pass ran in eval mode, where a probe is gone: call model.train(), "
    "or run the pass inside `with probe.listening():`",
    "no_grad": "the latest forward pass ran without gradients: enable them, or run the pass inside "
    "`with probe.listening():`",
    "open": "the latest forward pass did not finish",
    "used": "the latest forward pass has given its loss already: run the model again first (for "
    "mixed-up labels pass soft targets (sample, class))",
}


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
    if capture.state != "ready" and not (used and capture.state == "used"):
        raise RuntimeError(_REASONS[capture.state])
    missing = [name for name in layers if name not in capture.features]
    if missing:
        raise RuntimeError(
            f"the latest forward pass did not run {', '.join(missing)}, or ran copies; {_COMPILED}"
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
