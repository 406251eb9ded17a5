"""Targets of tokens and pixels, against explicit loops over positions, in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probes
from probes._branches.closed_form_loss import compressed_loss
from tests.helpers.largest_tensor import LargestTensor
from tests.helpers.probe_reference import branch_loss, weights_of

TIGHT = {"rtol": 1e-12, "atol": 1e-14}
CLASSES = 5


class Tagger(nn.Module):
    """A class for each token."""

    def __init__(self, n_classes=CLASSES):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, n_classes)

    def forward(self, ids):
        return self.head(self.mix(self.embedding(ids)).tanh())


class Segmenter(nn.Module):
    """A class for each pixel, from maps of half and a quarter of the size, of either layout."""

    class ToLast(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x.permute(0, 2, 3, 1))

    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.two = nn.Conv2d(6, 7, 3, stride=2, padding=1)
        self.last = self.ToLast(7)
        self.head = nn.Conv2d(7, CLASSES, 1)

    def forward(self, x):
        maps = self.last(self.two(self.one(x).relu())).permute(0, 3, 1, 2)
        return {"out": F.interpolate(self.head(maps), size=x.shape[2:])}


def make_tagger():
    torch.manual_seed(0)
    model = Tagger().double()
    ids = torch.randint(0, 11, (3, 8))
    y = torch.randint(0, CLASSES, (3, 8))
    y[0, 5:] = -100
    y[2] = -100
    return model, ids, y


def make_segmenter():
    torch.manual_seed(0)
    model = Segmenter().double()
    x = torch.randn(2, 3, 11, 14, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (2, 11, 14))
    y[0, :4] = -100
    return model, x, y


def margin(logits, y):
    return F.multi_margin_loss(logits, y)


def loop_over_positions(features, weights, y, kind):
    """The mean over positions that count, one at a time, summed over branches."""
    total, n_counted = 0.0, 0
    for row, target in zip(features.flatten(0, -2), y.flatten(), strict=True):
        if target == -100:
            continue
        losses = [branch_loss(row[None], weight, target[None], kind) for weight in weights]
        total = total + torch.stack(losses).sum()
        n_counted += 1
    return total / n_counted


@pytest.mark.parametrize("pool", ["auto", "spatial"])
@pytest.mark.parametrize("active", [0, 1, "all"])
@pytest.mark.parametrize("kind", ["bce", "ce", margin])
def test_token_probes_equal_a_loop_over_positions(kind, active, pool):
    model, ids, y = make_tagger()
    probe = probes.attach(model, "mix", n=3, loss=kind, active=active, pool=pool, alpha=0.7)
    parameters = [*model.mix.parameters(), model.embedding.weight, *probe.parameters()]

    model(ids)
    loss = probe.loss(y)
    gradients = torch.autograd.grad(loss, parameters)

    features = F.linear(model.embedding(ids), model.mix.weight, model.mix.bias)
    expected = 0.7 * loop_over_positions(features, weights_of(probe, "mix"), y, kind)
    torch.testing.assert_close(loss, expected, **TIGHT)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, parameters), **TIGHT)


@pytest.mark.parametrize("large", [False, True])
def test_compressed_token_probes_equal_a_loop_over_positions(monkeypatch, large):
    if large:
        monkeypatch.setattr(probes._branches.closed_form_loss, "_LARGE_VOCABULARY", 1)
    model, ids, y = make_tagger()
    probe = probes.attach(model, "mix", n=4, method="compressed")
    branches = probe._by_layer()["mix"]
    parameters = [*model.mix.parameters(), *probe.parameters()]

    model(ids)
    loss = probe.loss(y)
    gradients = torch.autograd.grad(loss, parameters)

    features = F.linear(model.embedding(ids), model.mix.weight, model.mix.bias)
    counted = (y != -100).nonzero()
    expected = loop_over_positions(features, list(branches.active), y, "bce")
    for sample, position in counted.tolist():
        row, target = features[sample, position][None], y[sample, position][None]
        # With logits made, whatever the vocabulary: the sum over classes as it is written.
        one_hot = F.one_hot(target, CLASSES).double()
        odd = (row @ branches.summed.mT).sum() / 2 - (row @ branches.summed.mT * one_hot).sum()
        nothing = torch.zeros_like(branches.summed)
        even = compressed_loss(row, branches.gram, nothing, target, 3, branches.excess)
        expected = expected + (even + odd / CLASSES) / len(counted)
    torch.testing.assert_close(loss, expected, **TIGHT)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, parameters), **TIGHT)


@pytest.mark.parametrize(
    ("method", "kind"), [("exact", "bce"), ("exact", "ce"), ("compressed", "bce")]
)
@pytest.mark.parametrize("layer", ["one", "two", "last"])
def test_pixel_probes_equal_an_explicit_resize(layer, kind, method):
    model, x, y = make_segmenter()
    active = "all" if method == "exact" else 1
    n = 3 if method == "exact" else 1  # one branch, an active one: nothing is approximate
    probe = probes.attach(model, layer, n=n, loss=kind, active=active, method=method, sample=x)
    assert probe.settings.classes == CLASSES

    model(x)
    loss = probe.loss(y)
    gradients = torch.autograd.grad(loss, model.one.weight)

    maps = F.conv2d(x, model.one.weight, model.one.bias, stride=2, padding=1)
    if layer != "one":
        maps = F.conv2d(maps.relu(), model.two.weight, model.two.bias, stride=2, padding=1)
    resized = F.interpolate(y[:, None].double(), size=maps.shape[2:], mode="nearest")[:, 0].long()
    features = maps.permute(0, 2, 3, 1)
    if layer == "last":
        features = F.layer_norm(features, (7,))
    expected = loop_over_positions(features, weights_of(probe, layer), resized, kind)
    torch.testing.assert_close(loss, expected, **TIGHT)
    expected_gradients = torch.autograd.grad(expected, model.one.weight)
    torch.testing.assert_close(gradients, expected_gradients, **TIGHT)


class Tokenised(nn.Module):
    """Flattens its map of 4 x 6 row by row, as SegFormer does."""

    def __init__(self, prefix=0):
        super().__init__()
        self.patch = nn.Conv2d(3, 6, 2, stride=2)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Conv2d(6, CLASSES, 1)
        self.prefix = prefix

    def forward(self, x):
        tokens = F.pad(self.patch(x).flatten(2).mT, (0, 0, self.prefix, 0))
        maps = self.mix(tokens)[:, self.prefix :].mT.unflatten(2, (4, 6))
        return F.interpolate(self.head(maps), size=x.shape[2:])


@pytest.mark.parametrize("grid", [(8, 12), (4, 6), (40, 60), (2, 3)])
def test_tokens_of_a_map_take_the_nearest_pixels(grid):
    torch.manual_seed(0)
    model, x = Tokenised().double(), torch.randn(2, 3, 8, 12, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (2, *grid))
    y[0, 0] = -100
    probe = probes.attach(model, "mix", n=2, active="all", sample=x)
    model(x)
    features = model.mix(model.patch(x).permute(0, 2, 3, 1))
    resized = F.interpolate(y[:, None].double(), size=(4, 6), mode="nearest")[:, 0].long()
    expected = loop_over_positions(features, weights_of(probe, "mix"), resized, "bce")
    torch.testing.assert_close(probe.loss(y), expected, **TIGHT)


@pytest.mark.parametrize(("prefix", "grid"), [(1, (8, 12)), (0, (8, 8)), (0, (24, 2))])
def test_tokens_that_are_no_map_of_the_pixels_are_refused(prefix, grid):
    model, x = Tokenised(prefix), torch.randn(2, 3, 8, 12)
    probe = probes.attach(model, "mix", n=2, sample=x)
    model(x)
    with pytest.raises(ValueError, match="need a layer with as many axes"):
        probe.loss(torch.zeros(2, *grid, dtype=torch.long))


@pytest.mark.parametrize("sizes", [(7, 3), (3, 7), (224, 9), (65, 13), (1000, 333)])
def test_nearest_targets_are_those_of_torch(sizes):
    before, after = sizes
    y = torch.arange(before * 2).view(1, before, 2)
    found = probes._branches.rows._nearest_targets(y, torch.Size([after, 5]))
    expected = F.interpolate(y[:, None].double(), size=(after, 5), mode="nearest")[:, 0].long()
    assert torch.equal(found, expected)


def test_signals_take_the_nearest_targets():
    torch.manual_seed(0)
    conv = nn.Conv1d(2, 4, 3, stride=2)
    model = nn.Sequential(conv, nn.Upsample(12), nn.Conv1d(4, 3, 1)).double()
    x, y = torch.randn(2, 2, 12, dtype=torch.float64), torch.randint(0, 3, (2, 12))
    probe = probes.attach(model, "0", n=2, classes=3, active="all", pool="spatial", sample=x)
    model(x)
    resized = F.interpolate(y[:, None].double(), size=5, mode="nearest")[:, 0].long()
    expected = loop_over_positions(conv(x).mT, weights_of(probe, "0"), resized, "bce")
    torch.testing.assert_close(probe.loss(y), expected, **TIGHT)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("kind", ["bce", "ce", margin])
def test_positions_are_measured_one_by_one(monkeypatch, kind, chunked):
    if chunked:
        monkeypatch.setattr(probes._branches.measure, "_MOST_LOGITS", 40)
    model, ids, y = make_tagger()
    probe = probes.attach(model, "mix", n=3, loss=kind)
    model(ids)
    found = probe.measure(y).sel(layer="mix")

    features = F.linear(model.embedding(ids), model.mix.weight, model.mix.bias)
    for branch, weight in enumerate(weights_of(probe, "mix")):
        expected = loop_over_positions(features, [weight], y, kind).item()
        np.testing.assert_allclose(found["loss"][branch], expected, rtol=1e-12)
        hits = ((features @ weight.mT).argmax(-1) == y)[y != -100]
        np.testing.assert_allclose(found["accuracy"][branch], hits.double().mean().item())
    expected_meaning = "given to the loss" if kind is margin else "classes"
    assert (found.attrs["targets"], found.attrs["n_samples"]) == (expected_meaning, 3)


@pytest.mark.parametrize("layout", ["tokens", "maps"])
def test_targets_of_samples_are_met_by_pooled_features_though_positions_wait(layout):
    model, x, _ = make_tagger() if layout == "tokens" else make_segmenter()
    layer = "mix" if layout == "tokens" else "two"
    y = torch.arange(len(x)) % CLASSES
    losses = []
    for pool in ("auto", "mean"):
        probe = probes.attach(model, layer, n=3, pool=pool, sample=x)
        assert probe.pools[layer].waits_for_targets == (pool == "auto")
        model(x)
        losses.append(probe.loss(y))
    assert torch.equal(*losses)


def test_a_map_without_a_counted_position_adds_nothing():
    model, x, _ = make_segmenter()
    y = torch.full((2, 11, 14), -100)
    y[0, 1, 1] = 3  # between the positions of the coarse map
    probe = probes.attach(model, ["one", "two"], n=2, active="all", sample=x)
    model(x)
    probe.loss(y).backward()
    found = probe.measure(y)
    counted = np.isfinite(found["loss"].values).all(1)
    resized = [
        F.interpolate(y[:, None].double(), size=size, mode="nearest").max().item() >= 0
        for size in ((6, 7), (3, 4))
    ]
    assert counted.tolist() == resized
    assert not counted[1]
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


class Prefixed(nn.Module):
    """As many outputs as tokens, but one more inside, and a vector."""

    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(1, 1, 4))
        self.mix = nn.Linear(4, 4)
        self.vector = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        tokens = self.mix(torch.cat([self.start.expand(len(x), -1, -1), x], 1))
        return self.head(tokens[:, 1:] + self.vector(tokens[:, 0])[:, None])


REFUSALS = {
    "one token more": ("mix", {}, (2, 6), r"'mix': targets of 6 positions .* has 7 positions"),
    "its cure": ("mix", {}, (2, 6), r"lambda x: x\[:, 1:\]"),
    "a vector": ("vector", {}, (2, 6), r"'vector': .* pooled to a vector; choose another"),
    "pooled": ("mix", {"pool": "mean"}, (2, 6), "attach with pool='spatial'"),
    "pixels at tokens": ("mix", {}, (2, 6, 6), r"6 x 6 positions need a layer with as many axes"),
}


@pytest.mark.parametrize("case", list(REFUSALS))
def test_targets_that_fit_no_position_are_refused_by_name(case):
    layer, settings, shape, message = REFUSALS[case]
    model, x = Prefixed(), torch.randn(2, 6, 4)
    probe = probes.attach(model, layer, n=2, sample=x, **settings)
    model(x)
    for verb in (probe.loss, probe.measure):
        with pytest.raises(ValueError, match=message):
            verb(torch.zeros(shape, dtype=torch.long))


def test_the_cure_for_a_class_token_works():
    model, x, y = Prefixed().double(), torch.randn(2, 6, 4).double(), torch.randint(0, 3, (2, 6))
    probe = probes.attach(model, "mix", n=2, active="all", sample=x, pool=lambda h: h[:, 1:])
    model(x)
    expected = loop_over_positions(model.mix(x), weights_of(probe, "mix"), y, "bce")
    torch.testing.assert_close(probe.loss(y), expected, **TIGHT)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.full((3, 8), -100), "expected a target that counts, all are -100"),
        (torch.full((3, 8), 5), r"class indices 0 to 4 \(or -100, .*\), got 5 to 5"),
        (torch.full((3, 8), -1), "got -1 to -1"),
        (torch.zeros(3, 8), r"got shape \(3, 8\) of floating numbers"),
        (torch.zeros(2, 8, dtype=torch.long), r"got shape \(2, 8\) of whole numbers"),
    ],
)
def test_bad_targets_of_positions_are_refused(y, message):
    model, ids, good = make_tagger()
    probe = probes.attach(model, "mix", n=2)
    model(ids)
    with pytest.raises(ValueError, match=message):
        probe.loss(y)
    assert torch.isfinite(probe.loss(good))


def test_a_batch_without_a_target_is_refused_where_values_are_not_at_hand(monkeypatch):
    """As on an accelerator, where nothing is known before rows are chosen."""
    monkeypatch.setattr(probes._branches.targets, "can_look_at", lambda y, **_: False)
    model, ids, good = make_tagger()
    probe = probes.attach(model, "mix", n=2)
    model(ids)
    with pytest.raises(ValueError, match="expected a target that counts, all are -100"):
        probe.loss(torch.full((3, 8), -100))
    assert torch.isfinite(probe.loss(good))


def test_as_many_tokens_as_classes():
    model, ids, y = make_tagger()
    ids, y = ids[:, :CLASSES], torch.tensor([[0, 1, 2, 3, -100]] * 3)
    probe = probes.attach(model, "mix", n=2, active="all", sample=ids)
    model(ids)
    expected = loop_over_positions(
        model.mix(model.embedding(ids)), weights_of(probe, "mix"), y, "bce"
    )
    torch.testing.assert_close(probe.loss(y), expected, **TIGHT)

    model(ids)
    with pytest.raises(ValueError, match="one for each class or one for each position"):
        probe.loss(torch.ones_like(y))
    assert torch.isfinite(probe.loss(torch.ones(3, CLASSES)))  # of classes, without a doubt


@pytest.mark.parametrize("method", ["exact", "compressed"])
def test_memory_does_not_hold_the_logits_of_a_vocabulary(method):
    n_classes, n_rows = 5000, 4 * 128
    torch.manual_seed(0)
    model = Tagger(n_classes)
    ids, y = torch.randint(0, 11, (4, 128)), torch.randint(0, n_classes, (4, 128))
    probe = probes.attach(model, "mix", n=3, method=method, sample=ids)
    model(ids)

    all_logits = n_rows * n_classes * 4
    with LargestTensor() as largest:
        probe.loss(y).backward()
    assert largest.n_bytes < all_logits / 4


def test_measuring_a_vocabulary_does_not_hold_its_logits(monkeypatch):
    monkeypatch.setattr(probes._branches.measure, "_MOST_LOGITS", 2**18)
    n_classes, n_rows = 5000, 4 * 128
    model = Tagger(n_classes)
    ids, y = torch.randint(0, 11, (4, 128)), torch.randint(0, n_classes, (4, 128))
    probe = probes.attach(model, "mix", n=2, sample=ids)
    model(ids)
    with LargestTensor() as largest:
        probe.measure(y)
    assert largest.n_bytes < n_rows * n_classes * 4 / 4


def test_compiled_models_keep_positions():
    torch._dynamo.reset()
    model, ids, y = make_tagger()
    probe = probes.attach(model, "mix", n=3, sample=ids)
    model(ids)
    expected = probe.loss(y)
    torch.compile(model, backend="aot_eager", fullgraph=True)(ids)
    torch.testing.assert_close(probe.loss(y), expected, **TIGHT)
    torch._dynamo.reset()


def test_compression_error_of_tokens():
    model, ids, y = make_tagger()
    probe = probes.attach(model, "mix", n=200, method="compressed")
    error = probe.compression_error(ids[:2], y[:2])
    assert error["cosine"].shape == (1, 2)
    assert float(error["cosine"].min()) > 0.98
    assert error.attrs["targets"] == "classes"
    assert probe.compression_error(ids)["cosine"].shape == (1, 3)  # the model's own predictions
