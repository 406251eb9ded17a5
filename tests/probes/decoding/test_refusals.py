"""What `probes.generate` refuses, and in which words."""

import pytest
import torch
from torch import nn

import probes
from tests.helpers.decoders import Averager


def prompt():
    return torch.ones(2, 5, dtype=torch.long)


def test_a_model_that_offers_too_little_is_told_what_is_missing():
    with pytest.raises(TypeError, match=r"got a Linear without embed, head, layers"):
        probes.generate(nn.Linear(2, 2), prompt(), 3)
    model = Averager()
    model.layers.append(nn.Identity())
    with pytest.raises(TypeError, match=r"without layers\.3\.project, layers\.3\.attend"):
        probes.generate(model, prompt(), 3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tokens": 0}, "`tokens`: expected a whole number of at least 1, got 0"),
        ({"prompt": torch.zeros(1, 0).long()}, "`prompt`: expected .sample, position."),
        ({"prompt": torch.tensor([[7]])}, "`prompt`: expected tokens 0 to 6, got 7 to 7"),
        ({"prompt": torch.tensor([[-1]])}, "`prompt`: expected tokens 0 to 6, got -1 to -1"),
        ({"follow": torch.zeros(2, 2).long()}, r"`follow`: expected shape \(2, 3\), got \(2, 2\)"),
        ({"threshold": float("nan")}, "`threshold`: expected numbers, got nan"),
        (
            {"threshold": [0.5]},
            "`threshold`: expected one, or one for each of 2 early exits, got 1",
        ),
        ({"layers": (), "threshold": float("nan")}, "`threshold`: expected numbers, got nan"),
        ({"layers": "layers.0.mix"}, "`layers`: expected some of layers.0, layers.1, layers.2"),
        ({"layers": ["layers.1", "layers.0"]}, "`layers`: expected them in order of depth"),
        ({"layers": "blocks.0"}, "`layers`: nothing is called 'blocks.0'"),
        ({"skipped": "forget"}, "`skipped`: expected one of propagate, recompute"),
        ({"tokens": 61}, "`tokens`: the model fails at position 64, .*IndexError"),
        ({"threshold": "high"}, "`threshold`: expected numbers, got 'high'"),
        ({"temperature": -1.0}, "`temperature`: expected a finite number of at least 0, got -1.0"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    given = {"prompt": prompt(), "tokens": 3, "layers": "layers.[01]"} | settings
    with pytest.raises(ValueError, match=words):
        probes.generate(Averager(), given.pop("prompt"), given.pop("tokens"), **given)


def test_every_position_that_the_model_has_can_be_used():
    assert probes.generate(Averager(), prompt(), 60).sizes["position"] == 60


@pytest.mark.parametrize("bad", [torch.zeros(1, 3), [[1, 2]], torch.tensor([[True]])])
def test_a_prompt_without_numbers_is_refused(bad):
    with pytest.raises(TypeError, match="`prompt`: expected a tensor of token numbers"):
        probes.generate(Averager(), bad, 3)
