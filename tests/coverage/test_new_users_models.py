"""Models as new users bring them, with their own batches, against losses written out in float64."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

import attention
import gradients
import landscape
import nudging
import probes
from coverage_transformers import ARCHITECTURES
from tests.helpers.probe_reference import branch_loss, weights_of

pytestmark = pytest.mark.filterwarnings("ignore")

TIGHT = {"rtol": 1e-9, "atol": 1e-12}
# Norms and losses of language models go through float32, whatever the weights are.
SINGLE = {"rtol": 1e-6, "atol": 0}

# How a branch of the defaults reads a layer: the class token, the mean over positions that are no
# padding, or every position by itself.
HUGGING_FACE = {
    "bert": "mean",
    "bert, tagging": "positions",
    "distilbert": "mean",
    "roberta": "mean",
    "gpt2": "positions",
    "llama": "positions",
    "mamba": "positions",
    "t5": "positions",
    "vit": "class token",
    "wav2vec2": "mean",
}
CAUSAL = ("gpt2", "llama", "mamba")


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(4, 6)
        self.right = nn.Linear(3, 6)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)) for _ in range(2)
        )
        self.head = nn.Linear(6, 3)

    def forward(self, left, right):
        x = self.left(left) + self.right(right)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Recurrent(nn.Module):
    """A GRU, which returns a tuple, and a class for each text."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.gru = nn.GRU(6, 6, batch_first=True)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, ids):
        states, _ = self.gru(self.embedding(ids))
        return self.head(self.mix(states).tanh().mean(1))


class GraphNetwork(nn.Module):
    """A class for each node of one graph, whose edges come along."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 6)
        self.two = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, nodes, edges):
        x = (edges @ self.one(nodes)).relu()
        return self.head((edges @ self.two(x)).relu())


class TimedUNet(nn.Module):
    """Noise from noisy images and a time."""

    def __init__(self):
        super().__init__()
        self.time = nn.Linear(1, 4)
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 4, 1))
        self.middle = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 4, 1))
        self.up = nn.Sequential(nn.Conv2d(8, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 1, 1))

    def forward(self, image, time):
        down = self.down(image) + self.time(time)[:, :, None, None]
        middle = F.interpolate(self.middle(F.avg_pool2d(down, 2)), scale_factor=2)
        return self.up(torch.cat([down, middle], dim=1))


@dataclass(frozen=True)
class Sample:
    """A model in float64, its data, and what the loss is of: inputs, and targets by position."""

    model: nn.Module
    data: Any
    inputs: Any
    targets: torch.Tensor

    def logits(self):
        with torch.no_grad():
            outputs = call(self.model.eval(), self.inputs)
        if isinstance(outputs, torch.Tensor):
            return outputs
        return next(iter(outputs.values()))


def call(model, inputs):
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def doubled(inputs):
    return {
        name: value.double() if value.is_floating_point() else value
        for name, value in inputs.items()
    }


def hugging_face(name):
    case = ARCHITECTURES[name].build()
    model = case.model.double()
    data = doubled(case.data)
    labels = data["labels"]
    inputs = {key: value for key, value in data.items() if key != "labels"}

    # What each position is compared with, by hand: the token after it, in a causal model.
    targets = labels.clone()
    if name in CAUSAL:
        targets = torch.full_like(labels, -100)
        targets[:, :-1] = labels[:, 1:]
    if name == "t5":
        start = torch.zeros_like(labels[:, :1])
        previous = torch.cat([start, labels[:, :-1]], dim=1)
        inputs["decoder_input_ids"] = previous.masked_fill(previous == -100, 2)
    return Sample(model, data, inputs, targets)


def pair(model, inputs, targets):
    return Sample(model.double(), (inputs, targets), inputs, targets)


def resnet18():
    model = timm.create_model("test_resnet", num_classes=4)
    return pair(model, torch.randn(3, 3, 32, 32).double(), torch.tensor([0, 3, 1]))


def vit_tiny():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=4)
    return pair(model, torch.randn(3, 3, 32, 32).double(), torch.tensor([0, 3, 1]))


def two_inputs():
    inputs = (torch.randn(5, 4).double(), torch.randn(5, 3).double())
    return pair(TwoInputs(), inputs, torch.tensor([0, 1, 2, 0, 1]))


def recurrent():
    return pair(Recurrent(), torch.randint(11, (4, 5)), torch.tensor([0, 1, 2, 0]))


def graph():
    edges = torch.rand(6, 6).double()
    nodes = torch.randn(6, 4).double()
    return pair(GraphNetwork(), (nodes, edges / edges.sum(1, keepdim=True)), torch.arange(6) % 3)


def segmentation():
    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=4
    )
    targets = torch.randint(4, (2, 32, 32))
    targets[0, :5] = -100
    return pair(model, torch.randn(2, 3, 32, 32).double(), targets)


ODD = {
    "resnet": resnet18,
    "vit_tiny": vit_tiny,
    "two inputs": two_inputs,
    "recurrent": recurrent,
    "graph": graph,
    "segmentation": segmentation,
}


def build(name):
    torch.manual_seed(0)
    sample = ODD[name]() if name in ODD else hugging_face(name)
    sample.model.eval()
    return sample


def log_softmax(scores):
    highest = max(scores)
    return [s - highest - math.log(sum(math.exp(t - highest) for t in scores)) for s in scores]


def losses_by_loops(logits, targets):
    """Every sample's losses, position by position, in plain Python."""
    if logits.dim() > 2 and logits.shape[:-1] != targets.shape:
        logits = logits.movedim(1, -1)
    rows = logits.reshape(len(logits), -1, logits.shape[-1]).tolist()
    classes = targets.reshape(len(targets), -1).tolist()
    return [
        [-log_softmax(scores)[y] for scores, y in zip(scores_of, ys, strict=True) if y != -100]
        for scores_of, ys in zip(rows, classes, strict=True)
    ]


