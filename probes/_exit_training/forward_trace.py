"""One forward pass that shows in what order a model runs, and what follows its last layer.

Every call of a module gets two moments of one clock, its beginning and its end:

    model        0 ........................................ 9
    blocks.0       1 .. 2
    blocks.1              3 .. 4        (the last of `layers`)
    norm                         5 .. 6
    head                                  7 .. 8

From these follow the order of the layers, the part of the model that lies before each exit, and the
modules between the last layer and the logits, whose inputs and outputs are kept.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from probes._exit_training.targets import exit_logits
from probes._model.failed_pass import failed_pass
from probes._model.likely_inputs import likely_inputs
from probes._model.sequences import without_encoder
from resonance_toolkit import (
    call_model,
    device_of,
    evaluating,
    find_blocks,
    find_layers,
    first_tensor,
    is_sharded,
    preserving,
    resharding,
    unwrap,
)

_GUESSED_TOKENS = 8  # few, so that the pass is cheap; enough to tell positions apart


@dataclass
class ModuleCall:
    """One call of a module: when it began and ended, what went in and what came out.

    Tensors are kept only of calls that begin after the last layer has ended.
    """

    name: str
    began: int
    ended: int = -1
    input: Tensor | None = None
    output: Tensor | None = None


@dataclass
class ForwardTrace:
    """What a forward pass has shown; moments are counted from its start."""

    layers: list[str]
    calls: list[ModuleCall] = field(default_factory=list)
    hidden: dict[str, Tensor] = field(default_factory=dict)  # each layer's output
    flops: dict[str, int] = field(default_factory=dict)  # done when a layer ended
    total_flops: int = 0
    logits: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def last_layer_call(self) -> ModuleCall:
        """The call of the last layer."""
        return next(call for call in self.calls if call.name == self.layers[-1])

    def count_exits_before(self, module_name: str) -> int:
        """Count the exits that were passed before a module first ran.

        A module that never ran itself, such as a list of blocks, counts as what holds it.
        """
        first_moments = {call.name: call.began for call in reversed(self.calls)}
        while module_name and module_name not in first_moments:
            module_name = module_name.rpartition(".")[0]

        exit_moments = [call.ended for call in self.calls if call.name in self.layers]
        return sum(moment < first_moments[module_name] for moment in exit_moments)

    def relative_depths(self) -> list[float]:
        """Say how far through the model each layer is, the last being 1.

        Layers of one numbered family (`blocks.0`, `blocks.1`) count all of that family up to the
        last layer, listed or not; layers of several families count those listed.
        """
        families = {_without_number(name) for name in self.layers}
        is_one_family = len(families) == 1 and all(name[-1].isdigit() for name in self.layers)
        if not is_one_family:
            return [(index + 1) / len(self.layers) for index in range(len(self.layers))]

        end = self.last_layer_call.ended
        ran = [call.name for call in self.calls if call.ended <= end]
        siblings = [name for name in ran if _without_number(name) in families]
        return [(siblings.index(name) + 1) / len(siblings) for name in self.layers]


def name_layers(
    model: nn.Module, layers: str | Sequence[str] | None
) -> tuple[list[str], str | None]:
    """List the layers that names and patterns mean, in the order in which the user wrote them.

    None means the model's repeated blocks, of an encoder-decoder the decoder's; then a reason is
    given, too.
    """
    if layers is None:
        blocks = without_encoder(find_blocks(model), unwrap(model))
        return list(blocks), blocks.reason
    patterns = [layers] if isinstance(layers, str) else layers

    # All patterns at once tell a module with two names once; one by one they keep the order.
    distinct = find_layers(model, patterns)
    ordered = {name: None for pattern in patterns for name in find_layers(model, pattern)}
    return [name for name in ordered if name in distinct], None


def trace_forward(root: nn.Module, layers: list[str], sample: Any) -> ForwardTrace:
    """Run the model once in eval mode on `sample`, without gradients, and leave no mark.

    Raises:
        ValueError: If a layer does not run just once, or not in the order given, or the pass fails.
    """
    # A list of arguments is meant as a tuple of them.
    user_sample = tuple(sample) if isinstance(sample, list) else sample
    candidates = list(_guess_inputs(root)) if sample is None else [user_sample]
    first_error: Exception | None = None

    try:
        for candidate in candidates:
            try:
                forward_trace, output = _run_traced(root, layers, candidate)
            except Exception as error:  # any model may fail in any way on a guessed input
                first_error = first_error or error
                continue
            forward_trace.logits = exit_logits(output)
            _check_order(forward_trace)
            return forward_trace

        raise failed_pass(first_error, guessed=sample is None) from None
    finally:
        # An error knows this frame: one that is kept here would keep the model as well.
        first_error = None


def first_argument(args: Any, kwargs: Any) -> Tensor | None:
    """Return the tensor that a module works on: a plain one before those in tuples or dicts."""
    arguments = (*args, *kwargs.values())

    # Some blocks get their input by keyword, after a tuple such as (cos, sin) of a rotation.
    plain = next((value for value in arguments if isinstance(value, Tensor)), None)
    return plain if plain is not None else first_tensor(arguments)


def _run_traced(root: nn.Module, layers: list[str], sample: Any) -> tuple[ForwardTrace, Any]:
    # Here, since torch's counter asks for triton, and says so where there is none.
    from probes._exit_training.flops import FlopCounter

    forward_trace = ForwardTrace(layers)
    clock = itertools.count()
    counter = FlopCounter()
    running: dict[str, list[ModuleCall]] = {}  # a stack each: a module may call itself

    def begin_call(name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        module_call = ModuleCall(name, next(clock))

        # Before the last layer has ended, nothing can be on the way from it to the logits.
        if layers[-1] in forward_trace.hidden:
            argument = first_argument(args, kwargs)
            module_call.input = None if argument is None else argument.clone()

        forward_trace.calls.append(module_call)
        running.setdefault(name, []).append(module_call)

    def end_call(name: str, _: nn.Module, __: Any, output: Any) -> None:
        module_call = running[name].pop()
        module_call.ended = next(clock)

        tensor = first_tensor(output)
        if module_call.input is not None:
            module_call.output = tensor
        if name in layers and tensor is not None:
            # A clone: what runs later may write to the layer's output in place.
            forward_trace.hidden[name] = tensor.clone()
            forward_trace.flops[name] = counter.get_total_flops()

    with ExitStack() as stack:
        # Values of a sharded model are not copied: they are not whole on any rank.
        stack.enter_context(preserving(root, values=not is_sharded(root)))
        stack.enter_context(resharding(root))
        stack.enter_context(evaluating(root))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))

        for name, module in root.named_modules():
            begin_hook = partial(begin_call, name)
            stack.enter_context(module.register_forward_pre_hook(begin_hook, with_kwargs=True))
            stack.enter_context(module.register_forward_hook(partial(end_call, name)))

        with counter:
            output = call_model(root, sample)
        forward_trace.total_flops = counter.get_total_flops()

    return forward_trace, output


def _check_order(forward_trace: ForwardTrace) -> None:
    layers = forward_trace.layers
    by_end = sorted(forward_trace.calls, key=lambda call: call.ended)
    ran = [call.name for call in by_end if call.name in layers]

    for name in layers:
        if ran.count(name) != 1:
            n_times = ran.count(name)
            cause = (
                "its passes share their weights, and none is a layer of its own"
                if n_times
                else "it is left out in eval mode, or its `forward` is called without the module"
            )
            raise ValueError(
                f"`layers` at {name!r}: expected a layer that runs once in a forward pass, this "
                f"one runs {n_times} times: {cause}"
            )
        hidden = forward_trace.hidden.get(name)
        if hidden is None or not hidden.is_floating_point():
            raise ValueError(
                f"`layers` at {name!r}: expected a layer that returns floating-point numbers"
            )

    if ran != layers:
        raise ValueError(
            f"`layers`: expected them in forward order, {', '.join(ran)}; got {', '.join(layers)}"
        )


def _guess_inputs(root: nn.Module) -> Iterator[Tensor]:
    """Yield inputs that a model of this kind usually takes: token ids, or noise."""
    generator = torch.Generator().manual_seed(0)
    kinds = (nn.Embedding, nn.Linear, nn.modules.conv._ConvNd)
    first_module = next((module for module in root.modules() if isinstance(module, kinds)), None)

    if isinstance(first_module, nn.Embedding):
        shape = (2, _GUESSED_TOKENS)
        ids = torch.randint(first_module.num_embeddings, shape, generator=generator, device="cpu")
        yield ids.to(device_of(root))

    for zeros in likely_inputs(root):
        # Noise, not zeros: equal positions would not tell a mean from a first token.
        yield torch.randn(zeros.shape, generator=generator, device="cpu").to(zeros)


def _without_number(name: str) -> str:
    return re.sub(r"\d+$", "", name)
