from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from attention._call import Call, of_kernel, of_softmax
from attention._locate import Place, locate

Receive = Callable[[Call, Place], None]

_KERNELS = (F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention)
_KERNEL_ARGUMENTS = {
    "query": None,
    "key": None,
    "value": None,
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
}
_SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax}
_PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.bmm}
_PRODUCTS |= {Tensor.bmm, torch.einsum, torch.baddbmm}
# What may happen to a map between its softmax and its product with the values.
_MIXING = {F.linear, torch.conv2d, F.batch_norm, F.layer_norm}
_CARRYING = _MIXING | {F.dropout, F.alpha_dropout, torch.dropout, torch.clone, torch.reshape}
_CARRYING |= {torch.permute, torch.transpose, torch.nan_to_num, torch.masked_fill, torch.where}
_CARRYING |= {torch.mul, torch.div, torch.unsqueeze, torch.squeeze, torch.flatten}
_CARRYING |= {
    getattr(Tensor, name)
    for name in (
        "to type type_as float double half bfloat16 contiguous clone view reshape permute "
        "transpose swapaxes movedim unsqueeze squeeze flatten unflatten expand masked_fill "
        "nan_to_num mul __mul__ __rmul__ div __truediv__ __getitem__ detach"
    ).split()
}
_CARRYING |= {Tensor.mT.__get__, Tensor.T.__get__}  # type: ignore[attr-defined]


class Tap(TorchFunctionMode):
    """Hands every attention call of some modules to `receive`; the model computes as ever.

    A call is one of `scaled_dot_product_attention`, or a softmax over the last axis whose result
    goes on into a product of matrices.
    """

    def __init__(self, names: dict[int, str], receive: Receive) -> None:
        super().__init__()
        self.names = names
        self.receive = receive
        self.image_sizes: dict[tuple[int, int], None] = {}  # the latest last
        self._pending: Any = WeakIdKeyDictionary()  # maps on their way to the values

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _KERNELS:
            return self._kernel(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._multi_head(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in _SOFTMAX:
            self._remember(args, kwargs, result)
        elif func in _PRODUCTS:
            self._consume(args)
        elif self._pending and func in _CARRYING:
            self._carry(func, args, kwargs, result)
        if func is torch.conv2d:
            size = tuple(result.shape[-2:])
            self.image_sizes.pop(size, None)
            self.image_sizes[size] = None
        return result

    def _kernel(self, *args: Any, **kwargs: Any) -> Tensor:
        known = {name: kwargs.pop(name) for name in ("heads", "samples") if name in kwargs}
        output: Tensor = F.scaled_dot_product_attention(*args, **kwargs)
        place = locate(self.names)
        if place is not None:
            given = dict(zip(_KERNEL_ARGUMENTS, args, strict=False)) | kwargs
            arguments = _KERNEL_ARGUMENTS | given | known
            self.receive(of_kernel(place.layer, place.module, output, arguments), place)
        return output

    def _multi_head(self, *args: Any, **kwargs: Any) -> Any:
        # torch switches the mode off in here, so the two calls inside are replaced in a copy of
        # the function, which shares its code: same output, and nothing global is patched.
        query = args[0] if args else kwargs["query"]
        heads = args[4] if len(args) > 4 else kwargs["num_heads"]
        known = {"heads": heads, "samples": query.size(1) if query.dim() == 3 else 1}

        def softmax(scores: Tensor, dim: int) -> Tensor:
            weights = F.softmax(scores, dim)
            place = locate(self.names)
            if place is not None:
                call = of_softmax(place.layer, place.module, scores, weights, **known)
                self.receive(call, place)
            return weights

        def kernel(*args: Any, **kwargs: Any) -> Tensor:
            return self._kernel(*args, **kwargs, **known)

        original = F.multi_head_attention_forward
        replaced = {
            "has_torch_function": lambda _: False,
            "scaled_dot_product_attention": kernel,
            "softmax": softmax,
        }
        copy = FunctionType(
            original.__code__, vars(F) | replaced, original.__name__, original.__defaults__
        )
        copy.__kwdefaults__ = original.__kwdefaults__
        return copy(*args, **kwargs)

    def _remember(self, args: Sequence[Any], kwargs: dict[str, Any], weights: Tensor) -> None:
        scores = args[0] if args else kwargs["input"]
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if not isinstance(scores, Tensor) or scores.dim() < 3 or dim not in (-1, scores.dim() - 1):
            return
        place = locate(self.names)
        if place is not None:
            call = of_softmax(place.layer, place.module, scores, weights)
            self._pending[weights] = call, place

    def _carry(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        for tensor in (*args, *kwargs.values()):
            if isinstance(tensor, Tensor) and tensor in self._pending:
                call, place = self._pending[tensor]
                if func in _MIXING:
                    call = replace(call, kind="talking heads")
                if isinstance(result, Tensor) and result is not tensor:
                    self._pending[result] = call, place
                return

    def _consume(self, args: Sequence[Any]) -> None:
        if not self._pending:
            return
        operands = [
            part for arg in args for part in (arg if isinstance(arg, list | tuple) else [arg])
        ]
        for operand in operands:
            if isinstance(operand, Tensor) and operand in self._pending:
                call, place = self._pending.pop(operand)
                self.receive(call, place)
