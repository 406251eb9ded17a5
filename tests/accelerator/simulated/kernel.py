"""One operator of the simulated device."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.accelerator.simulated.generator import drawing_from_device
from tests.accelerator.simulated.memory import (
    DEVICE,
    adopt,
    from_host,
    host_storage,
    host_view,
    is_on_device,
    point_to,
)
from tests.accelerator.simulated.waits import note_wait

# A CPU tensor may be an index of a tensor on the device: it is copied there, which waits.
_TAKES_CPU_INDICES = frozenset(
    ["index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"]
)

# Beside all pointwise operators: those that take a CPU tensor without dimensions as a number.
_TAKES_CPU_NUMBERS = frozenset(
    ["fill", "masked_fill", "where", "index_fill", "index_put", "_index_put_impl", "clamp", "pow"]
)

# Of integers, CUDA has no matrix products.
_MATRIX_PRODUCTS = frozenset(
    ["mm", "bmm", "addmm", "baddbmm", "addbmm", "dot", "vdot", "mv", "addmv"]
)

# The host must see values before it can go on: they decide a shape, or a branch.
_DEPENDS_ON_VALUES = frozenset(
    [
        "equal",
        "nonzero",
        "masked_select",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "bincount",
        "repeat_interleave",
        "_linalg_check_errors",
        "_linalg_eigh",
        "_linalg_svd",
        "linalg_eig",
    ]
)

Layout = tuple[Any, ...]


@dataclass
class _Views:
    """CPU views of a call's tensors, and which tensors they are of."""

    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    foreign: list[tuple[str, Tensor, bool]] = field(default_factory=list)

    def take(self, value: Any, name: str, *, is_listed: bool = False) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self.take(item, name, is_listed=True) for item in value)
        if not isinstance(value, Tensor):
            return value
        if not is_on_device(value):
            self.foreign.append((name, value, is_listed))
            return value

        view = host_view(value)
        self.pairs.append((view, value))
        return view

    def give_back(self, result: Any) -> Any:
        """Sim tensors of what an operator returned: its arguments, views of them, or new ones."""
        if isinstance(result, list | tuple):
            return type(result)(self.give_back(item) for item in result)
        if not isinstance(result, Tensor):
            return result

        for view, tensor in self.pairs:
            if view is result:
                return tensor

        address = result.untyped_storage()._cdata
        bases = (t for view, t in self.pairs if view.untyped_storage()._cdata == address)
        tensor = from_host(result, next(bases, None))
        self.pairs.append((result, tensor))
        return tensor

    def follow_resizing(self, layouts: list[Layout]) -> None:
        """Where an operator gave a view other sizes or memory, give them to its tensor."""
        for (view, tensor), layout in zip(self.pairs, layouts, strict=False):
            is_new = host_storage(tensor) is None
            if not is_new and _layout(view) == layout:
                continue

            has_moved = is_new or _layout(view)[:2] != layout[:2]
            storage = adopt(view.untyped_storage()) if has_moved else tensor.untyped_storage()
            point_to(tensor, storage, view)


class Kernel:
    """Runs an operator on CPU views of its arguments, under the rules of an accelerator."""

    def __init__(self, operator: Any) -> None:
        schema = operator._schema
        self.operator = operator
        self.name: str = schema.name.partition("::")[2]
        self.argument_names = [argument.name for argument in schema.arguments]
        self.is_tensor = [
            str(argument.type) in ("Tensor", "Optional[Tensor]") for argument in schema.arguments
        ]
        self.written_names = {
            argument.name
            for argument in schema.arguments
            if argument.alias_info and argument.alias_info.is_write
        }
        self.draws = torch.Tag.nondeterministic_seeded in operator.tags
        self.takes_numbers = (
            torch.Tag.pointwise in operator.tags or self.name.rstrip("_") in _TAKES_CPU_NUMBERS
        )

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        views = _Views()
        host_arguments = [
            views.take(value, name)
            for name, value in zip(self.argument_names, arguments, strict=False)
        ]
        host_options = {name: views.take(value, name) for name, value in options.items()}
        self._check_rules(views, host_options, arguments)

        if host_options.get("device") is not None:
            host_options["device"] = torch.device("cpu")
        layouts = [_layout(view) for view, _ in views.pairs] if self.written_names else []

        operator = self._choose_operator(host_arguments)
        generator = drawing_from_device() if self.draws else nullcontext()
        with torch._C._AutoDispatchBelowAutograd(), generator:
            result = operator(*host_arguments, **host_options)
            views.follow_resizing(layouts)
            return views.give_back(result)

    def _choose_operator(self, arguments: list[Any]) -> Callable[..., Any]:
        # A number in the place of a tensor comes to Python as a number: torch chooses again.
        pairs = zip(self.is_tensor, arguments, strict=False)
        if any(is_tensor and isinstance(value, int | float) for is_tensor, value in pairs):
            overloads: Callable[..., Any] = self.operator.overloadpacket
            return overloads
        operator: Callable[..., Any] = self.operator
        return operator

    def _check_rules(
        self, views: _Views, options: dict[str, Any], arguments: tuple[Any, ...]
    ) -> None:
        if views.pairs:
            for name, tensor, is_listed in views.foreign:
                self._check_foreign(name, tensor, is_listed=is_listed, first=arguments[0])

        picks_by_truth = self.name in _TAKES_CPU_INDICES and any(
            view.dtype in (torch.bool, torch.uint8) for view, _ in views.pairs[1:]
        )
        if self.name in _DEPENDS_ON_VALUES or picks_by_truth:
            note_wait("shape")

        are_numbers = all(v.is_floating_point() or v.is_complex() for v, _ in views.pairs)
        if self.name in _MATRIX_PRODUCTS and not are_numbers:
            raise NotImplementedError(f"{self.name} is not there for integers on {DEVICE}")
        if options.get("generator") is not None:
            kind = options["generator"].device.type
            raise RuntimeError(
                f"Expected a '{DEVICE.type}' device type for generator but found '{kind}'"
            )
        if options.get("pin_memory"):
            raise RuntimeError("only CPU tensors can be pinned")

    def _check_foreign(self, name: str, tensor: Tensor, *, is_listed: bool, first: Any) -> None:
        """Refuse a CPU tensor beside ones of the device, where a real one would."""
        if is_listed and self.name in _TAKES_CPU_INDICES and is_on_device(first):
            note_wait("to_device")
            return
        if tensor.dim() or not self.takes_numbers or name in self.written_names:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{DEVICE} and {tensor.device}: `{name}` of {self.name} {tuple(tensor.shape)}"
            )


def _layout(tensor: Tensor) -> Layout:
    storage = tensor.untyped_storage()
    return (
        storage._cdata,
        storage.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
    )
