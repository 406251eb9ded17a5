from collections.abc import Sequence
from typing import NamedTuple, get_args

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from probes._decoding.cost import compute_variables, count_flops, variable_attributes
from probes._decoding.decodable import Decodable, as_decodable
from probes._decoding.sequence_state import SequenceState
from probes._decoding.settings import (
    DecodingSettings,
    SkippedLayers,
    check_exit_thresholds,
    check_reach,
    check_texts,
    find_early_exits,
)
from resonance_toolkit import (
    check_choice,
    check_not_negative,
    check_whole,
    device_of,
    devices_of,
    evaluating,
    preserving_rng,
    provenance,
    track,
    unwrap,
    widest_float,
)


class _DecodedToken(NamedTuple):
    """One position of the result."""

    token: int
    depth: int
    confidence: float
    cross_entropy: float
    correct: float
    layers_run: int
    projections: int
    heads_run: int


# Meaning and units of each.
_VARIABLES: dict[str, tuple[str, str | None]] = {
    "token": ("chosen token", None),
    "depth": ("layers passed before the token was chosen", "layer"),
    "confidence": ("largest softmax probability where it was chosen", None),
    "cross_entropy": ("cross-entropy where it was chosen", "nat"),
    "correct": ("whether the choice is the text followed", None),
    "layers_run": ("layers run on a position for this token, caught up ones included", "layer"),
    "projections": ("skipped layers that got keys and values alone", "layer"),
    "heads_run": ("times the head was applied", None),
}
_REAL_NUMBERS = ("confidence", "cross_entropy", "correct")  # all others are counts


