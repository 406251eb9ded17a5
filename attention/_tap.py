"""The mode in which torch shows its calls, and how attention is told among them.

A fused kernel is attention by itself. A softmax is a candidate only: its result is followed
through dropout, reshaping and the like, until a product of matrices takes it up.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from attention._call import KERNEL_ARGUMENTS, Call, call_from_kernel, call_from_softmax
from attention._locate import Place, locate
from attention._multi_head import multi_head_with
from attention._roles import ROLES

# What torch functions are, all but operators: asked first, as abstract classes are slow to ask.
_FUNCTIONS = (BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType)
_OPERATORS = (OpOverload, OpOverloadPacket, HigherOrderOperator)

# In the names of kernels that we cannot read.
_UNREADABLE = ("attention", "attn", "flash", "fmha")


@dataclass
class _Candidate:
    """A softmax that may turn out to be attention; no call if it runs along another axis."""

    call: Call | None
    place: Place
    was_read: bool = False


class Tap(TorchFunctionMode):
    """Hands every attention call of some modules to `receive`; the model computes as usual.

    A call is one of `scaled_dot_product_attention`, or a softmax over the last axis (or the
    exponential of its logarithm) whose result goes on into a product of matrices.

    Args:
        names: The dotted name of every module, by `id`.
        receive: Called with each attention call and its place, while the layer runs.
    """

    def __init__(self, names: dict[int, str], receive: Callable[[Call, Place], None]) -> None:
        super().__init__()
        self.names = names
        self.receive = receive
        self.image_sizes: dict[tuple[int, int], None] = {}  # of feature maps, the latest last
        self.unread: Counter[str] = Counter()  # softmaxes by layer that no product has taken up
        self.sideways: dict[str, None] = {}  # layers that multiply a softmax along another axis
        self._latest_place: Place | None = None
        self._candidates: Any = WeakIdKeyDictionary()  # by map, so that none lives longer for us
        self._logarithms: Any = WeakIdKeyDictionary()  # of a softmax: what it was taken of

    def __exit__(self, *failure: Any) -> None:
        self._latest_place = None
        self._candidates.clear()
        self._logarithms.clear()
        super().__exit__(*failure)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        role = ROLES.get(func)
        if role == "kernel":
            return self._run_kernel(args, kwargs)
        if role == "heads":
            return self._run_multi_head(args, kwargs)
        if role is None and not isinstance(func, _FUNCTIONS) and isinstance(func, _OPERATORS):
            self._refuse_unreadable(func)

        result = func(*args, **kwargs)

        if role == "softmax":
            self._remember(args, kwargs, result)
        elif role == "logarithm":
            self._logarithms[result] = args, kwargs
        elif role == "exponential":
            origin = self._logarithms.get(args[0]) if args and self._logarithms else None
            if origin is not None:
                self._remember(origin[0], origin[1], result)
        elif role is not None and self._candidates:
            operands = [*args, *kwargs.values()]
            if role == "multiplies":
                self._hand_over(operands)
            else:
                self._follow(operands, result, mixes_heads=role == "mixes")

        # The sizes of feature maps tell how tokens lie in an image.
        if func is torch.conv2d:
            size = tuple(result.shape[-2:])
            self.image_sizes.pop(size, None)
            self.image_sizes[size] = None
        return result

    def _locate(self) -> Place | None:
        place = locate(self.names, self._latest_place)
        self._latest_place = place or self._latest_place
        return place

    def _run_kernel(self, args: Sequence[Any], kwargs: dict[str, Any], **counts: int) -> Tensor:
        output: Tensor = F.scaled_dot_product_attention(*args, **kwargs)
        place = self._locate()
        if place is not None:
            arguments = dict(zip(KERNEL_ARGUMENTS, args, strict=False)) | kwargs
            call = call_from_kernel(place, output, KERNEL_ARGUMENTS | arguments, **counts)
            self.receive(call, place)
        return output

    def _run_multi_head(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        # Torch has the samples second here, and merges them with the heads further in.
        query = args[0] if args else kwargs["query"]
        counts = {
            "n_heads": args[4] if len(args) > 4 else kwargs["num_heads"],
            "n_samples": query.size(1) if query.dim() == 3 else 1,
        }

        def kernel(*args: Any, **kwargs: Any) -> Tensor:
            return self._run_kernel(args, kwargs, **counts)

        def softmax(scores: Tensor, dim: int) -> Tensor:
            weights = F.softmax(scores, dim)
            place = self._locate()
            if place is not None:
                self.receive(call_from_softmax(place, scores, weights, **counts), place)
            return weights

        return multi_head_with(kernel, softmax)(*args, **kwargs)

    def _refuse_unreadable(self, operator: Any) -> None:
        name = str(operator)
        if not any(word in name.lower() for word in _UNREADABLE):
            return

        place = self._locate()
        if place is not None:
            raise ValueError(
                f"layer {place.layer!r} computes attention with {name}, which cannot be read: "
                "set the model to sdpa or eager attention"
            )

    def _remember(self, args: Sequence[Any], kwargs: dict[str, Any], weights: Tensor) -> None:
        scores = args[0] if args else kwargs["input" if "input" in kwargs else "self"]
        dim = args[1] if len(args) > 1 else kwargs.get("dim")

        # Two axes are not a map per sample: a classifier's softmax, say.
        place = self._locate() if scores.dim() > 2 else None
        if place is None:
            return

        call = None
        if dim in (-1, scores.dim() - 1):
            self.unread[place.layer] += 1
            call = call_from_softmax(place, scores, weights)
        self._candidates[weights] = _Candidate(call, place)

    def _follow(self, operands: Iterable[Any], result: Any, *, mixes_heads: bool) -> None:
        maps = (t for t in operands if isinstance(t, Tensor) and t in self._candidates)
        source = next(maps, None)
        if source is None or not isinstance(result, Tensor):
            return

        candidate = self._candidates[source]
        if mixes_heads and candidate.call is not None:
            candidate.call = replace(candidate.call, kind="talking heads")
        self._candidates[result] = candidate

    def _hand_over(self, operands: Iterable[Any]) -> None:
        # `einsum` takes its operands one by one, or as a list.
        parts = [
            part for arg in operands for part in (arg if isinstance(arg, list | tuple) else [arg])
        ]
        tensors = [part for part in parts if isinstance(part, Tensor)]

        for tensor in tensors:
            candidate = self._candidates.get(tensor)
            if candidate is None or candidate.was_read:
                continue

            candidate.was_read = True
            if candidate.call is None:
                self.sideways[candidate.place.layer] = None
                continue

            self.unread[candidate.place.layer] -= 1
            factors = [factor for factor in tensors if factor is not tensor]
            self.receive(candidate.call.with_values(factors), candidate.place)
