"""What each layer yields, from a forward pass that computes shapes only.

`dry_run` tries inputs until one runs: first on a copy of the model whose tensors have no data, and,
where that is impossible, on the model itself.
"""

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.utils._pytree import tree_map

from probes._model.failed_pass import failed_pass
from probes._model.likely_inputs import guess_inputs
from probes._model.without_fastpath import without_fastpath
from resonance_toolkit import (
    call_model,
    devices_of,
    evaluating,
    first_tensor,
    is_sharded,
    preserving,
    preserving_rng,
    resharding,
    sample_tensor,
)


@dataclass
class ForwardRecord:
    """What a dry run has shown."""

    n_samples: int
    layer_outputs: dict[str, Tensor | None] = field(default_factory=dict)
    layer_items: dict[str, int] = field(default_factory=dict)  # where that is not the first tensor
    n_patches: int | None = None  # positions that a patch embedding gave
    output: Any = None


def dry_run(root: nn.Module, layers: dict[str, nn.Module], sample: Any) -> ForwardRecord:
    """Find out what some layers yield, and leave the model as it is.

    A copy without data runs in eval mode. Where a model cannot be copied so, or needs real numbers
    (control flow that depends on data, sharded parameters), it is run itself, once, on zeros or on
    `sample`, without gradients.

    Raises:
        ValueError: If no input runs.
    """
    inputs = [sample] if sample is not None else list(guess_inputs(root))
    first_error: Exception | None = None

    # Sharded parameters are gathered by hooks, which must not see tensors without data.
    sharded = is_sharded(root)
    try:
        if not sharded:
            for candidate in inputs:
                try:
                    with preserving_rng(devices_of(root)):
                        return _run_copy_without_data(root, layers, candidate)
                except Exception as error:  # any model may fail in any way on a guessed input
                    first_error = first_error or error

        # The model itself may be slow: it is run on the likeliest input only.
        for candidate in inputs[:1]:
            try:
                with preserving(root, values=not sharded), resharding(root):
                    return _run(root, layers, candidate)
            except Exception as error:  # as above
                first_error = first_error or error

        raise failed_pass(first_error, guessed=sample is None) from None
    finally:
        # An error knows this frame: one that is kept here would keep the model as well.
        first_error = None


def _run_copy_without_data(
    root: nn.Module, layers: dict[str, nn.Module], sample: Any
) -> ForwardRecord:
    """Run a copy whose tensors have no data: nothing of the user's is touched."""
    with _keeping_torch_quiet(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        # Filled by `deepcopy`: the copy of each object, by the `id` of the original.
        copies: dict[int, Any] = {}
        with FakeCopyMode(mode):
            root_copy = copy.deepcopy(root, copies)

        for module in root_copy.modules():
            module._forward_hooks.clear()  # a recorder of the user's would record this pass

        layer_copies = {name: copies[id(module)] for name, module in layers.items()}
        return _run(root_copy, layer_copies, _without_data(sample, mode))


@contextmanager
def _keeping_torch_quiet() -> Iterator[None]:
    """Keep torch from writing a traceback for each input that does not fit: some are guesses."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled = logger.disabled
    logger.disabled = True

    try:
        yield
    finally:
        logger.disabled = was_disabled


def _without_data(sample: Any, mode: FakeTensorMode) -> Any:
    # By hand: torch's pytree takes a mapping that is no `dict`, as a tokenizer gives, for a leaf.
    if isinstance(sample, Mapping):
        return {name: _without_data(value, mode) for name, value in sample.items()}
    return tree_map(lambda x: mode.from_tensor(x) if isinstance(x, Tensor) else x, sample)


def _run(root: nn.Module, layers: dict[str, nn.Module], sample: Any) -> ForwardRecord:
    record = ForwardRecord(_count_samples(sample))

    def record_output(name: str, _: nn.Module, __: Any, output: Any) -> None:
        tensor = sample_tensor(output, record.n_samples)
        record.layer_outputs[name] = tensor

        # The number of samples is known here only: later passes look for the same item.
        if tensor is not first_tensor(output):
            is_chosen = [item is tensor for item in output]
            record.layer_items[name] = is_chosen.index(True)

    def record_patches(_: nn.Module, __: Any, output: Any) -> None:
        record.n_patches = record.n_patches or output.shape[-2:].numel()

    with ExitStack() as stack:
        stack.enter_context(evaluating(root))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(without_fastpath())

        for name, module in layers.items():
            stack.enter_context(module.register_forward_hook(partial(record_output, name)))

        # A convolution whose windows do not overlap cuts an image into patches.
        for module in root.modules():
            if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride != (1, 1):
                stack.enter_context(module.register_forward_hook(record_patches))

        record.output = call_model(root, sample)
    return record


def _count_samples(sample: Any) -> int:
    if isinstance(sample, Tensor):
        return len(sample)

    # The length of the first argument, not of the first tensor in it: a detector takes a list with
    # one image per sample.
    arguments = sample.values() if isinstance(sample, Mapping) else sample
    return len(next(iter(arguments)))
