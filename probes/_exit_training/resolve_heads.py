"""From the user's `head` and `norm` to a path to logits for every early exit, tried out."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from probes._exit_training.forward_trace import ForwardTrace
from probes._exit_training.head import ExitPoint, Head
from probes._exit_training.model_head import trace_model_head
from probes._exit_training.translator import new_translator
from probes._model.distributed import check_mates
from probes._model.failed_pass import describe_error, failing_line
from probes._model.pooling import LayerOutput, resolve_pool
from resonance_toolkit import check_choice, devices_of, evaluating, preserving_rng

HeadOption = Literal["model", "own", "tuned"] | Callable[[Tensor], Tensor]
NormOption = Literal["auto"] | Callable[[Tensor], Tensor] | None


def resolve_heads(
    root: nn.Module,
    forward_trace: ForwardTrace,
    head: HeadOption,
    norm: NormOption,
    seed: int,
    *,
    last_token: bool = False,
) -> tuple[dict[str, ExitPoint], dict[str, nn.Module]]:
    """Decide how each early exit comes to its logits, and try it on what a pass has shown.

    Args:
        last_token: Whether the model's path may read the last token alone; see `trace_model_head`.

    Returns:
        The early exits, and, for `head="own"`, a new linear head for each of them, for
        `head="tuned"` a new translator; by layer.

    Raises:
        ValueError: If an option is unknown, or an exit's output does not fit the head.
    """
    _check_options(head, norm)
    shared_head = _shared_head(root, forward_trace, head, norm, last_token)
    check_mates(root, shared_head.modules)

    points: dict[str, ExitPoint] = {}
    own_heads: dict[str, nn.Module] = {}
    for index, name in enumerate(forward_trace.layers[:-1]):
        hidden = forward_trace.hidden[name]

        exit_head = shared_head
        if head == "own":
            exit_head = _head_to_features(shared_head, root, forward_trace, name)

        try:
            result = _try_head(exit_head, root, hidden)
        except Exception as error:  # the user's modules: any failure is one of fit
            message = _misfit_message(name, forward_trace, exit_head, describe_error(error))
            raise ValueError(message + failing_line(error)) from None

        if head == "own":
            own_heads[name] = _new_linear_head(result, forward_trace.logits, seed + index)
        elif result.shape != forward_trace.logits.shape:
            problem = f"it gives {tuple(result.shape)}"
            raise ValueError(_misfit_message(name, forward_trace, exit_head, problem))
        elif head == "tuned":
            own_heads[name] = new_translator(hidden, name, root)

        points[name] = ExitPoint(tuple(hidden.shape[1:]), exit_head)

    return points, own_heads


def _shared_head(
    root: nn.Module,
    forward_trace: ForwardTrace,
    head: HeadOption,
    norm: NormOption,
    last_token: bool,
) -> Head:
    """Return the path that all exits have in common; for own heads, up to their features."""
    user_norm = norm if callable(norm) else None
    if callable(head):
        return Head((), user_norm, head)

    try:
        model_head = trace_model_head(root, forward_trace, last_token=last_token)
    except ValueError:
        if head != "own":
            raise
        # An own head needs no path of the model's; pooling is found by shape.
        return Head((), user_norm)

    if norm != "auto":
        model_head = model_head.without_norm(root, user_norm)
    return model_head.without_last_module() if head == "own" else model_head


def _head_to_features(head: Head, root: nn.Module, forward_trace: ForwardTrace, name: str) -> Head:
    """Return a path to one feature vector per place of the model's logits, for an own head."""
    hidden = forward_trace.hidden[name]
    try:
        features = _try_head(head, root, hidden)
    except Exception:  # a norm of another width: the exit does without
        head = Head((), head.norm)
        features = _try_head(head, root, hidden)

    if features.dim() == forward_trace.logits.dim():
        return head
    output = LayerOutput(features, name, root.get_submodule(name))
    pool = resolve_pool("auto", output, root)
    return Head(head.steps, head.norm, pool)


@torch.no_grad()
def _try_head(head: Head, root: nn.Module, hidden: Tensor) -> Tensor:
    with evaluating(root), preserving_rng(devices_of(root)):
        return head(root, hidden)


def _new_linear_head(features: Tensor, logits: Tensor, seed: int) -> nn.Module:
    width = features.shape[-1]
    n_classes = logits.shape[-1]

    # From the seed alone, and the same on every device: as `nn.Linear` draws its weight, uniformly
    # between -1 / sqrt(width) and 1 / sqrt(width). The bias starts at zero.
    head: nn.Linear = nn.utils.skip_init(nn.Linear, width, n_classes)
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(n_classes, width, generator=generator, device="cpu")
    with torch.no_grad():
        head.weight.copy_((2 * uniform - 1) / width**0.5)
        head.bias.zero_()

    return head.to(features.device, torch.promote_types(features.dtype, torch.float32))


def _check_options(head: object, norm: object) -> None:
    if not callable(head):
        check_choice("head", head, ("model", "own", "tuned"), or_else="a callable")
    if norm is not None and not callable(norm):
        check_choice("norm", norm, ("auto",), or_else="None or a callable")


def _misfit_message(name: str, forward_trace: ForwardTrace, head: Head, problem: str) -> str:
    return (
        f"`head`: expected logits {tuple(forward_trace.logits.shape)} from layer {name!r}, whose "
        f"output is {tuple(forward_trace.hidden[name].shape)}, by way of {head}; {problem}. A "
        "layer of another width needs head='own' or a callable"
    )
