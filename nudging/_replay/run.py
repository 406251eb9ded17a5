"""Call a model so that nothing but the blocks' outputs can differ from one pass to the next.

Recording, replaying and differentiating all go through `run`: eval mode, the same random numbers,
buffers as they were found, no compiled code (which would not see our hooks), no checkpointing
(which would run blocks again without them), and no nested tensors between blocks (which have no
shape).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nudging._replay.nests import replace_sample_tensor
from nudging._replay.setup import Setup
from resonance_toolkit import (
    call_model,
    count_samples,
    evaluating,
    preserving_rng,
    sample_tensor,
    seed_generators,
)

# Sees the first tensor of a block's output (see `sample_tensor`), or None if it has none; what it
# returns takes the place of that tensor, unless it is None.
OutputHook: TypeAlias = Callable[[Tensor | None], Tensor | None]


def run(
    setup: Setup,
    inputs: Any,
    output_hooks: Mapping[nn.Module, OutputHook],
    *,
    interception: AbstractContextManager[None] | None = None,
    hooks_also_first: bool = False,
) -> Any:
    """Return what a model gives in eval mode, with hooks on the outputs of some modules.

    Args:
        setup: The model, left as it was found, and the tensors to run it with.
        inputs: As `call_model` takes them.
        output_hooks: By module; called after the hooks that the module has already.
        interception: Entered for the time of the call; see `intercepting`.
        hooks_also_first: Call the output hooks before all others of a module, too.
    """
    model = setup.model
    n_samples = count_samples(inputs)

    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(_switching_off("grad_checkpointing", model.modules()))  # timm's
        stack.enter_context(_switching_off("use_nested_tensor", setup.encoders))  # torch's
        stack.enter_context(preserving_rng(setup.devices))
        if setup.has_compiled_parts:
            stack.enter_context(torch.compiler.set_stance("force_eager"))

        # A model that draws noise draws the same in every pass.
        seed_generators(0, setup.devices)
        if interception is not None:
            stack.enter_context(interception)

        for module, output_hook in output_hooks.items():
            forward_hook = _as_forward_hook(output_hook, n_samples)
            stack.enter_context(module.register_forward_hook(forward_hook))
            if hooks_also_first:
                stack.enter_context(module.register_forward_hook(forward_hook, prepend=True))

        return functional_call(_Call(model), _tensors_to_run_with(setup), (inputs,))


class _Call(nn.Module):
    """A model that is called by `call_model`, which `functional_call` cannot do by itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Any:
        return call_model(self.model, inputs)


def _tensors_to_run_with(setup: Setup) -> dict[str, Tensor]:
    """Return tensors in another precision, if there are any, and a copy of every buffer."""
    replacements = dict(setup.tensors or {})

    # A pass that writes into buffers (statistics, caches) writes into these copies, so that the
    # next one finds the buffers as they were.
    for name, buffer in setup.model.named_buffers():
        replacements[name] = replacements.get(name, buffer).clone()
    return {f"model.{name}": tensor for name, tensor in replacements.items()}


@contextmanager
def _switching_off(switch: str, modules: Iterable[nn.Module]) -> Iterator[None]:
    """Set an attribute of modules to False where it is True, and back."""
    switched_on = [vars(module) for module in modules if vars(module).get(switch) is True]
    try:
        for attributes in switched_on:
            attributes[switch] = False
        yield
    finally:
        for attributes in switched_on:
            attributes[switch] = True


def _as_forward_hook(output_hook: OutputHook, n_samples: int) -> Callable[..., Any]:
    def forward_hook(_module: nn.Module, _args: Any, output: Any) -> Any:
        value = output_hook(sample_tensor(output, n_samples))
        return None if value is None else replace_sample_tensor(output, value, n_samples)

    return forward_hook
