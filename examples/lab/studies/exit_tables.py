"""What the early-exit script prints beside the published tables: baselines, and real decoding."""

import time
from collections.abc import Sequence

import numpy as np
import xarray as xr

import probes
from lab.backbones.character_model import CharacterModel
from lab.data.text import Corpus, windows
from lab.studies.exit_study import TAU, interval

PROMPT = 8  # characters that are read before the exits are used


def show_baselines(result: xr.Dataset) -> str:
    """Write what the published tables lack: the baselines beside every routed row.

    Args:
        result: From `lab.studies.exit_study.measure_variants`.
    """
    table = result.sel(measure="max softmax", exit="layers.0")
    standard = table["fixed_perplexity"].sel(variant="standard").isel(layer=-1)

    lines = [f"at threshold {TAU}; mean +- half a 95 % interval over seeds"]
    for name in table["variant"].values:
        row = table.sel(variant=name)
        cell = row.sel(threshold=TAU)
        deep = row["fixed_perplexity"].isel(layer=-1)
        shallow = row["fixed_perplexity"].isel(layer=0)
        columns = {
            "all deep": deep,
            "- standard": deep - standard,
            "all shallow": shallow,
            "routed": cell["perplexity"],
            "random": cell["random_perplexity"],
            "oracle": row["oracle_perplexity"],
            "shallow %": 100 * cell["shallow"],
            "compute %": 100 * cell["compute"],
            "with head %": 100 * cell["compute_with_head"],
            "gain/nat": cell["gain"],
        }

        if len(lines) == 1:
            lines.append(f"{'':22}" + "".join(f"{head:>15}" for head in columns))
        means_and_widths = map(interval, columns.values())
        cells = (f"{mean:.3f}+-{half_width:.3f}" for mean, half_width in means_and_widths)
        lines.append(f"{name:22}" + "".join(f"{text:>15}" for text in cells))
    return "\n".join(lines)


def calibrate_threshold(model: CharacterModel, corpus: Corpus, *, exit_rate: float = 0.5) -> float:
    """Find the threshold at which such a share of the calibration part leaves after layer 0."""
    record = probes.record_exits(model, windows(corpus.calibration), "layers.*")
    calibration = probes.calibrate_exits(record, exit_rate=exit_rate)
    return float(calibration["tau"].sel(measure="max softmax", exit="layers.0"))


def show_decoding(
    model: CharacterModel, corpus: Corpus, *, samples: int, thresholds: Sequence[float]
) -> str:
    """Read validation text with layers really skipped: perplexity, and time beside the formula."""
    ids = windows(corpus.validation)[0][:samples]
    prompt, continuation = ids[:, :PROMPT], ids[:, PROMPT:]
    probes.generate(model, prompt[:1], 8)  # first calls are slower

    # No confidence reaches 1.01: the first row runs all layers, and is what times are divided by.
    ways = [(1.01, "recompute")]
    ways += [(tau, skipped) for tau in thresholds for skipped in ("recompute", "propagate")]

    lines = [f"{'decoding':34}     PPL  formula  counted  measured"]
    full_seconds = None
    for tau, skipped in ways:
        start = time.process_time()
        decoded = probes.generate(
            model,
            prompt,
            continuation.shape[1],
            layers="layers.0",
            threshold=tau,
            skipped=skipped,
            follow=continuation,
        )
        seconds = time.process_time() - start
        full_seconds = full_seconds or seconds

        numbers = (
            np.exp(decoded["cross_entropy"].mean()),
            decoded["compute"],
            decoded["compute_with_head"],
            seconds / full_seconds,
        )
        cells = " ".join(f"{float(number):8.3f}" for number in numbers)
        lines.append(f"threshold {tau:4.2f}, {skipped:18}" + cells)
    return "\n".join(lines)
