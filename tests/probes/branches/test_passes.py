"""Rows 20-22 of the table of traps for hooks: which forward pass a loss belongs to."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probes
from tests.helpers.probe_reference import layer_loss, weights_of
from tests.helpers.probe_stages import LAYERS, assert_exact, expected_gradients, make


def test_row_20_eval_and_no_grad_capture_nothing_and_refuse():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    model.eval()
    model(x)
    assert not probe._capture.features
    with pytest.raises(RuntimeError, match="eval mode"):
        probe.loss(y)
    model.train()
    with torch.no_grad():
        model(x)
    assert not probe._capture.features
    with pytest.raises(RuntimeError, match="without gradients"):
        probe.loss(y)


def test_row_20_listening_measures_in_eval_mode_without_gradients():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    model.eval()
    with torch.no_grad(), probe.listening():
        model(x)
        loss = probe.loss(y)
    assert not loss.requires_grad
    assert probe.step == 0
    model.train()
    model(x)
    torch.testing.assert_close(loss, probe.loss(y).detach())


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.shared(self.shared(x).tanh()).tanh())


@pytest.mark.parametrize("calls", ["last", "mean", "all"])
def test_row_21_a_repeated_layer(calls):
    torch.manual_seed(0)
    model, x, y = Twice(), torch.randn(5, 4), torch.randint(0, 3, (5,))
    probe = probes.attach(model, "shared", n=2, calls=calls)
    model(x)
    one = F.linear(x, model.shared.weight, model.shared.bias)
    two = F.linear(one.tanh(), model.shared.weight, model.shared.bias)
    weights = weights_of(probe, "shared")
    expected = {
        "last": layer_loss(two, weights, y, "bce"),
        "mean": layer_loss((one + two) / 2, weights, y, "bce"),
        "all": layer_loss(one, weights, y, "bce") + layer_loss(two, weights, y, "bce"),
    }[calls]
    torch.testing.assert_close(probe.loss(y), expected)


def test_row_21_a_repeated_layer_warns_unless_told():
    model, x, y = Twice(), torch.randn(5, 4), torch.randint(0, 3, (5,))
    probe = probes.attach(model, "shared", n=2)
    model(x)
    with pytest.warns(UserWarning, match="ran 2 times"):
        probe.loss(y)


def test_row_21_the_warning_names_the_line_of_the_caller():
    model, x, y = Twice(), torch.randn(5, 4), torch.randint(0, 3, (5,))
    probe = probes.attach(model, "shared", n=2)
    model(x)
    for take in (probe.measure, probe.loss, lambda y: probe.compression_error(x, y)):
        with pytest.warns(UserWarning, match="ran 2 times") as caught:
            take(y)
        assert [warning.filename for warning in caught] == [__file__]


def test_row_22_the_graph_is_let_go_once_used():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    model(x)
    probe.loss(y)
    assert all(h.grad_fn is None for hs in probe._capture.features.values() for h in hs)
    with pytest.raises(RuntimeError, match="soft targets"):
        probe.loss(y)
    assert probe.measure(y)["loss"].shape == (2, 3)


def test_gradient_accumulation_adds_up():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    for part in (slice(0, 4), slice(4, 7)):
        weight = len(y[part]) / len(y)
        loss = F.cross_entropy(model(x[part]), y[part]) + probe.loss(y[part])
        (weight * loss).backward()
    found = [p.grad for p in [*model.parameters(), *probe.parameters()]]
    torch.testing.assert_close(found, list(expected_gradients(model, probe, x, y)))


def test_only_part_of_the_model_was_run():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    model.stage(x)
    with pytest.raises(RuntimeError, match="not a method"):
        probe.loss(y)


def test_two_probes_on_one_model_do_not_disturb_each_other():
    model, x, y = make()
    one, two = (probes.attach(model, LAYERS, n=n) for n in (2, 3))
    assert_exact(model, model, one, x, y)
    model(x)
    two.loss(y)
    one.detach()
    assert_exact(model, model, two, x, y)


def test_frozen_features_train_the_active_branch_only():
    model, x, y = make()
    model.requires_grad_(False)
    x = x.detach()
    probe = probes.attach(model, LAYERS, n=3)
    model(x)
    probe.loss(y).backward()
    assert all(p.grad is not None for p in probe.parameters())
    static = probes.attach(model, LAYERS, n=3, active=0)
    model(x)
    with pytest.raises(RuntimeError, match="train nothing"):
        static.loss(y)


def test_a_layer_called_after_the_pass_does_not_count():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3, calls="last")
    model(x)
    model.first(torch.randn(7, 4))
    expected = probe.loss(y)
    model(x)
    assert torch.equal(probe.loss(y), expected)


def test_a_pass_that_failed_gives_no_loss():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    with pytest.raises(RuntimeError, match="fails"), model.head.register_forward_pre_hook(_fail):
        model(x)
    with pytest.raises(RuntimeError, match="did not finish"):
        probe.loss(y)


def _fail(*_):
    raise RuntimeError("fails")


def test_listening_ends():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    with probe.listening():
        pass
    model.eval()(x)
    with pytest.raises(RuntimeError, match="eval mode"):
        probe.loss(y)
