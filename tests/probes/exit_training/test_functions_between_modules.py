"""What models do between their modules on the way to logits: proven, or refused."""

import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probes
from tests.helpers.exit_models import BLOCKS, TextModel, text


class Tailed(TextModel):
    """A text model whose logits are made of its last block's output by a function."""

    def __init__(self, tail):
        super().__init__()
        self.tail = tail
        self.dense = nn.Linear(6, 6)
        self.wide_head = nn.Linear(12, 11)
        self.config = types.SimpleNamespace(final_logit_softcapping=0.5)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.tail(self, x)


def tailed(tail):
    torch.manual_seed(0)
    return Tailed(tail).double()


def first_and_mean(model, x):
    return model.wide_head(torch.cat([x[:, 0], x[:, 1:].mean(1)], 1))


OF_TOKENS = {
    "T5": lambda model, x: model.head(x * 6**-0.5),
    "Cohere": lambda model, x: model.head(x) * 0.25,
    "Gemma": lambda model, x: 0.5 * torch.tanh(model.head(x) / 0.5),
    "relu": lambda model, x: model.head(F.relu(model.dense(x))),
    "gelu": lambda model, x: model.head(F.gelu(model.dense(x))),
    "gelu (tanh)": lambda model, x: model.head(F.gelu(model.dense(x), approximate="tanh")),
}
OF_SAMPLES = {
    "DistilBERT": lambda model, x: model.head(F.relu(model.dense(x[:, 0]))),
    "DINOv2": first_and_mean,
    "AST": lambda model, x: model.head((x[:, 0] + x[:, 1]) / 2),
}


@pytest.mark.parametrize("name", OF_TOKENS | OF_SAMPLES)
def test_an_exit_takes_the_functions_along(name):
    tail = (OF_TOKENS | OF_SAMPLES)[name]
    model, (ids, next_ids) = tailed(tail), text()
    targets = next_ids if name in OF_TOKENS else next_ids[:, 0]

    with probes.attach_exits(model, BLOCKS, weights=(1, 0, 0), sample=ids) as exits:
        model(ids)
        loss = exits.loss(targets, shift=False)
    logits = tail(model, model.blocks[0](model.embed(ids)))
    expected = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "tail",
    [
        # Another factor at each token, and one that only looks constant, as there is one row.
        lambda model, x: model.head(F.normalize(model.dense(x), dim=-1)),
        lambda model, x: model.head(F.normalize(x.mean(1), dim=-1)),
        # A cap that the configuration does not know.
        lambda model, x: 0.7 * torch.tanh(model.head(x) / 0.7),
    ],
)
def test_what_is_no_constant_is_refused(tail):
    ids, _ = text(samples=1)
    with pytest.raises(ValueError, match="`head`: cannot follow"):
        probes.attach_exits(tailed(tail), BLOCKS, sample=ids)


def test_a_module_beside_the_way_is_no_end_of_it():
    def read_beside(model, x):
        model.dense(x[:, 0])  # as CLIP's norm of a token that its classifier does not read
        return model.head(x[:, 1:].mean(1))

    model, (ids, _) = tailed(read_beside), text()
    exits = probes.attach_exits(model, BLOCKS, sample=ids)
    assert exits.points["blocks.0"].head.modules == ["head"]


def test_a_map_of_logits_is_told_as_such():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 5, 1))
    with pytest.raises(ValueError, match=r"^`model`: expected logits \(sample, class\) or"):
        probes.attach_exits(model, ["0", "1"], sample=torch.zeros(2, 3, 8, 8))


def test_a_last_token_is_read_where_no_text_is_padded():
    def read_last(model, x):
        return model.head(x)[:, -1]

    model, (ids, next_ids) = tailed(read_last), text()
    measured = probes.exits(model, (ids, next_ids[:, -1]), BLOCKS)
    with torch.no_grad():
        logits = read_last(model, model.blocks[0](model.embed(ids)))
    expected = F.cross_entropy(logits, next_ids[:, -1]).item()

    # At a threshold of 0 every sample leaves at the first exit.
    loss = measured["cross_entropy"].sel(threshold=0, exit="any", measure="max softmax")
    assert loss.item() == pytest.approx(expected, rel=1e-6)

    # Exits that are trained do not see whether the texts of a later pass are padded.
    with pytest.raises(ValueError, match="`head`: cannot follow"):
        probes.attach_exits(model, BLOCKS, sample=ids)