def mean_of_means(losses):
    return float(np.mean([np.mean(of_sample) for of_sample in losses]))


@pytest.mark.parametrize("name", [*HUGGING_FACE, *ODD])
def test_landscape_and_nudge_start_from_the_loss_of_a_loop(name):
    sample = build(name)
    expected = mean_of_means(losses_by_loops(sample.logits(), sample.targets))
    tolerance = SINGLE if name in CAUSAL else TIGHT

    surface = landscape.grid(sample.model, sample.data, size=3, samples=None)
    np.testing.assert_allclose(surface["loss"].sel(alpha=0, beta=0), expected, **tolerance)
    assert surface.attrs["n_samples"] == len(sample.targets)

    if name == "graph":
        with pytest.raises(ValueError, match=r"^`data`: .* the nodes of one graph, cannot be"):
            nudging.nudge(sample.model, sample.data, nudging.backprop(), samples=None)
        return

    result = nudging.nudge(sample.model, sample.data, nudging.backprop(), samples=None)
    np.testing.assert_allclose(result["loss"], expected, **tolerance)
    assert bool((result["loss_change"] < 0).all())


@pytest.mark.parametrize("name", [name for name in HUGGING_FACE if name not in CAUSAL])
def test_the_loops_are_the_models_own_loss_where_all_samples_count_alike(name):
    sample = build(name)
    losses = losses_by_loops(sample.logits(), sample.targets)

    # Their own mean is over all positions of a batch, ours over samples.
    own_loss = sample.model(**sample.data).loss.item()
    np.testing.assert_allclose(own_loss, np.mean(np.concatenate(losses)), **TIGHT)


@pytest.mark.parametrize("name", CAUSAL)
def test_the_next_token_is_compared_as_the_models_own_loss_does(name):
    sample = build(name)
    losses = losses_by_loops(sample.logits(), sample.targets)
    own_loss = sample.model(**sample.data).loss.item()
    np.testing.assert_allclose(own_loss, np.mean(np.concatenate(losses)), **SINGLE)


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_branches_equal_a_loop_over_what_they_read(name):
    sample = build(name)
    model = sample.model.train()
    for module in model.modules():
        # What a branch reads must be the same in two passes.
        if isinstance(module, nn.Dropout):
            module.p = 0.0

    layers = "decoder.block.*" if name == "t5" else None
    probe = probes.attach(model, layers, n=2, sample=sample.inputs)
    outputs: dict[str, torch.Tensor] = {}
    for layer in probe.layers:
        model.get_submodule(layer).register_forward_hook(
            lambda _, __, output, layer=layer: outputs.update({layer: output})
        )
    call(model, sample.inputs)
    loss = probe.loss(sample.targets, shift=False).item()

    expected = sum(_branches_by_loops(probe, layer, outputs[layer], sample) for layer in outputs)
    np.testing.assert_allclose(loss, expected, **TIGHT)


