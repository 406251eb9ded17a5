"""One forward pass that shows in what order a model runs, and what follows its last layer."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from probes._exit_analysis.flops import FlopCounter
from probes._model.distributed import resharding
from probes._model.failed_pass import failed_pass
from probes._model.likely_inputs import likely_inputs
from resonance_toolkit import (
    call_model,
    device_of,
    evaluating,
    find_layers,
    first_tensor,
    is_sharded,
    preserving,
)

_TOKENS = 8  # positions of a guessed text


@dataclass
class Call:
    """One call of a module: when it began and ended, what went in and what came out."""

    name: str
    began: int
    ended: int = -1
    taken: Tensor | None = None
    given: Tensor | None = None


@dataclass
class Trace:
    """What a forward pass has shown; events are counted from its start."""

    layers: list[str]
    calls: list[Call] = field(default_factory=list)
    hidden: dict[str, Tensor] = field(default_factory=dict)
    flops: dict[str, int] = field(default_factory=dict)  # done when a layer ended
    total_flops: int = 0
    logits: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def last(self) -> Call:
        """The call of the last layer."""
        return next(c for c in self.calls if c.name == self.layers[-1])

    def segment(self, module: str) -> int:
        """How many exits were passed before a module (or what holds it) first ran."""
        ran = {c.name: c.began for c in reversed(self.calls)}
        while module and module not in ran:
            module = module.rpartition(".")[0]
        ends = [c.ended for c in self.calls if c.name in self.layers]
        return sum(ended < ran[module] for ended in ends)

    def depths(self) -> list[float]:
        """How far through the model each layer is, the last being 1.

        Layers of one numbered family (`blocks.0`, `blocks.1`) count their kin, listed or not.
        """
        families = {re.sub(r"\d+$", "", name) for name in self.layers}
        ran = [c.name for c in self.calls if c.ended <= self.last.ended]
        kin = [name for name in ran if re.sub(r"\d+$", "", name) in families]
        if len(families) > 1 or not all(name[-1].isdigit() for name in self.layers):
            kin = self.layers
        return [(kin.index(name) + 1) / len(kin) for name in self.layers]


def name_layers(model: nn.Module, layers: str | Sequence[str]) -> list[str]:
    """The layers that names and patterns mean, in the order in which the user wrote them."""
    patterns = [layers] if isinstance(layers, str) else layers
    known = find_layers(model, patterns)
    ordered = {name: None for pattern in patterns for name in find_layers(model, pattern)}
    return [name for name in ordered if name in known]


def trace(root: nn.Module, layers: list[str], sample: Any) -> Trace:
    """Run the model once in eval mode on `sample`, without gradients, and leave no mark.

    Raises:
        ValueError: If a layer does not run just once, or not in the order given, or the pass fails.
    """
    candidates = list(_inputs(root)) if sample is None else [sample]
    first: Exception | None = None
    for candidate in candidates:
        try:
            found = _run(root, layers, candidate)
        except Exception as error:  # any model may fail in any way on a guessed input
            first = first or error
            continue
        _check_order(found)
        return found
    raise failed_pass(first, guessed=sample is None) from None


def logits_of(output: Any) -> Tensor:
    """The logits in whatever a model returns.

    Raises:
        ValueError: If there are none `(sample, class)` or `(sample, token, class)`.
    """
    # A tensor first: torch.compile would warn of an attribute that tensors lack.
    found = None if isinstance(output, Tensor) else getattr(output, "logits", None)
    logits = found if isinstance(found, Tensor) else first_tensor(output)
    if logits is None or logits.dim() not in (2, 3) or not logits.is_floating_point():
        got = type(output).__name__ if logits is None else f"shape {tuple(logits.shape)}"
        raise ValueError(
            f"`model`: expected logits (sample, class) or (sample, token, class), got {got}"
        )
    return logits


def _run(root: nn.Module, layers: list[str], sample: Any) -> Trace:
    found = Trace(layers)
    clock, counter = iter(range(10**9)), FlopCounter()
    running: dict[str, list[Call]] = {}

    def begin(name: str, args: Any, kwargs: Any) -> None:
        late = bool(found.hidden.get(layers[-1]) is not None)
        taken = first_tensor((*args, *kwargs.values())) if late else None
        one = Call(name, next(clock), taken=None if taken is None else taken.clone())
        found.calls.append(one)
        running.setdefault(name, []).append(one)

    def end(name: str, output: Any) -> None:
        one, given = running[name].pop(), first_tensor(output)
        one.ended = next(clock)
        if one.taken is not None:
            one.given = given
        if name in layers and given is not None:
            found.hidden[name] = given.clone()
            found.flops[name] = counter.get_total_flops()

    with ExitStack() as stack:
        stack.enter_context(preserving(root, values=not is_sharded(root)))
        stack.enter_context(resharding(root))
        stack.enter_context(evaluating(root))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for name, module in root.named_modules():
            stack.enter_context(
                module.register_forward_pre_hook(
                    lambda _, args, kwargs, name=name: begin(name, args, kwargs),
                    with_kwargs=True,
                )
            )
            stack.enter_context(
                module.register_forward_hook(lambda _, __, output, name=name: end(name, output))
            )
        with counter:
            output = call_model(root, sample)
        found.logits = logits_of(output)
        found.total_flops = counter.get_total_flops()
    return found


def _check_order(found: Trace) -> None:
    ran = [c.name for c in sorted(found.calls, key=lambda c: c.ended) if c.name in found.layers]
    for name in found.layers:
        if ran.count(name) != 1:
            raise ValueError(
                f"`layers` at {name!r}: expected a layer that runs once in a forward pass, this "
                f"one runs {ran.count(name)} times"
            )
        if name not in found.hidden or not found.hidden[name].is_floating_point():
            raise ValueError(f"`layers` at {name!r}: expected a layer that yields floating numbers")
    if ran != found.layers:
        raise ValueError(
            f"`layers`: expected them in forward order, {', '.join(ran)}; got "
            f"{', '.join(found.layers)}"
        )


def _inputs(root: nn.Module) -> Any:
    """Inputs that a model of this kind usually takes: token ids, or noise of a usual size."""
    generator = torch.Generator().manual_seed(0)
    kinds = (nn.Embedding, nn.Linear, nn.modules.conv._ConvNd)
    first = next((m for m in root.modules() if isinstance(m, kinds)), None)
    if isinstance(first, nn.Embedding):
        ids = torch.randint(first.num_embeddings, (2, _TOKENS), generator=generator)
        yield ids.to(device_of(root))
    for zeros in likely_inputs(root):
        # Noise, not zeros: equal positions would not tell a mean from a first token.
        yield torch.randn(zeros.shape, generator=generator).to(zeros)
