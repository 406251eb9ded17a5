"""Curvature of models with text, pixels and several inputs, against matrices written out whole."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader

import landscape
from resonance_toolkit import logits_of, shift_labels
from tests.helpers import door_models
from tests.helpers.state import snapshot

# Few parameters, so that the matrix can be written out; some before attention, some after it.
OVER = {
    "bert_classifier": ["classifier.*", "**.attention.self.query.bias", "**.self.value.bias"],
    "bert_tagger": ["classifier.*", "**.attention.self.query.bias", "**.self.value.bias"],
    "gpt2": ["transformer.h.0.attn.c_attn.bias", "transformer.h.0.mlp.c_fc.weight"],
    "segmenter": ["stem.*", "head.*"],
    "two_inputs": ["right.*", "head.*"],
}


class Written:
    """Loss and logits as functions of one vector of weights, by hand."""

    def __init__(self, name, over):
        self.model, data = getattr(door_models, name)()
        self.args, self.kwargs = (), {}
        if isinstance(data, dict):
            self.kwargs = {key: value for key, value in data.items() if key != "labels"}
            self.targets = data["labels"]
        else:
            inputs, self.targets = data
            self.args = inputs if isinstance(inputs, tuple) else (inputs,)
        if name == "gpt2":
            self.targets = shift_labels(self.targets)
        self.classes_last = name in ("bert_tagger", "gpt2")
        self.data = data
        self.params = {n: dict(self.model.named_parameters())[n] for n in over}

    def logits(self, vector):
        pieces = vector.split([p.numel() for p in self.params.values()])
        weights = {
            name: piece.view_as(p)
            for (name, p), piece in zip(self.params.items(), pieces, strict=True)
        }
        with sdpa_kernel(SDPBackend.MATH):
            outputs = functional_call(self.model, weights, self.args, self.kwargs)
        return logits_of(outputs)

    def loss(self, logits):
        if self.classes_last:
            logits = logits.movedim(-1, 1)

        # The mean over a sample's positions that count, then over samples, one by one.
        losses = [
            F.cross_entropy(logits[i : i + 1], self.targets[i : i + 1]) for i in range(len(logits))
        ]
        return torch.stack(losses).mean()

    def matrix(self, kind):
        start = torch.cat([p.detach().flatten() for p in self.params.values()])
        if kind == "hessian":
            return hessian(lambda vector: self.loss(self.logits(vector)), start).numpy()

        logits = self.logits(start).detach()
        slopes = jacobian(lambda vector: self.logits(vector).flatten(), start)
        inner = hessian(lambda flat: self.loss(flat.view_as(logits)), logits.flatten())
        return (slopes.T @ inner @ slopes).numpy()


@pytest.mark.parametrize("matrix", ["hessian", "gauss-newton"])
@pytest.mark.parametrize("name", list(OVER))
def test_eigenvalues_are_those_of_the_matrix_written_out(name, matrix):
    model, data = getattr(door_models, name)()
    before = snapshot(model)
    settings = {"over": OVER[name], "matrix": matrix, "samples": None, "k": 2, "tolerance": 1e-9}
    found = landscape.curvature(model, data, trace_probes=0, density_runs=0, **settings)
    assert snapshot(model) == before

    (vector,) = landscape.eigenvectors(model, data, **settings | {"k": 1})
    written = Written(name, vector).matrix(matrix)
    eigenvalues = np.linalg.eigvalsh(written)
    np.testing.assert_allclose(found["largest"], eigenvalues[::-1][:2], rtol=1e-7)
    np.testing.assert_allclose(
        found["smallest"][0], eigenvalues[0], rtol=1e-6, atol=1e-9 * eigenvalues[-1]
    )

    # An error of 1e-9 in the value is one of its root in the vector.
    flat = torch.cat([piece.flatten() for piece in vector.values()]).numpy()
    np.testing.assert_allclose(written @ flat, eigenvalues[-1] * flat, atol=1e-4 * eigenvalues[-1])
    assert found.attrs["loss"] == "cross_entropy"
    meaning = "classes: the next token" if name == "gpt2" else "classes"
    assert found.attrs["targets"] == meaning


def test_losses_of_several_outputs_have_a_gauss_newton_matrix():
    # Oracle: half a sum of squares of all that the loss reads, so that the matrix is J' J.
    model, (x, y) = door_models.segmenter()

    def squares(outputs, _targets):
        parts = outputs["out"].square(), outputs["hidden"].square()
        return sum(part.flatten(1).sum(1) for part in parts) / 2

    found = landscape.curvature(
        model, (x, y), loss=squares, matrix="gauss-newton", k=2, tolerance=1e-9, density_runs=0
    )
    names = [name for name, _ in model.named_parameters()]

    def outputs(*parameters):
        both = functional_call(model, dict(zip(names, parameters, strict=True)), (x,))
        return torch.cat([both["out"].flatten(), both["hidden"].flatten()])

    parameters = tuple(p.detach() for p in model.parameters())
    slopes = torch.cat([j.flatten(1) for j in jacobian(outputs, parameters)], dim=1)
    eigenvalues = np.linalg.eigvalsh((slopes.T @ slopes / len(x)).numpy())
    np.testing.assert_allclose(found["largest"], eigenvalues[::-1][:2], rtol=1e-7)


@pytest.mark.parametrize("matrix", ["hessian", "gauss-newton"])
def test_a_loss_without_curvature_in_the_outputs_has_none(matrix):
    model, (x, y) = door_models.two_inputs()
    settings = {"loss": lambda outputs, _: outputs.sum(1), "matrix": matrix, "over": "head.*"}
    found = landscape.curvature(model, (x, y), k=1, trace_probes=1, density_runs=0, **settings)
    assert found["largest"].item() == 0


def test_streamed_text_has_the_curvature_of_the_whole():
    model, batch = door_models.bert_tagger()
    batch["labels"][3] = -100  # the second batch has one text that counts
    rows = [{key: value[i] for key, value in batch.items()} for i in range(6)]
    settings = {"over": "classifier.*", "samples": None, "k": 1, "tolerance": 1e-9}
    settings |= {"trace_probes": 0, "density_runs": 0}
    expected = landscape.curvature(model, batch, **settings)
    streamed = landscape.curvature(model, DataLoader(rows, batch_size=2), **settings)
    np.testing.assert_allclose(streamed["largest"], expected["largest"], rtol=1e-8)
    assert streamed.attrs["n_samples"] == expected.attrs["n_samples"] == 5
    anew = landscape.curvature(model, DataLoader(rows, batch_size=2), memory=0, **settings)
    np.testing.assert_allclose(anew["largest"], expected["largest"], rtol=1e-8)


def test_an_operation_without_a_second_derivative_is_named():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Hardsigmoid(), nn.Linear(4, 2))
    data = torch.randn(5, 3), torch.arange(5) % 2
    before = snapshot(model)
    for verb in (landscape.curvature, landscape.eigenvectors, landscape.curvature_map):
        for matrix in ("hessian", "gauss-newton"):
            with pytest.raises(ValueError, match="no second derivative of the operation hardsig"):
                verb(model, data, matrix=matrix)
    assert snapshot(model) == before

    # The plane itself needs none.
    assert np.isfinite(landscape.grid(model, data, size=3)["loss"]).all()


def test_what_is_not_finite_has_no_curvature():
    model, ((left, right), y) = door_models.two_inputs()
    left[0, 0] = torch.nan
    with pytest.warns(UserWarning, match="the curvature is not finite") as told:
        found = landscape.curvature(model, ((left, right), y))
    assert len(told) == 1
    assert found["largest"].isnull().all()