def _branches_by_loops(probe, layer, output, sample):
    hidden = output if isinstance(output, torch.Tensor) else output[0]
    way = HUGGING_FACE[next(name for name in HUGGING_FACE if _is_named(sample.model, name))]
    if way == "class token":
        rows, classes = hidden[:, 0], sample.targets
    elif way == "mean":
        mask = sample.inputs.get("attention_mask", torch.ones(hidden.shape[:2]))
        kept = [states[counts == 1] for states, counts in zip(hidden, mask, strict=True)]
        rows, classes = torch.stack([states.mean(0) for states in kept]), sample.targets
    else:
        counted = sample.targets != -100
        rows, classes = hidden[counted], sample.targets[counted]

    losses = [
        branch_loss(row[None], weight, y[None], "bce").item()
        for weight in weights_of(probe, layer)
        for row, y in zip(rows, classes, strict=True)
    ]
    return sum(losses) / len(rows)


def _is_named(model, name):
    return type(model).__name__ == ARCHITECTURES[name].model_class


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit", "wav2vec2", "mamba", "vit_tiny"])
def test_never_leaving_early_costs_the_models_own_loss(name):
    sample = build(name)
    blocks = list(probes.attach(sample.model, n=1, sample=sample.inputs).layers)
    analysis = probes.exits(sample.model, sample.data, blocks)

    # Over all positions at once, as language models are judged.
    never = analysis["cross_entropy"].sel(measure="max softmax", exit="any", threshold=1.01)
    losses = losses_by_loops(sample.logits(), sample.targets)
    np.testing.assert_allclose(never, np.mean(np.concatenate(losses)), **TIGHT)


BIASES = {
    "bert": "classifier.bias",
    "bert, tagging": "classifier.bias",
    "distilbert": "classifier.bias",
    "roberta": "classifier.out_proj.bias",
    "wav2vec2": "classifier.bias",
    "vit": "classifier.bias",
    "two inputs": "head.bias",
    "recurrent": "head.bias",
    "graph": "head.bias",
}


@pytest.mark.parametrize("name", BIASES)
def test_curvature_of_the_last_bias_is_the_covariance_of_the_softmax(name):
    sample = build(name)
    logits = sample.logits().numpy()
    targets = sample.targets.numpy()

    # d^2 L / db^2 = mean of diag(p) - p p', over the positions of a sample, then over samples.
    hessians = []
    for rows, ys in zip(logits, targets, strict=True):
        counted = np.atleast_2d(rows)[np.atleast_1d(ys) != -100]
        shares = np.exp(counted) / np.exp(counted).sum(1, keepdims=True)
        hessians.append(np.mean([np.diag(p) - np.outer(p, p) for p in shares], axis=0))
    expected = np.linalg.eigvalsh(np.mean(hessians, axis=0))[-1]

    result = landscape.curvature(
        sample.model,
        sample.data,
        over=BIASES[name],
        k=1,
        samples=None,
        tolerance=1e-9,
        trace_probes=0,
        density_runs=0,
    )
    np.testing.assert_allclose(result["largest"], [expected], rtol=1e-7)


@pytest.mark.parametrize("name", [*HUGGING_FACE, *ODD])
def test_a_trace_is_the_cosine_of_two_gradients(name):
    sample = build(name)
    outputs = call(sample.model, sample.inputs)
    logits = outputs if isinstance(outputs, torch.Tensor) else next(iter(outputs.values()))
    losses = [logits.logsumexp(1).mean(), logits.square().mean()]
    parameters = [p for p in sample.model.parameters() if p.requires_grad]
    main, auxiliary = (
        torch.cat(
            [
                gradient.flatten()
                for gradient in torch.autograd.grad(
                    loss, parameters, retain_graph=True, materialize_grads=True
                )
            ]
        )
        for loss in losses
    )
    expected = (main @ auxiliary / main.norm() / auxiliary.norm()).item()

    trace = gradients.Trace(sample.model)
    trace.backward(*losses)
    np.testing.assert_allclose(trace.to_dataset()["cosine_total"], [expected], **SINGLE)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "vit", "wav2vec2", "vit_tiny"])
