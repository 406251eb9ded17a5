"""Slow references of some results: plain torch, on the whole batch at once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

import resonance_toolkit as resonance
from tests.fuzz.cases import Case


def check_result(name: str, case: Case, result: Any) -> None:
    """Compare with a slow reference, where there is a cheap one."""
    if name in REFERENCES and not case.words["nan"]:
        REFERENCES[name](case, result)


def _mean_loss(case: Case, weights: dict[str, Tensor]) -> Tensor:
    """In eval mode, whatever the mode of the model; it gets its own back."""
    with resonance.evaluating(case.model):
        outputs = functional_call(case.model, weights, (case.x,))
    return F.cross_entropy(resonance.logits_of(outputs).double(), case.y)


def _check_centre(case: Case, result: Any) -> None:
    if case.is_plain:
        expected = _mean_loss(case, {}).item()
        centre = result["loss"].sel(alpha=0, beta=0).item()
        assert abs(centre - expected) < 1e-4 * max(1, abs(expected)), (centre, expected)


def _check_similarity(case: Case, result: Any) -> None:
    cka = np.diagonal(result["cka"].values)
    assert np.nanmax(abs(cka - 1), initial=0) < 1e-6, cka


def _check_alignment(case: Case, result: Any) -> None:
    cosine = result["cosine"]
    error = abs(cosine.where(cosine.notnull(), 1) - 1).max().item()
    assert error < 1e-6, error


def _check_cosine(case: Case, result: Any) -> None:
    """Of two gradients, each by a backward pass of its own."""
    # Dropout of a model in training draws other masks in each pass.
    if case.words["dtype"] != torch.float64 or case.model.training:
        return

    outputs = resonance.logits_of(case.model(case.x))
    weights = [p for p in case.model.parameters() if p.requires_grad]
    flat = [
        torch.cat(
            [
                torch.zeros_like(p).flatten() if g is None else g.flatten()
                for p, g in zip(
                    weights,
                    torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True),
                    strict=True,
                )
            ]
        )
        for loss in (outputs.square().mean(), outputs.sin().mean())
    ]
    expected = F.cosine_similarity(*flat, dim=0, eps=0).item()
    actual = result["cosine_total"].item()
    assert np.isnan(expected) or abs(actual - expected) < 1e-9, (actual, expected)


def _check_eigenvalues(case: Case, result: Any) -> None:
    """Against the dense Hessian of the last layer."""
    if not case.is_plain or case.words["dtype"] != torch.float64:
        return

    name = "4.weight" if case.words["model"] == "mlp" else "head.weight"
    weight = case.model.get_parameter(name).detach()
    hessian = torch.autograd.functional.hessian(lambda w: _mean_loss(case, {name: w}), weight)
    dense = hessian.reshape(weight.numel(), weight.numel())
    values = torch.linalg.eigvalsh(dense).numpy()
    size = abs(values).max()
    for name, expected in {"largest": values[::-1][:2], "smallest": values[:2]}.items():
        actual = result[name].values
        assert np.abs(actual - expected).max() < 1e-4 * size, (name, actual, expected)


REFERENCES: dict[str, Callable[[Case, Any], None]] = {
    "plain_grid": _check_centre,
    "same_similarity": _check_similarity,
    "plain_alignment": _check_alignment,
    "compare": _check_cosine,
    "plain_curvature": _check_eigenvalues,
}
