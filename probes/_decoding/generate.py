from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from tqdm import tqdm

from probes._decoding.cost import compute_of, count_flops, named
from probes._decoding.decodable import Decodable, Decoding, as_decodable
from probes._decoding.settings import Settings, check, check_reach
from resonance_toolkit import device_of, evaluating, preserving_rng, provenance, unwrap

NAMES = {
    "token": ("chosen token", None),
    "depth": ("layers passed before the token was chosen", "layer"),
    "confidence": ("largest softmax probability where it was chosen", None),
    "cross_entropy": ("cross-entropy where it was chosen", "nat"),
    "correct": ("whether the choice is the text followed", None),
    "layers_run": ("layers run on a position for this token, caught up ones included", "layer"),
    "projections": ("skipped layers that got keys and values alone", "layer"),
    "heads_run": ("times the head was applied", None),
}
KINDS = dict.fromkeys(("confidence", "cross_entropy", "correct"), float)  # all else is counted


@torch.no_grad()
def generate(
    model: nn.Module,
    prompt: Tensor,
    tokens: int,
    *,
    layers: str | Sequence[str] = (),
    threshold: float | Sequence[float] = 0.9,
    skipped: str = "propagate",
    temperature: float = 0.0,
    follow: Tensor | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Write text with layers really skipped: a token leaves at the first exit that is sure enough.

    A token leaves after a layer of `layers` if its largest softmax probability there, through the
    model's head, is at least the threshold; else after the last layer. The prompt, but for its last
    token, passes all layers. A later token that goes deeper needs keys and values that skipped
    layers never made. What it gets is `skipped`:

    - `"propagate"`: the state at the exit stands in for the input of every deeper layer, of which
      only keys and values are computed. The work saved is real; what deep tokens see is an
      approximation once a token has left early. Exact if none leaves, or if all leave at one exit.
    - `"recompute"`: deeper layers run late, on all positions they lack at once. Every distribution
      is that of the full model's own pass over the text, read at the exit: this is what
      an analysis of exits from one pass describes. But one deep token pays for all before it,
      so in total only the layers above tokens after the last deep one are saved.

    Args:
        model: A `probes.Decodable`, in eval mode; left as it was found.
        prompt: Tokens to begin with, `(sample, position)` or `(position,)`.
        tokens: How many to write after it.
        layers: Names or patterns of the layers after which a token may leave. After the last one
            all do, whether it is named or not.
        threshold: One for all early exits, or one each. Above 1 none leaves early, at 0 all do.
        skipped: `"propagate"` or `"recompute"`.
        temperature: 0 takes the likeliest token; else logits are divided by it and drawn from.
        follow: Text `(sample, tokens)` to read on with, whatever the model would choose.
        seed: Of the draws, which are the same for every threshold.

    Returns:
        Dataset over `(sample, position)` with `token` (the model's choice), `depth`, `confidence`,
        `cross_entropy` (of the choice, or of `follow`), `correct` (1 if the choice is what
        `follow` has, else 0; NaN without `follow`) and the work done for it: `layers_run`,
        `projections`, `heads_run`. `compute` is the mean depth over the number of layers;
        `compute_with_head` counts the operations of all three, against a full pass with one head,
        without the products with keys and values of other positions.

    Raises:
        TypeError: If the model is no `Decodable`, or a tensor has no integers.
        ValueError: If an argument is out of range, or a layer is none of the model's, or the model
            is sharded.

    Examples:
        See `examples/early_exit.py`.
    """
    decoder = as_decodable(unwrap(model))
    device = device_of(model)
    with preserving_rng([device]), evaluating(model):
        flops, vocabulary = count_flops(decoder, device)
        settings = check(
            model, vocabulary, prompt, tokens, layers, threshold, skipped, temperature, follow
        )
        check_reach(decoder, settings.prompt.shape[1] + tokens - 1, device)
        generator = torch.Generator().manual_seed(seed)
        draws = torch.rand(len(settings.prompt), tokens, generator=generator, dtype=torch.float64)
        rows = [
            _one(decoder, settings, row, draws[row].tolist(), device)
            for row in tqdm(range(len(settings.prompt)), unit="sample", disable=None)
        ]
    values = np.array(rows).transpose(2, 0, 1)  # (variable, sample, position)
    start = settings.prompt.shape[1]
    return xr.Dataset(
        {
            name: (("sample", "position"), value.astype(KINDS.get(name, int)), named(*NAMES[name]))
            for name, value in zip(NAMES, values, strict=True)
        }
        | compute_of(dict(zip(NAMES, values, strict=True)), flops, len(decoder.layers)),
        coords={
            "sample": ("sample", range(len(rows)), {"long_name": "prompt"}),
            "position": ("position", range(start, start + tokens), {"long_name": "position"}),
        },
        attrs=provenance(
            "probes.generate",
            model,
            layers=list(settings.exits.values()),
            threshold=list(settings.thresholds),
            skipped=skipped,
            temperature=temperature,
            followed=follow is not None,
            seed=seed,
            **{f"{name}_flops": count for name, count in flops.items()},
        ),
    )


def _one(
    model: Decodable, settings: Settings, row: int, draws: list[float], device: torch.device
) -> list[tuple[float, ...]]:
    """Decode one sequence; the variables of `NAMES` for each position."""
    prompt = settings.prompt[row : row + 1].to(device)
    begin, depth = prompt.shape[1], len(model.layers)
    work = Decoding(model, begin + len(draws) - 1)
    work.append(prompt)
    for layer in range(depth if begin > 1 else 0):
        work.run(layer, begin - 1)
    result: list[tuple[float, ...]] = []
    for step, draw in enumerate(draws):
        end, layers_run, heads_run = begin + step, 0, 0
        for passed in range(1, depth + 1):
            layers_run += work.run(passed - 1, end)
            if passed == depth or passed in settings.exits:
                heads_run += 1
                logits = model.head(work.state(passed, end - 1, end))[0, -1].double()
                confidence = float(logits.softmax(0).max())
                if passed == depth or confidence >= settings.threshold(passed):
                    break
        projections = 0
        if settings.propagate and passed < depth:
            projections = work.propagate(passed, end)
        token = _choose(logits, settings.temperature, draw)
        told, correct = token, float("nan")
        if settings.follow is not None:
            told = int(settings.follow[row, step])
            correct = float(token == told)
        entropy = -float(logits.log_softmax(0)[told])
        seen = (token, passed, confidence, entropy, correct)
        result.append((*seen, layers_run, projections, heads_run))
        if step + 1 < len(draws):
            work.append(torch.tensor([[told]], device=device))
    return result


def _choose(logits: Tensor, temperature: float, draw: float) -> int:
    if temperature == 0:
        return int(logits.argmax())
    heap = (logits / temperature).softmax(0).cumsum(0).cpu()
    return min(int(torch.searchsorted(heap, draw * float(heap[-1]), right=True)), len(heap) - 1)
