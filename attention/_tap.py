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

from attention._call import KERNEL_ARGUMENTS, Call, of_kernel, of_softmax
from attention._locate import Place, locate
from attention._multi_head import multi_head_with

_KERNELS = {
    F.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
}
# What torch functions are, all but operators: asked first, as abstract classes are slow to ask.
_FUNCTIONS = (BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType)
_OPERATORS = (OpOverload, OpOverloadPacket, HigherOrderOperator)
_UNREADABLE = ("attention", "attn", "flash", "fmha")  # in the names of kernels we cannot read
_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax}
_SOFTMAX |= {torch.ops.aten.softmax, torch.ops.aten.softmax.int}
_SOFTMAX |= {torch.ops.aten._softmax, torch.ops.aten._softmax.default}
_LOGARITHMS = {F.log_softmax, torch.log_softmax, Tensor.log_softmax, torch.special.log_softmax}
_LOGARITHMS |= {torch.ops.aten.log_softmax, torch.ops.aten.log_softmax.int}
_LOGARITHMS |= {torch.ops.aten._log_softmax, torch.ops.aten._log_softmax.default}
_EXPONENTIALS = {torch.exp, torch.exp_, Tensor.exp, Tensor.exp_}
_PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__}
_PRODUCTS |= {torch.bmm, Tensor.bmm, torch.baddbmm, Tensor.baddbmm, torch.einsum}
# What may happen to a map between its softmax and its product with the values.
_MIXING = {F.linear, torch.conv2d, F.batch_norm, F.layer_norm}
_CARRYING = {F.dropout, F.alpha_dropout, torch.dropout, torch.where}
_CARRYING |= {torch.clone, torch.div, torch.flatten, torch.masked_fill, torch.movedim, torch.mul}
_CARRYING |= {torch.nan_to_num, torch.permute, torch.reshape, torch.squeeze, torch.swapaxes}
_CARRYING |= {torch.transpose, torch.unflatten, torch.unsqueeze}
_CARRYING |= {Tensor.bfloat16, Tensor.clone, Tensor.contiguous, Tensor.detach, Tensor.div}
_CARRYING |= {Tensor.double, Tensor.expand, Tensor.flatten, Tensor.float, Tensor.half, Tensor.mul}
_CARRYING |= {Tensor.masked_fill, Tensor.movedim, Tensor.nan_to_num, Tensor.permute, Tensor.reshape}
_CARRYING |= {Tensor.squeeze, Tensor.swapaxes, Tensor.to, Tensor.transpose, Tensor.type}
_CARRYING |= {Tensor.type_as, Tensor.unflatten, Tensor.unsqueeze, Tensor.view, Tensor.__getitem__}
_CARRYING |= {Tensor.__mul__, Tensor.__rmul__, Tensor.__truediv__}
_CARRYING |= {Tensor.mT.__get__}  # type: ignore[attr-defined]
# One look tells what a function is: most are none of these.
_ROLES: dict[Any, str] = dict.fromkeys(_CARRYING, "carries")
_ROLES |= dict.fromkeys(_MIXING, "mixes") | dict.fromkeys(_PRODUCTS, "multiplies")
_ROLES |= dict.fromkeys(_SOFTMAX, "softmax") | dict.fromkeys(_KERNELS, "kernel")
_ROLES |= dict.fromkeys(_LOGARITHMS, "logarithm") | dict.fromkeys(_EXPONENTIALS, "exponential")
_ROLES |= {F.multi_head_attention_forward: "heads"}


@dataclass
class _Candidate:
    """A softmax that may turn out to be attention; no call if it runs along another axis."""

    call: Call | None
    place: Place
    read: bool = False


