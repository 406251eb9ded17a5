"""Every instrument, on one model with its own data: does it work, or what does it say?

`examine` runs all instruments on a `Case` and gives a `Cell` for each. An instrument works if it
ends, its numbers are finite, and those that can be told at once are right: the loss at the centre
of a landscape, or before a nudge, is the model's own.
"""

import copy
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

import attention
import gradients
import landscape
import nudging
import probes
from resonance_toolkit import (
    call_model,
    default_loss,
    evaluating,
    leave_out_uncounted,
    logits_of,
    take,
)

Outcome = Literal["works", "refused", "not applicable", "failed"]

# A model whose nature an instrument does not meet: without attention there is no map, and a head
# reads only layers that look like the last.
_NOT_APPLICABLE = {
    "attention.capture": re.compile(r"^`model`: .*no attention"),
    "probes.exits": re.compile(
        r"A layer of another width needs head='own'|expected logits \(sample, class\) or"
        r"|expected a layer that runs once in a forward pass, this one runs [2-9]"
    ),
}

# Losses are compared in single precision, over batches of other sizes.
_TOLERANCE = 1e-3

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("probes", "landscape", "gradients", "attention", "nudging", "resonance_toolkit")


@dataclass(frozen=True)
class Case:
    """A model and data as its ecosystem makes them."""

    model: nn.Module
    data: Any


@dataclass(frozen=True)
class Cell:
    """What came of one instrument on one model; `sentence` says why it is not more."""

    outcome: Outcome
    sentence: str = ""


class WrongValueError(Exception):
    """A result that is not what the model itself gives."""


class NotFiniteError(WrongValueError):
    """A result that is no number."""


class NothingToMeasure(Exception):  # no error, but an answer
    """A model that has nothing of what an instrument measures."""


def examine(case: Case) -> dict[str, Cell]:
    """Run every instrument on a model, each on a copy of its own."""
    return {name: _run(name, instrument, case) for name, instrument in INSTRUMENTS.items()}