def test_attention_reads_the_batch_that_the_others_read(name):
    sample = build(name)
    result = attention.capture(sample.model, sample.data)
    assert result.attrs["n_samples"] == len(sample.targets)
    predicted = torch.from_numpy(result["prediction"].values).reshape(sample.logits().shape)
    torch.testing.assert_close(predicted, sample.logits(), **TIGHT)


@pytest.mark.parametrize("name", ["mamba", "resnet", "recurrent", "graph", "segmentation"])
def test_a_model_without_attention_is_told_just_that(name):
    sample = build(name)
    with pytest.raises(ValueError, match=r"^`model`: no attention was seen"):
        attention.capture(sample.model, sample.data)


def regression():
    torch.manual_seed(0)
    x = torch.randn(5, 4).double()
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    return model.double(), x, 8.4 * torch.rand(5, 1).double()


@pytest.mark.parametrize("verb", ["grid", "curvature", "nudge", "exits", "probe"])
def test_real_numbers_are_refused_without_a_loss(verb):
    model, x, y = regression()
    verbs = {
        "grid": lambda: landscape.grid(model, (x, y), size=3),
        "curvature": lambda: landscape.curvature(model, (x, y)),
        "nudge": lambda: nudging.nudge(model, (x, y), nudging.backprop()),
        "exits": lambda: probes.exits(model, (x, y), ["1", "3"]),
        "probe": lambda: _probe_loss(model, x, y),
    }
    with pytest.raises(
        ValueError, match=r"^`\w+`[^\n]*(real numbers|floating numbers|0 and 1|\[0)"
    ):
        verbs[verb]()


def _probe_loss(model, x, y):
    probe = probes.attach(model, ["1"], n=2)
    model(x)
    return probe.loss(y)


def test_a_regression_with_its_loss_starts_from_the_mean_square():
    model, x, y = regression()
    expected = np.mean((model(x).detach().numpy() - y.numpy()) ** 2)
    surface = landscape.grid(model, (x, y), loss=F.mse_loss, size=3, samples=None)
    result = nudging.nudge(model, (x, y), nudging.backprop(), loss=F.mse_loss, samples=None)
    np.testing.assert_allclose(surface["loss"].sel(alpha=0, beta=0), expected, **TIGHT)
    np.testing.assert_allclose(result["loss"], expected, **TIGHT)


def test_several_labels_have_a_sigmoid_each():
    model, x, _ = regression()
    model[-1] = nn.Linear(6, 3).double()
    y = torch.tensor([[0, 1, 1], [1, 0, 0], [1, 1, 1], [0, 0, 0], [0, 1, 0]]).double()
    logits = model(x).detach().numpy()
    expected = np.mean(
        np.log1p(np.exp(-logits)) * y.numpy() + np.log1p(np.exp(logits)) * (1 - y.numpy())
    )

    surface = landscape.grid(model, (x, y), size=3, samples=None)
    result = nudging.nudge(model, (x, y), nudging.backprop(), samples=None)
    np.testing.assert_allclose(surface["loss"].sel(alpha=0, beta=0), expected, **TIGHT)
    np.testing.assert_allclose(result["loss"], expected, **TIGHT)

    probe = probes.attach(model, ["1"], n=2)
    model(x)
    loss = probe.loss(y).item()
    features = model[:2](x)
    branches = [branch_loss(features, weight, y, "bce").item() for weight in weights_of(probe, "1")]
    np.testing.assert_allclose(loss, sum(branches), **TIGHT)


def test_a_network_that_is_told_the_time_starts_from_the_mean_square():
    torch.manual_seed(0)
    model = TimedUNet().double()
    inputs = (torch.randn(3, 1, 8, 8).double(), torch.rand(3, 1).double())
    noise = torch.randn(3, 1, 8, 8).double()
    expected = np.mean((model(*inputs).detach().numpy() - noise.numpy()) ** 2)

    data = (inputs, noise)
    surface = landscape.grid(model, data, loss=F.mse_loss, size=3, samples=None)
    result = nudging.nudge(model, data, nudging.backprop(), loss=F.mse_loss, samples=None)
    np.testing.assert_allclose(surface["loss"].sel(alpha=0, beta=0), expected, **TIGHT)
    np.testing.assert_allclose(result["loss"], expected, **TIGHT)
