"""Torch's losses over classes, against torch itself, one sample at a time."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from resonance_toolkit import fit_class_loss


def make_tokens(ignored=-100):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 6, 5, generator=generator, dtype=torch.float64)  # classes last
    targets = torch.randint(0, 5, (4, 6), generator=generator)
    targets[0, 3:] = ignored
    targets[2, 1] = ignored
    return logits, targets


@pytest.mark.parametrize("ignored", [-100, 3])
def test_positions_that_are_ignored_do_not_count(ignored):
    logits, targets = make_tokens(ignored)
    expected = torch.stack(
        [
            F.cross_entropy(row, classes, ignore_index=ignored)
            for row, classes in zip(logits, targets, strict=True)
        ]
    )
    ways = [
        nn.CrossEntropyLoss(ignore_index=ignored),
        partial(F.cross_entropy, ignore_index=ignored),
    ]
    if ignored == -100:
        ways += [F.cross_entropy, nn.CrossEntropyLoss()]
    for way in ways:
        loss = fit_class_loss(way, [targets])
        for outputs in (logits, logits.movedim(-1, 1), SimpleNamespace(logits=logits)):
            for classes in (targets, targets.int()):
                torch.testing.assert_close(loss(outputs, classes), expected)


def test_plain_classes_have_the_bits_of_torch():
    logits, targets = make_tokens()
    scores, classes = logits[:, 0], targets[:, 0]
    expected = F.cross_entropy(scores, classes, reduction="none")
    for form in (classes, classes[:, None], classes.int(), classes.byte()):
        assert torch.equal(fit_class_loss(F.cross_entropy, [form])(scores, form), expected)


def test_weights_mean_the_same_in_several_batches():
    logits, targets = make_tokens()
    scores = logits.movedim(-1, 1)
    weights = torch.tensor([1.0, 5.0, 0.1, 2.0, 3.0]).double()
    way = nn.CrossEntropyLoss(weights, label_smoothing=0.1)
    expected = way(scores, targets)

    values = fit_class_loss(way, [targets])(scores, targets)
    torch.testing.assert_close(values.mean(), expected)
    loss = fit_class_loss(way, [targets[:1], targets[1:]])
    values = torch.cat([loss(scores[:1], targets[:1]), loss(scores[1:], targets[1:])])
    torch.testing.assert_close(values.mean(), expected)


def test_targets_that_are_no_classes_are_refused():
    logits, targets = make_tokens()
    with pytest.raises(ValueError, match=r"expected classes of at least 0 \(or 3, .* got -100"):
        fit_class_loss(nn.CrossEntropyLoss(ignore_index=3), [targets])
    loss = fit_class_loss(F.cross_entropy, [targets.clamp(min=0) + 2])
    with pytest.raises(ValueError, match=r"expected classes 0 to 4 .* got 6"):
        loss(logits, targets)


def test_other_losses_are_left_alone():
    for loss in (lambda outputs, targets: 0, nn.Module()):
        assert fit_class_loss(loss, []) is loss
