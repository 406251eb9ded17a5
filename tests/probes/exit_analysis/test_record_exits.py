"""Records of models from libraries and of one's own, and data that do not fit."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import probes
from tests.helpers.exit_models import BLOCKS, gpt2, images, sharpened, text, text_model, vit
from tests.helpers.state import snapshot


def test_operations_are_counted_per_layer_and_head():
    model, (ids, y) = text_model(), text(tokens=9)
    record = probes.record_exits(model, (ids, y), ["blocks.0", "blocks.2"])
    per_block = 2 * 9 * 6 * 6  # the one matrix of a block, for 9 tokens
    assert record["flops"].values.tolist() == [per_block, 3 * per_block]
    assert record["head_flops"].values.tolist() == [2 * 9 * 6 * 11] * 2
    assert record["depth"].values.tolist() == pytest.approx([1 / 3, 1])


def test_depths_count_what_runs_up_to_the_last_layer():
    model = nn.Sequential(nn.Tanh(), nn.Tanh(), nn.Tanh(), nn.Linear(4, 3))  # the head is "3"
    data = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    record = probes.record_exits(model, data, ["0", "2"])
    assert record["depth"].values.tolist() == pytest.approx([1 / 3, 1])
    record = probes.record_exits(model, data, ["0", "2"], depths=(0.1, 1))
    assert record["depth"].values.tolist() == [0.1, 1]


def test_gpt2_unmodified_by_its_own_hidden_states():
    model, (ids, y) = gpt2().eval(), text()
    record = probes.record_exits(model, (ids, y), "transformer.h.*")
    states = model(ids, output_hidden_states=True)
    # transformers hands out the last state after the final norm.
    early = [model.lm_head(model.transformer.ln_f(h)) for h in states.hidden_states[1:3]]
    for i, logits in enumerate([*early, states.logits]):
        expected = nn.functional.cross_entropy(logits.mT, y, reduction="none").flatten()
        np.testing.assert_allclose(record["cross_entropy"][i], expected.detach(), rtol=1e-5)
        assert (record["prediction"][i].values == logits.argmax(-1).flatten().numpy()).all()


def test_vit_unmodified():
    model, (x, y) = vit().eval(), images(samples=9)
    record = probes.record_exits(model, (x, y), "blocks.*", batch_size=4)
    _, states = model.forward_intermediates(
        x, norm=True, output_fmt="NLC", return_prefix_tokens=True
    )
    logits = [model.forward_head(torch.cat([prefix, grid], 1)) for grid, prefix in states]
    expected = [nn.functional.cross_entropy(z, y, reduction="none").detach() for z in logits]
    np.testing.assert_allclose(record["cross_entropy"], torch.stack(expected), rtol=1e-4)
    assert record["sample"].values.tolist() == list(range(9))
    assert set(record["position"].values) == {0}


def test_inputs_by_name_and_targets_that_do_not_count():
    model, (ids, y) = gpt2(), text()
    y = y.clone()
    y[:, ::2] = -100
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    record = probes.record_exits(model, [(inputs, y)], "transformer.h.*")
    whole = probes.record_exits(model, text(), "transformer.h.*")
    assert set(record["position"].values) == {1, 3, 5, 7}
    kept = whole.isel(token=np.flatnonzero(whole["position"] % 2))
    np.testing.assert_allclose(record["cross_entropy"], kept["cross_entropy"], rtol=1e-5)


def test_exits_with_their_own_heads():
    model, (ids, y) = text_model(), text()
    trained = probes.attach_exits(model, BLOCKS, head="own")
    record = probes.record_exits(model, (ids, y), BLOCKS, head=trained)
    x = model.blocks[0](model.embed(ids))
    expected = nn.functional.cross_entropy(trained.heads[0](x).mT, y, reduction="none")
    np.testing.assert_allclose(record["cross_entropy"][0], expected.detach().flatten())


def test_a_head_that_mixes_tokens_is_not_cut():
    model, (ids, y) = sharpened(), text()

    def head(h):
        return model.head(h - h.mean(1, keepdim=True))

    record = probes.record_exits(model, (ids, y), BLOCKS, head=head, batch_size=3)
    logits = head(model.blocks[0](model.embed(ids)))
    expected = nn.functional.cross_entropy(logits.mT, y, reduction="none")
    np.testing.assert_allclose(record["cross_entropy"][0], expected.detach().flatten())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"thresholds": [0.5, math.nan]}, "`thresholds`: .*NaN"),
        ({"thresholds": []}, "`thresholds`"),
        ({"layers": ["blocks.2", "blocks.0"]}, "forward order"),
        ({"layers": ["blocks.0", "blocks.1"]}, "'blocks.2' follows"),
        ({"layers": ["blocks.2"]}, "an exit and the last layer"),
        ({"head": nn.Linear(4, 11).double()}, "`head`"),
        ({"head": "own"}, "give the Exits"),
        ({"depths": (0.1, 0.5, 0.9)}, "`depths`"),
        ({"depths": (0.0, 0.5, 1.0)}, "`depths`"),
        ({"bins": 0}, "`bins`"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"data": (torch.zeros(0, 9).long(), torch.zeros(0, 9).long())}, "`data`"),
        (
            {"data": (torch.zeros(3, 9).long(), torch.zeros(3, 8).long())},
            r"`data`: expected indices \(3, 9\)",
        ),
        ({"data": (torch.zeros(3, 9).long(), torch.full((3, 9), 11))}, "0 to 10"),
        ({"data": (torch.zeros(3, 9).long(), torch.full((3, 9), -100))}, "that count"),
    ],
)
def test_arguments_that_do_not_fit(settings, message):
    arguments = {"data": text(), "layers": BLOCKS} | settings
    with pytest.raises(ValueError, match=message):
        probes.exits(text_model(), arguments.pop("data"), arguments.pop("layers"), **arguments)


class InPlace(nn.Module):
    """Layers that write to their inputs, a model that writes to their outputs and to a buffer."""

    class Layer(nn.Module):
        def forward(self, x):
            return x.sub_(0.5).sin()

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 11)
        self.first, self.second = self.Layer(), self.Layer()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, ids):
        self.passes += 1
        x = self.first(self.embed(ids)).add_(3)
        return self.head(self.second(x))


def test_layers_that_are_written_to_and_buffers_that_count():
    torch.manual_seed(0)
    model, (ids, y) = InPlace().double(), text()
    before = snapshot(model)
    record = probes.record_exits(model, (ids, y), ["first", "second"], batch_size=2)
    assert snapshot(model) == before
    x = model.embed(ids)
    states = [x, (x - 0.5).sin()]
    logits = model.head(states[1])
    expected = nn.functional.cross_entropy(logits.mT, y, reduction="none").flatten()
    np.testing.assert_allclose(record["cross_entropy"][0], expected.detach(), rtol=1e-12)
    alike = nn.functional.cosine_similarity(*states, dim=-1).clamp(min=0).flatten()
    found = record["confidence"].sel(measure="cosine", layer="first")
    np.testing.assert_allclose(found, alike.detach(), rtol=1e-12)
    late = states[1] + 3
    alike = nn.functional.cosine_similarity(late, (late - 0.5).sin(), dim=-1).clamp(min=0).flatten()
    found = record["confidence"].sel(measure="cosine", layer="second")
    np.testing.assert_allclose(found, alike.detach(), rtol=1e-12)


def test_pooling_that_looks_at_padding_is_refused():
    class Pooled(nn.Module):
        """The mean over tokens that are not 0."""

        def __init__(self):
            super().__init__()
            self.embed, self.blocks = nn.Embedding(11, 6), nn.ModuleList([nn.Tanh(), nn.Tanh()])
            self.head = nn.Linear(6, 3)

        def forward(self, ids):
            x = self.blocks[1](self.blocks[0](self.embed(ids)))
            kept = (ids != 0).to(x)[..., None]
            return self.head((x * kept).sum(1) / kept.sum(1))

    ids = torch.randint(1, 11, (6, 5), generator=torch.Generator().manual_seed(0))
    y, model = torch.tensor([0, 1, 2, 0, 1, 2]), Pooled()
    probes.record_exits(model, (ids, y), "blocks.*")
    ids[4, 2:] = 0
    with pytest.raises(ValueError, match="padding"):
        probes.record_exits(model, (ids, y), "blocks.*")


def test_every_setting_reaches_the_record_and_its_tables():
    model, data = sharpened(), text(samples=9)
    settings = {"norm": torch.tanh, "depths": (0.2, 0.5, 1), "samples": 4, "seed": 3}
    found = probes.exits(model, data, BLOCKS, thresholds=[0.2, 0.6], bins=7, **settings)
    record = probes.record_exits(model, data, BLOCKS, **settings)
    routes = probes.route_exits(record, thresholds=[0.2, 0.6])
    reliability = probes.exit_reliability(record, bins=7)
    for part in (routes, reliability):
        for name, values in part.variables.items():
            np.testing.assert_array_equal(found[name], values)
    for name in settings:  # none is idle here
        fewer = {key: value for key, value in settings.items() if key != name}
        other = probes.route_exits(probes.record_exits(model, data, BLOCKS, **fewer))
        row = probes.route_exits(record)
        assert not (other["compute"] == row["compute"]).all(), name
