"""The one pass over the data that an exit analysis makes.

For each batch the model runs once, with hooks that keep what its layers took and gave; the heads
turn that into logits, some rows at a time; of these a few numbers per token go into arrays that
were made for all tokens beforehand.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probes._exit_analysis.exit_heads import ExitHeads, HeadFunction
from probes._exit_analysis.token_statistics import (
    MEASURES,
    cosine_of_states,
    logits_in_chunks,
    patience,
    token_statistics,
)
from probes._exit_training.forward_trace import first_argument
from probes._exit_training.model_head import is_same
from probes._exit_training.targets import check_exit_targets, exit_logits
from probes._model.cut_batches import cut_batches
from resonance_toolkit import IGNORED_TARGET, Batches, call_model, first_tensor, track

# In a batch, by default, as far as memory for the model's logits allows.
_SAMPLES_PER_BATCH = 256


@dataclass(frozen=True)
class TokenRecords:
    """What is kept of every token that counts, of a batch or of all."""

    loss: np.ndarray  # (layer, token)
    prediction: np.ndarray  # (layer, token)
    confidence: np.ndarray  # (measure, layer, token)
    sample: np.ndarray
    position: np.ndarray
    target: np.ndarray


@dataclass
class _LayerStates:
    """What a layer took and gave in the latest pass."""

    input: Tensor | None = None
    output: Tensor | None = None


def run_exits(heads: ExitHeads, pieces: Batches, batch_size: int | None) -> TokenRecords:
    """Run the model, some samples at a time, and keep a few numbers of every token.

    Args:
        heads: The model and its exits.
        pieces: All data as pairs `(inputs, targets)`, in one piece for each shape of samples.
        batch_size: Samples run together; as many as memory for logits allows if None.

    Raises:
        TypeError: If targets are not tensors.
        ValueError: If the targets do not fit.
    """
    layers = heads.layers
    last_layer = layers[-1]
    by_token = heads.work_by_token()

    records = _empty_records(len(layers), _count_tokens(pieces))
    n_classes = heads.forward_trace.logits.shape[-1]
    batches = cut_batches(pieces, n_classes, most_samples=_SAMPLES_PER_BATCH, batch_size=batch_size)
    n_recorded = 0

    with ExitStack() as stack:
        # Code that was compiled earlier would ignore the hooks.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        states = {name: _keep_states(stack, heads.root.get_submodule(name)) for name in layers}

        first_sample = 0
        for inputs, targets in track(batches, "exits", unit="batch"):
            logits = exit_logits(call_model(heads.root, inputs))

            # A batch in which nothing counts is fine as long as another one has something.
            if bool((targets != IGNORED_TARGET).any()):
                check_exit_targets(targets.cpu(), logits)
            if not heads.has_tokens and last_layer in heads.functions:
                _check_same_path(heads.functions[last_layer], states[last_layer].output, logits)

            batch = _record_batch(states, heads, logits, targets, first_sample, by_token=by_token)
            n_tokens = len(batch.target)
            _copy_into(records, batch, slice(n_recorded, n_recorded + n_tokens))
            n_recorded += n_tokens
            first_sample += len(targets)

            del logits  # before the next pass makes another as large

    return records


def _count_tokens(pieces: Batches) -> int:
    for _, targets in pieces:
        if not isinstance(targets, Tensor):
            raise TypeError(
                "`data`: expected class indices as targets, got a "
                f"{type(targets).__name__} instead of a tensor"
            )
        if targets.is_floating_point():
            raise ValueError("`data`: expected class indices as targets, got floating numbers")
    return sum(int((targets != IGNORED_TARGET).sum()) for _, targets in pieces)


def _empty_records(n_layers: int, n_tokens: int) -> TokenRecords:
    """Make the arrays for all tokens: filled batch by batch, nothing is held twice."""
    if not n_tokens:
        raise ValueError(f"`data`: expected targets that count, all are {IGNORED_TARGET}")

    return TokenRecords(
        loss=np.empty((n_layers, n_tokens)),
        prediction=np.empty((n_layers, n_tokens), dtype=np.int64),
        confidence=np.empty((len(MEASURES), n_layers, n_tokens)),
        sample=np.empty(n_tokens, dtype=np.int64),
        position=np.empty(n_tokens, dtype=np.int64),
        target=np.empty(n_tokens, dtype=np.int64),
    )


def _copy_into(records: TokenRecords, batch: TokenRecords, tokens: slice) -> None:
    for field in fields(TokenRecords):
        getattr(records, field.name)[..., tokens] = getattr(batch, field.name)


def _record_batch(
    states: dict[str, _LayerStates],
    heads: ExitHeads,
    model_logits: Tensor,
    targets: Tensor,
    first_sample: int,
    *,
    by_token: bool,
) -> TokenRecords:
    is_counted = targets != IGNORED_TARGET
    counted_targets = targets[is_counted].long()
    n_classes = model_logits.shape[-1]

    losses = []
    predictions = []
    confidences = []
    for name, state in states.items():
        assert state.output is not None

        # The last layer's numbers are those of the model's own output, with nothing recomputed.
        if name == heads.layers[-1]:
            chunks = logits_in_chunks(
                model_logits, is_counted, n_classes, _unchanged, by_token=heads.has_tokens
            )
        else:
            head = heads.functions[name]
            chunks = logits_in_chunks(state.output, is_counted, n_classes, head, by_token=by_token)

        numbers, prediction = _statistics_of_layer(chunks, counted_targets)
        loss, *from_logits = numbers.cpu().double()
        similarity = cosine_of_states(state.input, state.output, by_token=heads.has_tokens)
        similarity = similarity.to(is_counted.device)[is_counted].cpu().double()

        losses.append(loss)
        predictions.append(prediction.cpu())
        confidences.append(torch.stack([*from_logits, similarity]))
        state.input = state.output = None

    all_predictions = torch.stack(predictions)
    all_confidences = [torch.stack(confidences, dim=1), patience(all_predictions)[None]]
    places = is_counted.nonzero().cpu().numpy()
    return TokenRecords(
        loss=torch.stack(losses).numpy(),
        prediction=all_predictions.numpy(),
        confidence=torch.cat(all_confidences).numpy(),
        sample=places[:, 0] + first_sample,
        position=places[:, 1] if places.shape[1] > 1 else np.zeros(len(places), dtype=np.int64),
        target=counted_targets.cpu().numpy(),
    )


def _statistics_of_layer(chunks: Iterator[Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return numbers `(4, token)` and predictions `(token,)` from logits that come in chunks."""
    numbers = []
    predictions = []
    n_done = 0

    for logits in chunks:
        chunk_targets = targets[n_done : n_done + len(logits)].to(logits.device)
        chunk_numbers, chunk_predictions = token_statistics(logits, chunk_targets)
        numbers.append(chunk_numbers)
        predictions.append(chunk_predictions)
        n_done += len(logits)

    return torch.cat(numbers, dim=1), torch.cat(predictions)


def _keep_states(stack: ExitStack, module: nn.Module) -> _LayerStates:
    states = _LayerStates()

    # Clones: a layer may write to its input, and what follows it to its output.
    def keep_input(_: nn.Module, args: Any, kwargs: Any) -> None:
        argument = first_argument(args, kwargs)
        states.input = None if argument is None else argument.clone()

    def keep_output(_: nn.Module, __: Any, output: Any) -> None:
        tensor = first_tensor(output)
        states.output = None if tensor is None else tensor.clone()

    stack.enter_context(module.register_forward_pre_hook(keep_input, with_kwargs=True))
    stack.enter_context(module.register_forward_hook(keep_output))
    return states


def _check_same_path(head: HeadFunction, hidden: Tensor | None, logits: Tensor) -> None:
    # Pooling may look at the input: a mean over what is not padding is a plain mean without any.
    if hidden is None or not is_same(head(hidden), logits):
        raise ValueError(
            "`head`: the model's way from its last layer to its output is not the same for all "
            "data (does it look at padding?); give a callable"
        )


def _unchanged(logits: Tensor) -> Tensor:
    return logits