class Tap(TorchFunctionMode):
    """Hands every attention call of some modules to `receive`; the model computes as ever.

    A call is one of `scaled_dot_product_attention`, or a softmax over the last axis (or the
    exponential of its logarithm) whose result goes on into a product of matrices.
    """

    def __init__(self, names: dict[int, str], receive: Callable[[Call, Place], None]) -> None:
        super().__init__()
        self.names = names
        self.receive = receive
        self.image_sizes: dict[tuple[int, int], None] = {}  # of feature maps, the latest last
        self.unread: Counter[str] = Counter()  # softmaxes by layer that no product has taken up
        self.sideways: dict[str, None] = {}  # layers that multiply a softmax along another axis
        self._last: Place | None = None  # where the latest call was found
        self._maps: Any = WeakIdKeyDictionary()  # by tensor, so that none lives longer for us
        self._logarithms: Any = WeakIdKeyDictionary()  # of a softmax: what it was taken of

    def __exit__(self, *failure: Any) -> None:
        self._last = None
        self._maps.clear()
        self._logarithms.clear()
        super().__exit__(*failure)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        role = _ROLES.get(func)
        if role == "kernel":
            return self._kernel(args, kwargs)
        if role == "heads":
            return self._multi_head(args, kwargs)
        if role is None and not isinstance(func, _FUNCTIONS) and isinstance(func, _OPERATORS):
            self._refuse_unknown(func)
        result = func(*args, **kwargs)
        if role == "softmax":
            self._remember(args, kwargs, result)
        elif role == "logarithm":
            self._logarithms[result] = args, kwargs
        elif role == "exponential":
            taken = self._logarithms.get(args[0]) if args and self._logarithms else None
            if taken is not None:
                self._remember(taken[0], taken[1], result)
        elif role is not None and self._maps:
            given = [*args, *kwargs.values()]
            if role == "multiplies":
                self._hand_over(given)
            else:
                self._carry(given, result, mixing=role == "mixes")
        if func is torch.conv2d:
            size = tuple(result.shape[-2:])
            self.image_sizes.pop(size, None)
            self.image_sizes[size] = None
        return result

    def _locate(self) -> Place | None:
        place = locate(self.names, self._last)
        self._last = place or self._last
        return place

    def _kernel(self, args: Sequence[Any], kwargs: dict[str, Any], **known: int) -> Tensor:
        output: Tensor = F.scaled_dot_product_attention(*args, **kwargs)
        place = self._locate()
        if place is not None:
            given = dict(zip(KERNEL_ARGUMENTS, args, strict=False)) | kwargs
            call = of_kernel(place, output, KERNEL_ARGUMENTS | given, **known)
            self.receive(call, place)
        return output

    def _multi_head(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        query = args[0] if args else kwargs["query"]
        known = {
            "heads": args[4] if len(args) > 4 else kwargs["num_heads"],
            "samples": query.size(1) if query.dim() == 3 else 1,
        }

        def kernel(*args: Any, **kwargs: Any) -> Tensor:
            return self._kernel(args, kwargs, **known)

        def softmax(scores: Tensor, dim: int) -> Tensor:
            weights = F.softmax(scores, dim)
            place = self._locate()
            if place is not None:
                self.receive(of_softmax(place, scores, weights, **known), place)
            return weights

        return multi_head_with(kernel, softmax)(*args, **kwargs)

    def _refuse_unknown(self, operator: Any) -> None:
        name = str(operator)
        if any(word in name.lower() for word in _UNREADABLE):
            place = self._locate()
            if place is not None:
                raise ValueError(
                    f"layer {place.layer!r} computes attention with {name}, which cannot be read: "
                    "set the model to sdpa or eager attention"
                )

    def _remember(self, args: Sequence[Any], kwargs: dict[str, Any], weights: Tensor) -> None:
        scores = args[0] if args else kwargs["input" if "input" in kwargs else "self"]
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        place = self._locate() if scores.dim() > 2 else None
        if place is None:
            return
        call = None
        if dim in (-1, scores.dim() - 1):
            self.unread[place.layer] += 1
            call = of_softmax(place, scores, weights)
        self._maps[weights] = _Candidate(call, place)

    def _carry(self, given: Iterable[Any], result: Any, *, mixing: bool) -> None:
        found = next((t for t in given if isinstance(t, Tensor) and t in self._maps), None)
        if found is not None and isinstance(result, Tensor):
            found_map = self._maps[found]
            if mixing and found_map.call is not None:
                found_map.call = replace(found_map.call, kind="talking heads")
            self._maps[result] = found_map

    def _hand_over(self, given: Iterable[Any]) -> None:
        operands = [
            part for arg in given for part in (arg if isinstance(arg, list | tuple) else [arg])
        ]
        tensors = [operand for operand in operands if isinstance(operand, Tensor)]
        for tensor in tensors:
            found = self._maps.get(tensor)
            if found is not None and not found.read:
                found.read = True
                if found.call is None:
                    self.sideways[found.place.layer] = None
                    continue
                self.unread[found.place.layer] -= 1
                others = [other for other in tensors if other is not tensor]
                self.receive(found.call.with_values(others), found.place)
