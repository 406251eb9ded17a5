from collections import UserDict
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from resonance_toolkit import (
    cross_entropy_per_sample,
    has_class_weights,
    ignore_index_of,
    logits_of,
    without_mean,
)


def make_batch(classes=4):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, classes, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, classes, (5,), generator=generator)
    return logits, targets


def test_logits_are_found_in_whatever_a_model_returns():
    logits = torch.ones(2, 3)
    hidden = torch.zeros(2, 9)
    outputs = [
        logits,
        (logits, hidden),
        {"loss": torch.zeros(()), "logits": logits},
        UserDict(hidden=hidden, logits=logits),
        SimpleNamespace(hidden=hidden, logits=logits),
        {"out": logits, "aux": hidden},
    ]
    assert all(logits_of(output) is logits for output in outputs)
    with pytest.raises(ValueError, match="`model`: expected an output with logits, got str"):
        logits_of("logits")


def test_cross_entropy_of_each_sample_is_numpy_s():
    logits, targets = make_batch()
    shifted = logits.numpy()
    expected = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(5), targets.numpy()]

    losses = cross_entropy_per_sample((logits, None), targets)

    np.testing.assert_allclose(losses, expected, rtol=1e-12)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), F.cross_entropy, F.nll_loss])
def test_terms_without_their_mean_have_it(loss):
    logits, targets = make_batch()
    terms = without_mean(loss)(logits, targets)
    assert terms.shape == (5,)
    torch.testing.assert_close(terms.mean(), loss(logits, targets))


def test_weighted_terms_carry_the_weight_of_their_class():
    logits, targets = make_batch()
    weights = torch.arange(1.0, 5.0, dtype=torch.float64)
    loss = nn.CrossEntropyLoss(weights)

    terms = without_mean(loss)(logits, targets)

    expected = weights[targets] * cross_entropy_per_sample(logits, targets)
    torch.testing.assert_close(terms, expected)
    torch.testing.assert_close(terms.sum() / weights[targets].sum(), loss(logits, targets))
    assert loss.reduction == "mean"  # the user's own is untouched


def test_losses_that_are_not_torch_s_stay_as_they_are():
    def own_loss(outputs, targets):
        return (outputs - targets).abs()

    assert without_mean(own_loss) is own_loss
    by_sample = nn.MSELoss(reduction="none")
    assert without_mean(by_sample) is by_sample
    with pytest.raises(ValueError, match=r"`loss`: expected a mean .* got reduction 'sum'"):
        without_mean(nn.MSELoss(reduction="sum"))


def test_weights_and_ignored_targets_are_told():
    weights = torch.ones(3)
    assert has_class_weights(nn.NLLLoss(weights))
    assert not has_class_weights(nn.NLLLoss())
    assert not has_class_weights(nn.BCELoss(weights))  # weights samples, not classes

    assert ignore_index_of(cross_entropy_per_sample) == -100
    assert ignore_index_of(partial(F.nll_loss, ignore_index=7)) == 7
    assert ignore_index_of(nn.MSELoss()) is None
    assert ignore_index_of(lambda outputs, targets: outputs) is None
