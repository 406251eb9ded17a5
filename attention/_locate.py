import sys
from dataclasses import dataclass
from types import CodeType, FrameType

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

# They carry out a step of the attention of the layer that holds them.
_STEPS = (nn.Softmax, nn.Dropout)
_CALL = nn.Module._call_impl.__code__


@dataclass(frozen=True)
class Place:
    """Which layer is running, and the outermost call into the model that led there."""

    layer: str
    module: nn.Module
    outer: nn.Module
    frame: FrameType


def locate(names: dict[int, str], last: Place | None = None) -> Place | None:
    """Find the running layer on the Python stack: nothing is hooked, so nothing can be left behind.

    Args:
        names: The dotted name of every module, by `id`.
        last: What was found before. While its outermost call runs, nothing outside of it changes.

    Returns:
        None if the call does not come from one of them.
    """
    frame: FrameType | None = sys._getframe(1)
    known = last if last is not None and _is_running(last.frame, frame) else None
    inner: nn.Module | None = None
    entry: tuple[nn.Module, FrameType] | None = None
    called = False
    while frame is not None:
        code = frame.f_code
        owner = frame.f_locals.get("self") if _mentions_self(code) else None
        if isinstance(owner, nn.Module) and id(owner) in names:
            if inner is None and not isinstance(owner, _STEPS):
                inner = owner
                if known is not None:
                    return Place(names[id(inner)], inner, known.outer, known.frame)
            # A real call of a module, or failing that one of its methods, such as `forward`.
            if code is _CALL or not called:
                entry, called = (owner, frame), code is _CALL
        frame = frame.f_back
    if inner is None or entry is None:
        return None
    return Place(names[id(inner)], inner, *entry)


def first_input(frame: FrameType) -> Tensor | None:
    """The first tensor handed to the call that runs in `frame`."""
    variables, code = frame.f_locals, frame.f_code
    handed = [variables.get(name) for name in code.co_varnames[: code.co_argcount]]
    handed += [variables.get("args"), variables.get("kwargs")]  # of `nn.Module.__call__`
    leaves = tree_leaves([value for value in handed if not isinstance(value, nn.Module)])
    return next((leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), None)


def _mentions_self(code: CodeType) -> bool:
    return code.co_varnames[:1] == ("self",) or "self" in code.co_freevars


def _is_running(call: FrameType, frame: FrameType | None) -> bool:
    """Whether a real call of a module is among the callers of `frame`."""
    while frame is not None and frame is not call:
        frame = frame.f_back
    return frame is call and call.f_code is _CALL
