"""The heads of a model's exits as plain functions, wherever they come from."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from probes._exit_training.forward_trace import ForwardTrace
from probes._exit_training.head import LAST_TOKEN
from probes._exit_training.losses import Exits
from probes._exit_training.resolve_heads import HeadOption, NormOption, resolve_heads

HeadFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ExitHeads:
    """A model and its exits: for each layer, a function from its output to logits.

    The last layer has one only where that is known to give the model's own output.
    `reads_last_token`: whether the model's own way reads the last token of a text alone.
    """

    root: nn.Module
    forward_trace: ForwardTrace
    functions: dict[str, HeadFunction]
    reads_last_token: bool = False

    @property
    def layers(self) -> list[str]:
        """Names of all exits, the model's last layer last."""
        return self.forward_trace.layers

    @property
    def has_tokens(self) -> bool:
        """Whether the logits are `(sample, token, class)`."""
        return self.forward_trace.logits.dim() == 3

    def work_by_token(self) -> bool:
        """Tell whether every head gives a token the same logits when it sees that one alone."""
        hidden = self.forward_trace.hidden
        return self.has_tokens and all(
            _works_by_token(head, hidden[name]) for name, head in self.functions.items()
        )


def resolve_exit_heads(
    root: nn.Module,
    forward_trace: ForwardTrace,
    head: HeadOption | Exits,
    norm: NormOption,
) -> tuple[ExitHeads, str]:
    """Find a function from layer output to logits for each exit.

    Returns:
        The heads, and how the attributes of a result describe them.

    Raises:
        ValueError: If `head` belongs to other layers, or does not fit.
    """
    layers = forward_trace.layers

    # Before the test for callables: a module is one.
    if isinstance(head, Exits):
        if head.layers != layers:
            raise ValueError(f"`head`: expected exits at {layers}, got some at {head.layers}")
        trained = {name: partial(head.logits, name, root=root) for name in layers[:-1]}
        return ExitHeads(root, forward_trace, dict(trained)), "trained"

    if head in ("own", "tuned"):
        raise ValueError(f"`head`: {head} heads are trained; give the Exits that hold them")

    # The model's own head, complete, is checked in every pass.
    is_checked = head == "model" and norm == "auto"
    points, _ = resolve_heads(root, forward_trace, head, norm, seed=0, last_token=is_checked)
    functions: dict[str, HeadFunction] = {
        name: partial(point.head, root) for name, point in points.items()
    }

    # It gives the model's output from the last layer, too.
    shared_head = next(iter(points.values())).head
    if is_checked:
        functions[layers[-1]] = partial(shared_head, root)
    reads_last_token = any(function_name == LAST_TOKEN for function_name, _ in shared_head.steps)
    return ExitHeads(root, forward_trace, functions, reads_last_token), str(shared_head)


def count_head_flops(heads: ExitHeads) -> list[float]:
    """Count the operations from each layer's output to logits, for one sample."""
    # Here, since torch's counter asks for triton, and says so where there is none.
    from probes._exit_training.flops import FlopCounter

    forward_trace = heads.forward_trace
    head_flops = []
    for name in heads.layers[:-1]:
        with FlopCounter() as counter:
            heads.functions[name](forward_trace.hidden[name])
        head_flops.append(float(counter.get_total_flops()))

    last_layer = heads.layers[-1]
    until_last_layer = float(forward_trace.flops[last_layer])
    return [*head_flops, float(forward_trace.total_flops) - until_last_layer]


def _works_by_token(head: HeadFunction, hidden: Tensor) -> bool:
    # A single token does not tell.
    if hidden.shape[1] < 2:
        return False

    # The last token, not the first: a causal head would give the first one the same logits.
    in_context = head(hidden)[:, -1:]
    alone = head(hidden[:, -1:])
    if in_context.shape != alone.shape:
        return False
    # Products of other shapes round otherwise, in half precision by about a thousandth.
    return bool(torch.allclose(in_context, alone, rtol=1e-3, atol=1e-5))