def _run(name: str, instrument: Callable[[Case], str | None], case: Case) -> Cell:
    own_case = Case(copy.deepcopy(case.model), case.data)
    torch.manual_seed(0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            note = instrument(own_case)
        except NothingToMeasure as reason:
            return Cell("not applicable", str(reason))
        except NotFiniteError as error:
            # What is told beside a result of NaN is as good as a refusal.
            told = [str(warning.message) for warning in caught]
            sentences = [text for text in told if "not finite" in text and _names_argument(text)]
            return Cell("refused", sentences[0]) if sentences else _judge(name, error)
        except Exception as error:
            return _judge(name, error)
    return Cell("works", note or "")


def _judge(name: str, error: Exception) -> Cell:
    # Where the user's own code failed follows on further lines, with the paths of this machine.
    sentence = " ".join(str(error).partition("\n")[0].split())
    if not _is_refusal(error):
        return Cell("failed", f"{type(error).__name__}: {sentence}")

    pattern = _NOT_APPLICABLE.get(name)
    if pattern is not None and pattern.search(sentence):
        return Cell("not applicable", sentence)
    return Cell("refused", sentence)


def _is_refusal(error: Exception) -> bool:
    """Tell whether the toolkit itself raised an error, and one that names an argument."""
    frames = traceback.extract_tb(error.__traceback__)
    folders = [_ROOT / package for package in _PACKAGES]
    is_ours = any(Path(frames[-1].filename).is_relative_to(folder) for folder in folders)

    is_usual = isinstance(error, ValueError | TypeError | RuntimeError)
    return is_ours and is_usual and _names_argument(str(error))


def _names_argument(sentence: str) -> bool:
    return re.search(r"`\w+=?`", sentence) is not None


def _measure_probe(case: Case) -> str:
    model = case.model.train()
    ((inputs, targets),) = take(case.data, None, model=model, batch_size=None)

    # Targets of `take` are at the positions that predict them.
    probe, note = _attach(model, inputs)
    outputs = call_model(model, inputs)
    auxiliary = probe.loss(targets, shift=False)
    _check_finite("the probe's loss", auxiliary.item())

    # By itself first: the main loss would fill the gradients of the layers anyway.
    auxiliary.backward(retain_graph=True)
    if not any(_has_gradient(model.get_submodule(layer)) for layer in probe.layers):
        raise WrongValueError("no gradient of the probe's loss reached a layer")
    _mean_loss(outputs, targets).backward()
    probe.detach()
    return note


def _attach(model: nn.Module, inputs: Any) -> tuple[probes.Probe, str]:
    """Attach branches without any argument, or else with the one that is asked for."""
    try:
        return probes.attach(model, n=2), ""
    except ValueError as error:
        if "`sample`" not in str(error):
            raise
        return probes.attach(model, n=2, sample=inputs), "given an input batch as `sample`"


def _measure_exits(case: Case) -> None:
    with _untouched(case.model):
        result = probes.exits(case.model, case.data)

    # Of one measure, since others are undefined for some numbers of exits.
    losses = result["cross_entropy"].sel(measure="max softmax")
    _check_finite("the loss of leaving early", losses.values)


def _measure_grid(case: Case) -> None:
    with _untouched(case.model):
        surface = landscape.grid(case.model, case.data, size=3, samples=None)
    _check_loss(case, float(surface["loss"].sel(alpha=0, beta=0)))


def _measure_curvature(case: Case) -> None:
    with _untouched(case.model):
        result = landscape.curvature(
            case.model,
            case.data,
            k=1,
            max_products=4,
            trace_probes=0,
            density_runs=0,
            samples=None,
        )
    _check_finite("the largest eigenvalue", result["largest"].values)


def _measure_trace(case: Case) -> None:
    model = case.model.train()
    ((inputs, targets),) = take(case.data, None, model=model, batch_size=None)

    trace = gradients.Trace(model)
    outputs = call_model(model, inputs)
    main = _mean_loss(outputs, targets)
    trace.backward(main, logits_of(outputs).square().mean())
    trace.close()
    _check_finite("the cosine", trace.to_dataset()["cosine_total"].values)


def _measure_attention(case: Case) -> None:
    with _untouched(case.model):
        result = attention.capture(case.model, case.data)
    _check_finite("the entropy", np.nanmean(result["entropy"].values))


def _measure_nudge(case: Case) -> None:
    with _untouched(case.model):
        result = nudging.nudge(case.model, case.data, nudging.backprop())
    _check_loss(case, float(result["loss"]))

    # A block that has no say in the loss is NaN, as its docstring has it.
    if bool((result["zero_credits"] == result.attrs["n_samples"]).all()):
        raise NothingToMeasure("no gradient of the loss reaches the first tensor of a block")
    _check_finite("the change by a nudge", np.nanmean(result["loss_change"].values))


INSTRUMENTS: dict[str, Callable[[Case], str | None]] = {
    "probes.attach": _measure_probe,
    "probes.exits": _measure_exits,
    "landscape.grid": _measure_grid,
    "landscape.curvature": _measure_curvature,
    "gradients.Trace": _measure_trace,
    "attention.capture": _measure_attention,
    "nudging.nudge": _measure_nudge,
}


def _mean_loss(outputs: Any, targets: Tensor) -> Tensor:
    return default_loss([targets])(outputs, targets).mean()


def _check_loss(case: Case, measured: float) -> None:
    """Compare with the model's own loss, of all samples at once."""
    batches = leave_out_uncounted(take(case.data, None, model=case.model, batch_size=None))
    ((inputs, targets),) = batches

    with evaluating(case.model), torch.no_grad():
        expected = _mean_loss(call_model(case.model, inputs), targets).item()

    _check_finite("the model's loss", expected)
    if abs(measured - expected) > _TOLERANCE * max(1, abs(expected)):
        raise WrongValueError(f"a loss of {measured:.6g}, the model's own is {expected:.6g}")


def _check_finite(what: str, values: Any) -> None:
    if not np.isfinite(np.asarray(values, dtype=float)).all():
        raise NotFiniteError(f"{what} is not finite")


def _has_gradient(module: nn.Module) -> bool:
    return any(
        parameter.grad is not None and bool(parameter.grad.any())
        for parameter in module.parameters()
    )


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Refuse a body that changes a model."""
    values_before = {name: value.clone() for name, value in model.state_dict().items()}
    yield
    values = model.state_dict()
    if not all(torch.equal(value, values[name]) for name, value in values_before.items()):
        raise WrongValueError("the model was changed")
