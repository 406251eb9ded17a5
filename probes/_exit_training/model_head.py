"""The model's own path from its last layer to its logits, found in a trace of a forward pass.

Starting with the last layer's output, the search looks for the next module whose input is that
tensor, or the tensor pooled in one of the usual ways, and goes on with that module's output, until
the tensor is the logits. Where pooling leads nowhere, a few other functions are tried: activations,
a constant factor, a soft cap. The path found is then run as a whole, and must give the logits
again.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from probes._exit_training.forward_trace import ForwardTrace
from probes._exit_training.head import (
    ACTIVATIONS,
    CAPPED_AT,
    LAST_TOKEN,
    POOLING_BETWEEN_MODULES,
    TIMES,
    Head,
    Step,
    function_between_modules,
    has_parameters,
)
from resonance_toolkit import devices_of, evaluating, preserving_rng, unwrap, widest_float

# Where configurations of transformers keep the cap of the logits.
_CAP_NAMES = ("final_logit_softcapping", "logits_soft_cap")


@torch.no_grad()
def trace_model_head(
    root: nn.Module, forward_trace: ForwardTrace, *, last_token: bool = False
) -> Head:
    """Find the path from the last layer's output to the model's logits, and prove it.

    Args:
        last_token: Whether the path may read the last token alone, which proves nothing for texts
            with padding: each pass has to be checked then.

    Raises:
        ValueError: If the model does something on the way that is neither a module nor one of the
            functions known, or passes another layer of the kind listed.
    """
    last_layer = forward_trace.layers[-1]
    steps = _search_steps(root, forward_trace, last_token)
    head = Head(steps)

    if not head.modules:
        raise ValueError(
            f"`layers`: expected layers before the model's head, but {last_layer!r} yields "
            "the model's output itself"
        )
    _check_last_layer_is_last(root, forward_trace, head)

    # Something done in place, or a layer of several outputs, would have deceived the search: the
    # path must give the logits.
    try:
        with evaluating(root), preserving_rng(devices_of(root)):
            recomputed = head(root, forward_trace.hidden[last_layer])
    except Exception as error:  # the user's modules: any failure means that they are not the path
        raise ValueError(_untraceable_message(forward_trace, steps)) from error
    if not is_same(recomputed, forward_trace.logits):
        raise ValueError(_untraceable_message(forward_trace, steps))

    _check_no_second_head(root, forward_trace, head)
    return head


def is_same(tensor: Tensor, reference: Tensor) -> bool:
    """Tell whether two tensors come from the same operations on the same numbers."""
    return _relative_error(tensor, reference) <= _relative_tolerance(reference)


def _search_steps(
    root: nn.Module, forward_trace: ForwardTrace, last_token: bool
) -> tuple[Step, ...]:
    def other_function(x: Tensor, target: Tensor) -> str | None:
        names = [*ACTIVATIONS, *_caps(root)] + [LAST_TOKEN] * last_token
        return _closest_function(names, x, target) or _constant_factor(x, target)

    logits = forward_trace.logits
    first_dead_end: list[Step] | None = None
    calls_without_way: set[int] = set()

    def find_way(x: Tensor, end: int, passed: list[Step]) -> tuple[Step, ...] | None:
        """List the steps from a tensor to the logits; None if there are none."""
        nonlocal first_dead_end

        # Pooling first, to the end of the model: only what it does not reach takes another way.
        for find_function in (_best_pooling, other_function):
            function_name = find_function(x, logits)
            if function_name is not None:
                return ((function_name, ""),) if function_name else ()

            for call in forward_trace.calls:
                is_later = call.began > end and call.began not in calls_without_way
                if not is_later or call.input is None or call.output is None:
                    continue
                function_name = find_function(x, call.input)
                if function_name is None:
                    continue

                step = (function_name, call.name)
                way = find_way(call.output, call.ended, [*passed, step])
                if way is not None:
                    return (step, *way)
                # Beside the way, such as CLIP's norm of a token that its classifier does not read.
                calls_without_way.add(call.began)

        first_dead_end = passed if first_dead_end is None else first_dead_end
        return None

    last_output = forward_trace.hidden[forward_trace.layers[-1]]
    steps = find_way(last_output, forward_trace.last_layer_call.ended, [])
    if steps is None:
        raise ValueError(_untraceable_message(forward_trace, first_dead_end or []))
    return steps


def _check_last_layer_is_last(root: nn.Module, forward_trace: ForwardTrace, head: Head) -> None:
    # A module on the path of the same class as a listed layer is a layer the user left out.
    layer_classes = {type(root.get_submodule(name)) for name in forward_trace.layers}
    for name in head.modules[:-1]:
        if type(root.get_submodule(name)) in layer_classes:
            raise ValueError(
                f"`layers`: expected the model's last layer in last place, got "
                f"{forward_trace.layers[-1]!r}, which {name!r} follows"
            )


def _check_no_second_head(root: nn.Module, forward_trace: ForwardTrace, head: Head) -> None:
    """Refuse a second head while the logits are alike for all inputs: they prove nothing then."""
    rows = forward_trace.logits.flatten(0, -2)
    if not torch.equal(rows, rows[:1].expand_as(rows)):
        return

    end = forward_trace.last_layer_call.ended
    for call in forward_trace.calls:
        if call.output is None or call.output.shape != forward_trace.logits.shape:
            continue
        is_on_path = any(f"{call.name}.".startswith(f"{name}.") for name in head.modules)
        if not is_on_path and call.began > end and has_parameters(root, call.name):
            raise ValueError(
                f"`head`: expected one head, found {head.modules[-1]!r} and {call.name!r}, and "
                "logits that are the same for every input (weights of 0?) do not tell which "
                "counts; give `head` as a callable from a layer's output to logits"
            )


def _best_pooling(x: Tensor, target: Tensor) -> str | None:
    """Name the pooling that comes closest to making `target` of `x`, if any does."""
    return _closest_function(POOLING_BETWEEN_MODULES, x, target)


def _closest_function(names: Iterable[str], x: Tensor, target: Tensor) -> str | None:
    best_name = None
    least_error = math.inf

    for name in names:
        try:
            result = function_between_modules(name)(x)
        except (IndexError, RuntimeError):  # not that many axes
            continue
        error = _relative_error(result, target)
        if error <= _relative_tolerance(target) and error < least_error:
            best_name = name
            least_error = error

    return best_name


def _constant_factor(x: Tensor, target: Tensor) -> str | None:
    """Name the factor between two tensors, if it is the same at every entry."""
    if x.shape != target.shape or not x.is_floating_point() or not target.is_floating_point():
        return None

    # One row proves nothing: to divide it by its own length is no constant factor.
    dtype = widest_float(x.device)
    rows = x.flatten(0, -2).to(dtype)
    wanted_rows = target.to(x.device).flatten(0, -2).to(dtype)
    has_rows = rows.dim() == 2 and len(rows) > 1 and bool(rows.any(1).all())
    if not has_rows or not bool(wanted_rows.any()):
        return None

    factor = float((rows * wanted_rows).sum() / rows.square().sum())
    name = f"{TIMES} {factor!r}"
    return _closest_function([name], x, target) if math.isfinite(factor) else None


def _caps(root: nn.Module) -> Iterator[str]:
    """Name the soft caps that a configuration of transformers has."""
    config = getattr(unwrap(root), "config", None)
    for name in _CAP_NAMES:
        cap = getattr(config, name, None)
        if isinstance(cap, int | float) and cap > 0:
            yield f"{CAPPED_AT} {float(cap)!r}"


def _relative_error(tensor: Tensor, reference: Tensor) -> float:
    """Return the largest difference over the largest value; infinite for other shapes."""
    if tensor is reference:
        return 0.0
    if tensor.shape != reference.shape or not tensor.numel():
        return math.inf
    if not tensor.is_floating_point() or not reference.is_floating_point():
        return math.inf

    gap = float((tensor.to(reference.device) - reference).abs().max())
    size = float(reference.abs().max())
    if size > 0:
        return gap / size
    return math.inf if gap else 0.0


def _relative_tolerance(reference: Tensor) -> float:
    """Return the relative error that another order of the same operations may make.

    A hundred units of rounding, but at most 2 %, which bfloat16 would exceed.
    """
    if not reference.is_floating_point():
        return 0.0
    return min(100 * torch.finfo(reference.dtype).eps, 0.02)


def _untraceable_message(forward_trace: ForwardTrace, steps: Sequence[Step]) -> str:
    passed = "".join(f" > {module_name}" for _, module_name in steps if module_name)
    return (
        f"`head`: cannot follow the model from {forward_trace.layers[-1]!r}{passed} to its output. "
        "The last of `layers` must be the model's last layer, followed by modules and pooling "
        "only; else give `head` as a callable from a layer's output to logits"
    )
