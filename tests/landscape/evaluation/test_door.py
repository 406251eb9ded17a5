"""Every verb, on the inputs and targets that users have: text, pixels, several inputs, graphs."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import landscape
from landscape._evaluation.problem import Measurement
from resonance_toolkit import call_model, logits_of, shift_labels
from tests.helpers import door_models
from tests.helpers.state import snapshot
from tests.helpers.surfaces import make_data, make_mlp


def given_directions(model):
    """Two directions over all parameters, by hand."""
    generator = torch.Generator().manual_seed(3)
    return [
        {
            name: 0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
            for name, p in model.named_parameters()
        }
        for _ in range(2)
    ]


def moved(model, directions, *distances):
    there = copy.deepcopy(model).eval()
    with torch.no_grad():
        for direction, distance in zip(directions, distances, strict=True):
            for name, parameter in there.named_parameters():
                parameter += distance * direction[name]
    return there


def by_loop(logits, targets):
    """Mean loss and accuracy, one position of one sample at a time, in numpy; classes last."""
    losses, shares = [], []
    for sample_logits, sample_targets in zip(logits, targets, strict=True):
        rows = sample_logits.detach().numpy().reshape(-1, sample_logits.shape[-1])
        terms, hits = [], []
        for row, target in zip(rows, sample_targets.reshape(-1).tolist(), strict=True):
            if target != -100:
                terms.append(math.log(np.exp(row).sum()) - row[target])
                hits.append(float(row.argmax() == target))
        if terms:
            losses.append(np.mean(terms))
            shares.append(np.mean(hits))
    return np.mean(losses), np.mean(shares), np.std(losses, ddof=1) / math.sqrt(len(losses))


def understood(name):
    """A model, data for it, its inputs and the targets at each position, by hand."""
    model, data = getattr(door_models, name)()
    if not isinstance(data, dict):
        return model, data, *data

    targets = data["labels"]
    inputs = {key: value for key, value in data.items() if key != "labels"}
    if name == "gpt2":
        targets = shift_labels(targets)
    if name == "t5":
        start = torch.zeros_like(targets[:, :1])
        inputs["decoder_input_ids"] = torch.cat([start, targets[:, :-1]], dim=1)
    return model, data, inputs, targets


CASES = ["bert_classifier", "bert_tagger", "gpt2", "t5", "segmenter", "two_inputs", "graph"]


@pytest.mark.parametrize("name", CASES)
def test_loss_accuracy_and_error_are_those_of_a_loop_over_positions(name):
    model, data, inputs, targets = understood(name)
    before = snapshot(model)
    directions = given_directions(model)
    surface = landscape.grid(
        model, data, directions=directions, over="**", samples=None, size=3, span=0.5
    )
    assert snapshot(model) == before

    for alpha, beta in [(0.0, 0.0), (0.5, -0.5), (0.0, 0.5)]:
        logits = logits_of(call_model(moved(model, directions, alpha, beta), inputs))
        if name == "segmenter":
            logits = logits.movedim(1, -1)
        loss, accuracy, error = by_loop(logits, targets)
        point = surface.sel(alpha=alpha, beta=beta)
        np.testing.assert_allclose(point["loss"], loss, rtol=1e-10)
        np.testing.assert_allclose(point["accuracy"], accuracy, rtol=1e-12)
        np.testing.assert_allclose(point["loss_se"], error, rtol=1e-9)

    assert surface.attrs["loss"] == "cross_entropy"
    meaning = "classes: the next token" if name == "gpt2" else "classes"
    assert surface.attrs["targets"] == meaning
    assert surface.attrs["n_samples"] == len(targets)


@pytest.mark.parametrize("name", ["gpt2", "t5", "bert_classifier"])
def test_the_centre_is_the_models_own_loss(name):
    model, batch = getattr(door_models, name)()
    own = model(**batch).loss.item()
    surface = landscape.grid(model, batch, samples=None, size=3)

    # A causal language model's own loss is computed in float32.
    tolerance = 1e-6 if name == "gpt2" else 1e-12
    np.testing.assert_allclose(surface["loss"].sel(alpha=0, beta=0), own, rtol=tolerance)


def forms_of_text():
    _, batch = door_models.bert_classifier()
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    labels = batch["labels"]
    rows = [{key: value[i] for key, value in batch.items()} for i in range(len(labels))]
    texts = [{**row, "text": "words"} for row in rows]

    def collate(rows):
        columns = {k: torch.stack([row[k] for row in rows]) for k in batch}
        return columns | {"text": [row["text"] for row in rows]}

    return {
        "pair": (inputs, labels),
        "list of pairs": [(inputs, labels)],
        "int32": (inputs, labels.int()),
        "column": (inputs, labels[:, None]),
        "bytes": (inputs, labels.byte()),
        "one-hot": (inputs, F.one_hot(labels, 3)),
        "numpy": ({key: value.numpy() for key, value in inputs.items()}, labels.numpy()),
        "dataset of dicts": rows,
        "loader of dicts": DataLoader(texts, batch_size=2, collate_fn=collate),
        "label": {**inputs, "label": labels},
    }


@pytest.mark.parametrize("form", list(forms_of_text()))
def test_every_form_of_a_text_batch_gives_the_same_surface(form):
    model, batch = door_models.bert_classifier()
    expected = landscape.grid(model, batch, samples=None, size=3)
    data = forms_of_text()[form]
    if form == "dataset of dicts":
        data = DataLoader(data, batch_size=4)
    surface = landscape.grid(model, data, samples=None, size=3)
    np.testing.assert_allclose(surface["loss"], expected["loss"], rtol=1e-12)
    if form != "one-hot":
        np.testing.assert_array_equal(surface["accuracy"], expected["accuracy"])
    assert surface.attrs["targets"] == ("distributions" if form == "one-hot" else "classes")


def padded_batches():
    """The same six texts as one batch of a length of 9, and in pieces of 5 and 9."""
    _, batch = door_models.bert_classifier()
    wide = {key: F.pad(value, (0, 4)) if value.dim() > 1 else value for key, value in batch.items()}
    pieces = [
        {key: value[:2] for key, value in batch.items()},
        {key: value[2:5] for key, value in wide.items()},
        {key: value[5:] for key, value in batch.items()},
    ]
    return wide, pieces


@pytest.mark.parametrize("verb", ["grid", "gradient", "line", "curve", "curvature"])
def test_batches_padded_to_unequal_lengths_are_as_good_as_one(verb):
    model, _ = door_models.bert_classifier()
    other = moved(model, given_directions(model)[:1], 1.0)

    def measure(data):
        if verb == "line":
            return landscape.line(model, data, to=other, samples=None, size=3)["loss"]
        if verb == "curve":
            # All samples in every update, so that both ways of batching see the same.
            control = landscape.bend(model, other, data, steps=2, lr=1e-4)
            return landscape.curve(model, other, data, control, samples=None, size=3)["loss"]
        if verb == "curvature":
            settings = {"k": 1, "trace_probes": 0, "density_runs": 0, "over": "classifier.*"}
            return landscape.curvature(model, data, samples=None, **settings)["largest"]
        directions = "gradient" if verb == "gradient" else "random"
        return landscape.grid(model, data, samples=None, size=3, directions=directions)["loss"]

    wide, pieces = padded_batches()
    model.config.hidden_dropout_prob = 0.0
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # `bend` trains: else masks would differ by length
    for form in (pieces, DataLoader(pieces, batch_size=None)):
        np.testing.assert_allclose(measure(form), measure(wide), rtol=1e-8)


def test_masked_pixels_count_in_no_loss_of_torch():
    model, (x, y) = door_models.segmenter()
    loss, accuracy, _ = by_loop(model(x)["out"].movedim(1, -1), y)
    for ignored in (-100, 255):
        targets = y.masked_fill(y == -100, ignored).to(torch.uint8 if ignored > 0 else torch.int64)
        ways = [nn.CrossEntropyLoss(ignore_index=ignored)]
        if ignored == -100:
            ways += [None, F.cross_entropy]
        for way in ways:
            surface = landscape.grid(
                model, (x, targets), loss=way, samples=None, size=3, batch_size=3
            )
            centre = surface.sel(alpha=0, beta=0)
            np.testing.assert_allclose(centre["loss"], loss, rtol=1e-12)
            np.testing.assert_allclose(centre["accuracy"], accuracy, rtol=1e-12)


@pytest.mark.parametrize("name", ["segmenter", "bert_tagger"])
def test_an_adaptive_plane_of_positions_is_the_exact_one_within_its_tolerance(name):
    model, data = getattr(door_models, name)()
    exact = landscape.grid(model, data, samples=None, size=31)
    adaptive = landscape.grid(model, data, samples=None, size=31, method="adaptive")
    evaluated = adaptive["evaluated"].values
    assert evaluated.sum() < 0.4 * evaluated.size  # it did interpolate

    tolerance = 1e-2 * np.ptp(exact["loss"].values)
    np.testing.assert_allclose(adaptive["loss"], exact["loss"], rtol=0, atol=tolerance)
    for variable in ("loss", "accuracy"):
        np.testing.assert_array_equal(
            adaptive[variable].values[evaluated], exact[variable].values[evaluated]
        )


def test_samples_without_a_target_that_counts_are_left_out():
    model, (x, y) = door_models.segmenter()
    y[2] = -100
    loss, accuracy, _ = by_loop(model(x)["out"].movedim(1, -1), y)
    surface = landscape.grid(model, (x, y), samples=None, size=3)
    np.testing.assert_allclose(surface["loss"].sel(alpha=0, beta=0), loss, rtol=1e-12)
    np.testing.assert_allclose(surface["accuracy"].sel(alpha=0, beta=0), accuracy, rtol=1e-12)
    assert surface.attrs["n_samples"] == 3


def test_several_labels_and_distributions_have_their_losses():
    model, (x, _) = make_mlp(), make_data()
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (30, 3), generator=generator)
    shares = torch.rand(30, 3, generator=generator, dtype=torch.float64)
    shares /= shares.sum(1, keepdim=True)
    expected = {
        "several labels": F.binary_cross_entropy_with_logits(model(x), labels.double()).item(),
        "distributions": -(shares * model(x).log_softmax(1)).sum(1).mean().item(),
    }
    for meaning, y in [
        ("several labels", labels),
        ("several labels", labels.float()),
        ("distributions", shares),
    ]:
        surface = landscape.grid(model, (x, y), samples=None, size=3)
        centre = surface["loss"].sel(alpha=0, beta=0)
        np.testing.assert_allclose(centre, expected[meaning], rtol=1e-12)
        assert surface.attrs["targets"] == meaning
        is_sigmoid = meaning == "several labels"
        name = "binary_cross_entropy_with_logits" if is_sigmoid else "cross_entropy"
        assert surface.attrs["loss"] == name


def own_loss(outputs, targets):
    return F.mse_loss(outputs, targets, reduction="none").mean((1, 2, 3))


def own_closure(model, inputs, targets):
    return F.mse_loss(model(*inputs), targets)


@pytest.mark.parametrize("loss", [F.mse_loss, nn.MSELoss(), own_loss, own_closure])
def test_a_network_that_is_told_the_time_needs_a_loss_and_nothing_else(loss):
    model, ((x, t), y) = door_models.denoiser()
    directions = given_directions(model)
    surface = landscape.grid(
        model, ((x, t), y), loss=loss, directions=directions, over="**", size=3
    )
    for alpha, beta in [(0.0, 0.0), (1.0, -1.0)]:
        expected = F.mse_loss(moved(model, directions, alpha, beta)(x, t), y).item()
        found = surface["loss"].sel(alpha=alpha, beta=beta)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert surface["accuracy"].isnull().all()
    assert surface.attrs["targets"] == "given to the loss"


def test_closures_call_models_with_keywords():
    model, batch = door_models.bert_classifier()
    expected = landscape.grid(model, batch, samples=None, size=3)

    def closure(model, inputs, targets):
        return F.cross_entropy(model(**inputs).logits, targets)

    def of_outputs(outputs, targets):
        return F.cross_entropy(outputs.logits, targets)

    for loss in (closure, of_outputs, F.cross_entropy, nn.CrossEntropyLoss()):
        surface = landscape.grid(model, batch, loss=loss, samples=None, size=3)
        np.testing.assert_allclose(surface["loss"], expected["loss"], rtol=1e-12)
        np.testing.assert_array_equal(surface["accuracy"], expected["accuracy"])


def test_the_first_layer_answers_for_models_with_several_inputs(monkeypatch):
    model, data = door_models.two_inputs()
    quick = landscape.grid(model, data, size=5)
    monkeypatch.setattr("landscape._evaluation.calibrate._MIN_INPUTS", 10**6)
    plain = landscape.grid(model, data, size=5)
    np.testing.assert_allclose(quick["loss"], plain["loss"], rtol=1e-12)
    assert (quick["loss"].values != plain["loss"].values).any()  # it was in use


def test_a_compiled_text_model_gives_the_same_surface():
    model, batch = door_models.bert_classifier()
    expected = landscape.grid(model, batch, size=3)
    compiled = torch.compile(model, backend="eager")
    np.testing.assert_allclose(
        landscape.grid(compiled, batch, size=3)["loss"], expected["loss"], rtol=1e-12
    )


def test_recomputed_statistics_take_any_inputs():
    class Normed(door_models.TwoInputs):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6)

        def forward(self, left, right):
            return self.head(self.norm(self.left(left) + self.right(right)).tanh())

    torch.manual_seed(0)
    model = Normed().double()
    (left, right), y = door_models.two_inputs()[1]
    surface = landscape.grid(
        model, ({"left": left, "right": right}, y), size=3, bn="recompute", batch_size=9
    )
    hidden = model.left(left) + model.right(right)
    normed = (hidden - hidden.mean(0)) / (hidden.var(0) + 1e-5).sqrt()
    expected = F.cross_entropy(model.head(normed.tanh()), y).item()
    np.testing.assert_allclose(surface["loss"].sel(alpha=0, beta=0), expected, rtol=1e-12)


def test_an_executor_and_a_checkpoint_take_text(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    model, batch = door_models.bert_tagger()
    expected = landscape.grid(model, batch, size=3)
    path = tmp_path / "plane.npz"
    with ThreadPoolExecutor(1) as executor:
        found = landscape.grid(model, batch, size=3, executor=executor, checkpoint=path)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-12)
    again = landscape.grid(model, batch, size=3, checkpoint=path)
    np.testing.assert_array_equal(again["loss"], found["loss"])


def test_a_graph_is_never_cut():
    model, (x, y) = door_models.graph()
    with pytest.raises(ValueError, match="as nodes of a graph do, give all of them: samples=None"):
        landscape.grid(model, (x, y), samples=12, size=3)
    with pytest.raises(ValueError, match="as nodes of a graph do"):
        landscape.grid(model, (x, y), batch_size=7, size=3)

    # Nor are its nodes put into another order: a straight curve has no slope for the control point.
    other = copy.deepcopy(model)
    control = landscape.bend(model, other, (x, y), steps=1, lr=1e-9)
    expected = torch.autograd.grad(F.cross_entropy(model(x), y), model.first.weight)[0]
    step = control["first.weight"] - model.first.weight.detach()
    assert torch.equal(step.sign(), -expected.sign())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda x, y: (x, y + 5), "`data`: expected classes 0 to 2 .* got 7"),
        (lambda x, y: (x, y - 1), "`data`: expected classes of at least 0 .* got -1"),
        (lambda x, y: (x, y.double() * 1.5), "real numbers, for which .* loss=torch.nn.functional"),
        (lambda x, y: (x, y * torch.nan), "expected targets that are numbers, got NaN"),
        (lambda x, y: (x.float(), y), r"inputs of float32 for weights of float64; .*x.to\("),
        (lambda x, y: (x, y[:, None].repeat(1, 2)), r"targets of shape \(30, 2\) fit no loss"),
        (lambda x, y: (x[:, :7], y), r"the model fails on 30 samples, inputs of shape \(30, 7\)"),
        (lambda x, y: ((x, x), y), "A tuple of inputs is positional arguments"),
        (lambda x, y: {"x": x, "labels": y}, "`data`"),
    ],
)
def test_mistakes_are_told_in_a_sentence(change, told):
    model, (x, y) = make_mlp(), make_data()
    data = change(x, y)
    before = snapshot(model)
    for verb in (landscape.grid, landscape.line, landscape.curvature, landscape.curvature_map):
        with pytest.raises((ValueError, TypeError), match=told):
            verb(model, data)
    with pytest.raises((ValueError, TypeError), match=told):
        landscape.bend(model, model, data, steps=1)
    assert snapshot(model) == before


def test_classes_out_of_range_are_told_for_losses_of_torch_too():
    model, (x, y) = make_mlp(), make_data()
    for loss in (F.cross_entropy, nn.CrossEntropyLoss(), nn.CrossEntropyLoss(torch.ones(3))):
        with pytest.raises(ValueError, match=r"`data`: expected classes 0 to 2 .* got 7"):
            landscape.grid(model, (x, y + 5), loss=loss)


def test_bytes_of_images_are_told():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    x = torch.randint(0, 255, (6, 1, 4, 4), dtype=torch.uint8)
    with pytest.raises(ValueError, match="inputs of uint8 for weights of float32; convert"):
        landscape.grid(model, (x, torch.arange(6) % 3))


def test_a_loss_that_is_not_finite_is_told_at_once():
    model, (x, y) = make_mlp(), make_data()
    x[7, 3] = torch.nan
    with pytest.warns(UserWarning, match="the loss is nan at the centre") as told:
        surface = landscape.grid(model, (x, y), size=3)
    assert len(told) == 1
    assert surface.attrs["n_non_finite"] == 9

    x[7, 3] = 0
    model[5].bias.data[0] = torch.nan
    with pytest.warns(UserWarning, match="the loss is nan at the centre") as told:
        landscape.grid(model, (x, y), size=3, over="5.weight")
    assert len(told) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_input_that_is_no_number_is_seen(dtype, value):
    x = torch.randn(7, 5).to(dtype)
    ids = torch.arange(7)
    measurement = Measurement(nn.Identity(), None, [((x, ids), ids)], "frozen", seed=0)
    assert measurement.has_finite_inputs

    x[3, 2] = value
    assert not measurement.has_finite_inputs
