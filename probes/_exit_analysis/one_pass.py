"""The one pass over the data that an exit analysis makes."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from tqdm import tqdm

from probes._exit_analysis.token_statistics import (
    MEASURES,
    cosine,
    in_chunks,
    patience,
    token_statistics,
)
from probes._exit_training.forward_trace import Trace, logits_of
from probes._exit_training.head import is_same
from probes._exit_training.targets import IGNORED, check_exit_targets
from resonance_toolkit import call_model, first_tensor


@dataclass(frozen=True)
class Found:
    """What is known of every token that counts, of a batch or of all."""

    loss: np.ndarray  # (layer, token)
    prediction: np.ndarray  # (layer, token)
    confidence: np.ndarray  # (measure, layer, token)
    sample: np.ndarray
    position: np.ndarray
    target: np.ndarray


@dataclass
class _State:
    """What a layer took and gave in the latest pass."""

    before: Tensor | None = None
    after: Tensor | None = None


def run_exits(
    root: nn.Module,
    names: list[str],
    heads: dict[str, Callable[[Tensor], Tensor]],
    inputs: Any,
    targets: Tensor,
    seen: Trace,
    step: int,
) -> Found:
    """Run the model, `step` samples at a time, and keep a few numbers of every token.

    Raises:
        ValueError: If the targets do not fit.
    """
    by_token = seen.logits.dim() == 3
    cut = by_token and all(_is_by_token(head, seen.hidden[k]) for k, head in heads.items())
    whole, done = _room(len(names), int((targets != IGNORED).sum())), 0
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))  # old code ignores new hooks
        states = {name: _listen(stack, root.get_submodule(name)) for name in names}
        batches = range(0, len(targets), step)
        for i in tqdm(batches, unit="batch", disable=None, leave=False):
            goals = targets[i : i + step]
            output = logits_of(call_model(root, rows_of(inputs, i, i + step)))
            _check(goals, output)
            if not by_token and names[-1] in heads:
                _check_way(heads[names[-1]], states[names[-1]].after, output)
            piece = _batch(states, heads, output, goals, i, cut=cut)
            size = len(piece.target)
            for field in fields(Found):
                getattr(whole, field.name)[..., done : done + size] = getattr(piece, field.name)
            done += size
            del output  # before the next pass makes another as large
    return whole


def _room(layers: int, tokens: int) -> Found:
    """Where the numbers of all tokens go: filled batch by batch, so that nothing is held twice."""
    if not tokens:
        raise ValueError(f"`data`: expected targets that count, all are {IGNORED}")
    places = (np.empty(tokens, dtype=np.int64) for _ in range(3))
    return Found(
        np.empty((layers, tokens)),
        np.empty((layers, tokens), dtype=np.int64),
        np.empty((len(MEASURES), layers, tokens)),
        *places,
    )


def rows_of(inputs: Any, start: int, stop: int) -> Any:
    """Some samples of inputs, however nested."""
    return tree_map(lambda leaf: leaf[start:stop], inputs)


def _batch(
    states: dict[str, _State],
    heads: dict[str, Callable[[Tensor], Tensor]],
    output: Tensor,
    targets: Tensor,
    first: int,
    *,
    cut: bool,
) -> Found:
    kept = targets != IGNORED
    goals, classes = targets[kept].long(), output.shape[-1]
    losses, guesses, sure = [], [], []
    for index, (name, state) in enumerate(states.items()):
        assert state.after is not None
        if index == len(states) - 1:
            chunks = in_chunks(output, kept, classes, _as_it_is, by_token=output.dim() == 3)
        else:
            chunks = in_chunks(state.after, kept, classes, heads[name], by_token=cut)
        done, rows = 0, []
        for logits in chunks:
            rows.append(
                token_statistics(logits, goals[done : done + len(logits)].to(logits.device))
            )
            done += len(logits)
        numbers = torch.cat([n for n, _ in rows], dim=1).cpu().double()
        alike = cosine(state.before, state.after, by_token=output.dim() == 3)
        losses.append(numbers[0])
        sure.append(torch.cat([numbers[1:], alike.to(kept.device)[kept].cpu().double()[None]]))
        guesses.append(torch.cat([g for _, g in rows]).cpu())
        state.before = state.after = None
    predictions = torch.stack(guesses)
    confidence = torch.cat([torch.stack(sure, dim=1), patience(predictions)[None]])
    where = kept.nonzero().cpu().numpy()
    return Found(
        torch.stack(losses).numpy(),
        predictions.numpy(),
        confidence.numpy(),
        where[:, 0] + first,
        where[:, 1] if where.shape[1] > 1 else np.zeros(len(where), dtype=np.int64),
        goals.cpu().numpy(),
    )


def _listen(stack: ExitStack, module: nn.Module) -> _State:
    state = _State()

    def before(_: nn.Module, args: Any, kwargs: Any) -> None:
        taken = first_tensor((*args, *kwargs.values()))
        state.before = None if taken is None else taken.clone()  # a layer may write to its input

    def after(_: nn.Module, __: Any, output: Any) -> None:
        given = first_tensor(output)
        state.after = None if given is None else given.clone()

    stack.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
    stack.enter_context(module.register_forward_hook(after))
    return state


def _is_by_token(head: Callable[[Tensor], Tensor], hidden: Tensor) -> bool:
    """Whether a head gives a token the same logits when it sees that one alone."""
    if hidden.shape[1] < 2:  # a single one does not tell
        return False
    whole, alone = head(hidden)[:, -1:], head(hidden[:, -1:])
    return whole.shape == alone.shape and bool(torch.allclose(whole, alone, rtol=1e-3, atol=1e-5))


def _check_way(head: Callable[[Tensor], Tensor], hidden: Tensor | None, output: Tensor) -> None:
    # Pooling may look at the input: a mean over what is not padding is a plain mean without any.
    if hidden is None or not is_same(head(hidden), output):
        raise ValueError(
            "`head`: the model's way from its last layer to its output is not the same for all "
            "data (does it look at padding?); give a callable"
        )


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _check(targets: Tensor, output: Tensor) -> None:
    if isinstance(targets, Tensor) and targets.is_floating_point():
        raise ValueError("`data`: expected class indices as targets, got floating numbers")
    if not bool((targets == IGNORED).all()):
        check_exit_targets(targets.cpu(), output)