@torch.no_grad()
def generate(
    model: nn.Module,
    prompt: Tensor,
    tokens: int,
    *,
    layers: str | Sequence[str] = (),
    threshold: float | Sequence[float] = 0.9,
    skipped: SkippedLayers = "propagate",
    temperature: float = 0.0,
    follow: Tensor | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Generate text and really skip layers: a token leaves at the first confident exit.

    A token leaves after a layer of `layers` if its largest softmax probability there, through the
    model's head, is at least the threshold; otherwise it leaves after the last layer. The prompt,
    except its last token, passes all layers. A later token that goes deeper needs keys and values
    that the skipped layers did not compute. `skipped` says where these come from:

    - `"propagate"`: the state at the exit is used as the input of every deeper layer, of which
      only keys and values are computed. This saves work, but once a token has left early, what
      deeper tokens see is an approximation. It is exact if no token leaves, or if all leave at the
      same exit.
    - `"recompute"`: deeper layers run later, on all positions that they lack at once. Every
      distribution is that of the full model's own pass over the text, read at the exit, which is
      what `exits` analyses. But one deep token pays for all tokens before it, so in total only the
      layers above the tokens after the last deep one are saved.

    Args:
        model: A `probes.Decodable`, in eval mode; left as it was found.
        prompt: Tokens to begin with, `(sample, position)` or `(position,)`.
        tokens: How many tokens to generate after it.
        layers: Names or patterns of the layers after which a token may leave. After the model's
            last layer every token leaves, whether you name it or not.
        threshold: One for all early exits, or one each. Above 1 no token leaves early, at 0 all do.
        skipped: Where keys and values of skipped layers come from, `"propagate"` or
            `"recompute"`; see above.
        temperature: 0 takes the likeliest token; otherwise tokens are drawn from the logits divided
            by it.
        follow: Text `(sample, tokens)` that the model reads instead of the tokens it chooses.
        seed: Determines the draws, which are the same for every threshold.

    Returns:
        Dataset over `(sample, position)` with `token` (the model's choice), `depth`, `confidence`,
        `cross_entropy` (of the choice, or of `follow`), `correct` (1 if the choice is what
        `follow` has, else 0; NaN without `follow`) and the work done for it: `layers_run`,
        `projections`, `heads_run`. `compute` is the mean depth over the number of layers;
        `compute_with_head` counts the operations of all three, against a full pass with one head,
        without the products with keys and values of other positions.

    Raises:
        TypeError: If the model is not a `Decodable`, or a tensor does not hold integers.
        ValueError: If an argument is out of range, the model has no such layer, or the model is
            sharded.

    Examples:
        >>> class Layer(nn.Module):  # changes nothing
        ...     def project(self, x, positions):
        ...         return (x,)
        ...
        ...     def attend(self, x, positions, keys):
        ...         return x
        >>> class Counter(nn.Module):  # is sure that each number is followed by the next
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layers = nn.ModuleList([Layer(), Layer()])
        ...
        ...     def embed(self, ids, positions):
        ...         return 9 * nn.functional.one_hot(ids + 1, 5).float()
        ...
        ...     def head(self, hidden):
        ...         return hidden
        >>> text = generate(Counter(), torch.tensor([0]), 4, layers="layers.0", threshold=0.9)
        >>> text["token"].values, text["depth"].values
        (array([[1, 2, 3, 4]]), array([[1, 1, 1, 1]]))

        `examples/early_exit.py` has a transformer that can be decoded in this way.
    """
    decoder = as_decodable(unwrap(model))
    tokens = check_whole("tokens", tokens)
    check_choice("skipped", skipped, get_args(SkippedLayers))
    check_not_negative("temperature", temperature)

    device = device_of(model)
    with preserving_rng(devices_of(model)), evaluating(model):
        flops, vocabulary = count_flops(decoder, device)
        prompt_ids, follow_ids = check_texts(prompt, follow, tokens, vocabulary)
        exits = find_early_exits(unwrap(model), layers)
        thresholds = check_exit_thresholds(threshold, exits)
        settings = DecodingSettings(thresholds, skipped == "propagate", temperature)

        n_samples, prompt_length = prompt_ids.shape
        check_reach(decoder, prompt_length + tokens - 1, device)

        # All draws beforehand, so that they do not depend on where tokens leave.
        generator = torch.Generator().manual_seed(seed)
        draws = torch.rand(
            n_samples, tokens, generator=generator, dtype=torch.float64, device="cpu"
        )

        sequences = []
        for row in track(range(n_samples), "generate", unit="sample"):
            row_prompt = prompt_ids[row : row + 1].to(device)
            row_follow = None if follow_ids is None else follow_ids[row].tolist()
            sequences.append(
                _decode_sequence(decoder, settings, row_prompt, row_follow, draws[row].tolist())
            )

    arrays = np.array(sequences).transpose(2, 0, 1)  # (variable, sample, position)
    values = dict(zip(_DecodedToken._fields, arrays, strict=True))
    variables = {
        name: (
            ("sample", "position"),
            values[name].astype(float if name in _REAL_NUMBERS else int),
            variable_attributes(long_name, units),
        )
        for name, (long_name, units) in _VARIABLES.items()
    }
    positions = range(prompt_length, prompt_length + tokens)
    return xr.Dataset(
        variables | compute_variables(values, flops, len(decoder.layers)),
        coords={
            "sample": ("sample", range(n_samples), {"long_name": "prompt"}),
            "position": ("position", positions, {"long_name": "position"}),
        },
        attrs=provenance(
            "probes.generate",
            model,
            layers=list(exits.values()),
            threshold=list(thresholds.values()),
            skipped=skipped,
            temperature=temperature,
            followed=follow is not None,
            n_samples=n_samples,
            seed=seed,
            **{f"{name}_flops": count for name, count in flops.items()},
        ),
    )


def _decode_sequence(
    model: Decodable,
    settings: DecodingSettings,
    prompt: Tensor,
    follow: list[int] | None,
    draws: list[float],
) -> list[_DecodedToken]:
    """Decode one sequence, a token for each draw, after a prompt `(1, position)`."""
    prompt_length = prompt.shape[1]
    n_layers = len(model.layers)
    sequence = SequenceState(model, prompt_length + len(draws) - 1)
    sequence.append(prompt)

    # The last token of the prompt is left to the first step below, which predicts from it.
    if prompt_length > 1:
        for index in range(n_layers):
            sequence.run(index, prompt_length - 1)

    decoded: list[_DecodedToken] = []
    for step, draw in enumerate(draws):
        end = prompt_length + step
        layers_run = 0
        heads_run = 0
        for depth in range(1, n_layers + 1):
            layers_run += sequence.run(depth - 1, end)
            if depth == n_layers or depth in settings.thresholds:
                heads_run += 1
                # The widest type: half precision would round confidences near 1 up to a threshold.
                logits = model.head(sequence.state(depth, end - 1, end))[0, -1]
                logits = logits.to(widest_float(logits.device))
                confidence = float(logits.softmax(0).max())
                if depth == n_layers or confidence >= settings.thresholds[depth]:
                    break

        # Skipped layers get keys and values of this position now, or catch up when they next run.
        projections = 0
        if settings.propagate and depth < n_layers:
            projections = sequence.propagate(depth, end)

        token = _choose_token(logits, settings.temperature, draw)
        next_token = token if follow is None else follow[step]
        decoded.append(
            _DecodedToken(
                token=token,
                depth=depth,
                confidence=confidence,
                cross_entropy=-float(logits.log_softmax(0)[next_token]),
                correct=float("nan") if follow is None else float(token == next_token),
                layers_run=layers_run,
                projections=projections,
                heads_run=heads_run,
            )
        )
        # Nothing is predicted from the last token.
        if step + 1 < len(draws):
            sequence.append(torch.tensor([[next_token]], device=prompt.device))

    return decoded


def _choose_token(logits: Tensor, temperature: float, draw: float) -> int:
    """Take the likeliest token, or invert the distribution function at a uniform draw."""
    if temperature == 0:
        return int(logits.argmax())

    cumulative = (logits / temperature).softmax(0).cumsum(0).cpu()
    # Rounding may leave the sum a little below or above 1.
    total = float(cumulative[-1])
    token = int(torch.searchsorted(cumulative, draw * total, right=True))
    return min(token, len(cumulative) - 1)
