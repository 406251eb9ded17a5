"""Where in a model torch is computing, read off the Python stack.

Nothing is hooked, so nothing can be left behind.
"""

import sys
from dataclasses import dataclass, replace
from types import CodeType, FrameType

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

# They carry out a step of the attention of the layer that holds them.
_STEPS_OF_A_LAYER = (nn.Softmax, nn.Dropout)

# The code that runs when a module is called, below `__call__`.
_MODULE_CALL = nn.Module._call_impl.__code__


@dataclass(frozen=True)
class Place:
    """Which layer is running, and the outermost call into the model that led there."""

    layer: str
    module: nn.Module
    outermost_module: nn.Module
    outermost_frame: FrameType


def locate(names: dict[int, str], latest: Place | None = None) -> Place | None:
    """Find the running layer on the Python stack.

    Args:
        names: The dotted name of every module, by `id`.
        latest: What was found before. While its outermost call runs, nothing outside of it changes.

    Returns:
        None if the call does not come from one of them.
    """
    frame: FrameType | None = sys._getframe(1)
    is_same_call = latest is not None and _is_running(latest.outermost_frame, frame)
    current = latest if is_same_call else None
    innermost: nn.Module | None = None
    outermost: tuple[nn.Module, FrameType] | None = None
    outermost_is_call = False

    # From the innermost frame outwards.
    while frame is not None:
        code = frame.f_code
        owner = frame.f_locals.get("self") if _mentions_self(code) else None

        if isinstance(owner, nn.Module) and id(owner) in names:
            if innermost is None and not isinstance(owner, _STEPS_OF_A_LAYER):
                innermost = owner
                if current is not None:
                    return replace(current, layer=names[id(owner)], module=owner)

            # A real call of a module, or failing that one of its methods, such as `forward`.
            if code is _MODULE_CALL or not outermost_is_call:
                outermost = owner, frame
                outermost_is_call = code is _MODULE_CALL
        frame = frame.f_back

    if innermost is None or outermost is None:
        return None
    return Place(names[id(innermost)], innermost, *outermost)


def first_input(frame: FrameType) -> Tensor | None:
    """Return the first tensor handed to the call that runs in `frame`."""
    variables = frame.f_locals
    code = frame.f_code
    arguments = [variables.get(name) for name in code.co_varnames[: code.co_argcount]]
    arguments += [variables.get("args"), variables.get("kwargs")]  # of `nn.Module.__call__`

    leaves = tree_leaves([value for value in arguments if not isinstance(value, nn.Module)])
    return next((leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), None)


def _mentions_self(code: CodeType) -> bool:
    return code.co_varnames[:1] == ("self",) or "self" in code.co_freevars


def _is_running(call: FrameType, frame: FrameType | None) -> bool:
    """Whether a real call of a module is among the callers of `frame`."""
    while frame is not None and frame is not call:
        frame = frame.f_back
    return frame is call and call.f_code is _MODULE_CALL
