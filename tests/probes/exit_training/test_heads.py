"""Which way leads from a layer to the logits: the model's own, or none, never another one."""

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig, LlamaForSequenceClassification

import probes
from tests.helpers.exit_models import BLOCKS, TextModel, gpt2, images, text, text_model, vit
from tests.helpers.state import snapshot


def distilled(scale):
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 2}
    model = timm.models.deit.VisionTransformerDistilled(**sizes, num_classes=5)
    for head in (model.head, model.head_dist):
        head.weight.data.mul_(scale)
        nn.init.zeros_(head.bias)
    return model


@pytest.mark.parametrize(
    ("scale", "message"), [(1, "cannot follow"), (0, "'head' and 'head_dist'")]
)
def test_two_heads_are_refused(scale, message):
    with pytest.raises(ValueError, match=message):
        probes.attach_exits(distilled(scale), "blocks.*")


def test_a_single_head_of_zeros_is_found():
    model = vit()
    nn.init.zeros_(model.head.weight)
    exits = probes.attach_exits(model, "blocks.*")
    assert exits.points["blocks.0"].head.modules[-1] == "head"


def test_pooling_with_parameters_given_to_modules():
    # Attention pooling hands an expanded parameter to its modules.
    model, (x, y) = vit(global_pool="map", class_token=False), images()
    exits = probes.attach_exits(model, "blocks.*", weights=(1, 0, 0))
    model(x)
    state = model.norm(model.blocks[0](model.patch_drop(model._pos_embed(model.patch_embed(x)))))
    expected = F.cross_entropy(model.forward_head(state), y)
    torch.testing.assert_close(exits.loss(y), expected)


def test_a_last_token_that_depends_on_padding_is_refused():
    config = LlamaConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=8,
        vocab_size=11,
        num_labels=3,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForSequenceClassification(config)
    with pytest.raises(ValueError, match="`head`: cannot follow"):
        probes.attach_exits(model, "model.layers.?")


class Masked(TextModel):
    """Classes from the mean over all tokens that are not 0."""

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        real = (ids != 0)[..., None]
        return self.head(x.mean(1) if real.all() else (x * real).sum(1) / real.sum(1))


def test_a_padded_sample_shows_pooling_that_heeds_padding():
    torch.manual_seed(0)
    model, ids = Masked().double(), torch.randint(1, 11, (5, 6))
    probes.attach_exits(model, BLOCKS, sample=ids).detach()
    ids[3, 4:] = 0
    with pytest.raises(ValueError, match="`head`: cannot follow"):
        probes.attach_exits(model, BLOCKS, sample=ids)


def test_samples_must_come_first():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 11)
            self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

        def forward(self, ids):
            x = self.embed(ids).transpose(0, 1)
            for block in self.blocks:
                x = block(x)
            return self.head(x.transpose(0, 1))

    model, (ids, y) = Turned(), text(samples=9, tokens=9)
    with pytest.raises(ValueError, match=r"'blocks.0'.* samples first, got shape \(9, 1, 6\)"):
        probes.record_exits(
            model, (ids, y), "blocks.*", head=lambda h: model.head(h.transpose(0, 1))
        )


def test_a_pass_without_logits_is_the_model_s_own_affair():
    model, (ids, y) = gpt2(), text()
    exits = probes.attach_exits(model, "transformer.h.*")
    loss, _ = model(ids, labels=y, return_dict=False)[:2]  # a loss comes first in the tuple
    assert loss.dim() == 0
    with pytest.raises(ValueError, match=r"expected logits .* got shape \(\)"):
        exits.loss(y)


def test_texts_of_one_token():
    model, (ids, y) = text_model(), text(tokens=1)

    def head(h):
        return model.head(h - h.mean(1, keepdim=True))

    record = probes.record_exits(model, (ids, y), BLOCKS, head=head)
    # Each token alone: nothing is left of it, and every class is as likely.
    torch.testing.assert_close(
        torch.from_numpy(record["cross_entropy"].values[0]), torch.full((7,), 11.0).double().log()
    )


def test_batch_norms_on_the_way_keep_the_statistics_of_the_model_s_own_pass():
    torch.manual_seed(0)
    parts = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.BatchNorm1d(4)]
    model = nn.Sequential(*parts, nn.Linear(4, 3)).double()
    x, y = torch.randn(6, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    exits = probes.attach_exits(model, ["1", "3"], weights=(1, 0))
    model(x)
    before = snapshot(model)
    loss = exits.loss(y)
    assert snapshot(model) == before
    z = model[1](model[0](x))
    z = (z - z.mean(0)) / (z.var(0, unbiased=False) + model[4].eps).sqrt()
    torch.testing.assert_close(loss, F.cross_entropy(model[5](z), y))
    model(x)
    assert int(model[4].num_batches_tracked) == 2  # the model's own passes count as before


def test_own_heads_start_as_linear_layers_do_each_by_its_seed():
    model = text_model(width=300)
    first, second = probes.attach_exits(model, BLOCKS, head="own", seed=4).heads
    for head in (first, second):  # uniform up to 1 / sqrt(width), 3300 of them
        weight = head.weight.detach()
        assert weight.abs().max() <= 300**-0.5
        assert float(weight.std()) == pytest.approx((3 * 300) ** -0.5, rel=0.05)
        assert not head.bias.any()
    assert not torch.equal(first.weight, second.weight)
    again = probes.attach_exits(model, BLOCKS, head="own", seed=4).heads
    assert torch.equal(again[1].weight, second.weight)
    other = probes.attach_exits(model, BLOCKS, head="own", seed=5).heads
    assert not torch.equal(other[0].weight, first.weight)
