"""What targets are understood as, and which are refused at the door."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probes
from tests.helpers.probe_reference import layer_loss, weights_of


def make(**settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    probe = probes.attach(model, "0", n=2, active="all", **settings)
    model(x)
    return model, x, probe


@pytest.mark.parametrize("loss", ["bce", "ce", F.cross_entropy])
@pytest.mark.parametrize(
    "convert",
    [
        lambda y: y.int(),
        lambda y: y.to(torch.uint8),
        lambda y: y[:, None],
        lambda y: y[:, None].to(torch.int16),
    ],
)
def test_class_indices_of_any_width_and_in_a_column(convert, loss):
    model, x, probe = make(loss=loss)
    y = torch.arange(5) % 3
    expected = layer_loss(model[0](x), weights_of(probe, "0"), y, loss)
    torch.testing.assert_close(probe.loss(convert(y)), expected, rtol=1e-12, atol=0)


REFUSALS = {
    "NaN": (torch.full((5, 3), float("nan")), "expected targets that are numbers, got NaN"),
    "one NaN": (
        torch.tensor([[0.0, 1.0, float("nan")]] * 5),
        "expected targets that are numbers, got NaN",
    ),
    "logits": (torch.randn(5, 3).mul(4), r"from 0 to 1 .* logits are not labels"),
    "counts": (torch.tensor([[0, 1, 2]] * 5).double(), r"from 0 to 1 for loss='bce', got 0 to 2"),
    "real numbers": (torch.tensor([8.4, 1, 2, 3, 4]), r"\(5,\) of floating numbers; convert"),
    "floating classes": (torch.tensor([0.0, 1, 2, 0, 1]), r"class indices by y\.long\(\)"),
    "a column of numbers": (torch.tensor([[8.4]] * 5), r"got shape \(5, 1\) of floating numbers"),
    "complex": (torch.zeros(5, dtype=torch.complex64), r"got shape \(5,\)"),
    "out of range": (torch.full((5, 1), 3, dtype=torch.int32), "0 to 2, got 3 to 3"),
    "nothing that counts": (torch.full((5,), -100), "got -100 to -100"),
}


@pytest.mark.parametrize("case", list(REFUSALS))
def test_targets_that_mean_nothing_are_refused(case):
    y, message = REFUSALS[case]
    _, _, probe = make()
    for verb in (probe.loss, probe.measure):
        with pytest.raises(ValueError, match=message):
            verb(y)
    assert torch.isfinite(probe.loss(torch.arange(5) % 3))


def test_a_softmax_loss_refuses_logits_too():
    _, _, probe = make(loss="ce")
    with pytest.raises(ValueError, match="expected numbers from 0 to 1 for loss='ce'"):
        probe.loss(torch.tensor([[0.5, -0.5, 1.0]] * 5))


def test_a_callable_loss_may_take_real_numbers():
    model, x, probe = make(loss=F.mse_loss)
    y = torch.randn(5, 3, dtype=torch.float64) * 9
    expected = layer_loss(model[0](x), weights_of(probe, "0"), y, F.mse_loss)
    torch.testing.assert_close(probe.loss(y), expected)
    assert probe.measure(y).attrs["targets"] == "given to the loss"


@pytest.mark.parametrize(
    ("loss", "y", "meaning"),
    [
        ("bce", torch.arange(5) % 3, "classes"),
        ("ce", torch.arange(5) % 3, "classes"),
        ("bce", F.one_hot(torch.arange(5) % 3, 3), "several labels"),
        ("ce", torch.full((5, 3), 1 / 3), "distributions"),
    ],
)
def test_results_say_what_targets_were_understood_as(loss, y, meaning):
    _, _, probe = make(loss=loss)
    assert probe.measure(y).attrs["targets"] == meaning


@pytest.mark.parametrize("verb", ["loss", "measure"])
def test_an_accelerator_is_waited_for_once(monkeypatch, verb):
    """As on an accelerator: targets are looked at for the first loss and for measurements."""
    looks = []

    def can_look_at(y, *, may_wait=False):
        looks.append(may_wait)
        return may_wait

    monkeypatch.setattr(probes._branches.targets, "can_look_at", can_look_at)
    model, x, probe = make()
    with pytest.raises(ValueError, match="expected class indices 0 to 2, got 3 to 3"):
        getattr(probe, verb)(torch.full((5,), 3))
    assert torch.isfinite(probe.loss(torch.arange(5) % 3))

    looks.clear()
    model(x)
    probe.loss(torch.arange(5) % 3)
    assert not any(looks)
    probe.measure(torch.arange(5) % 3)
    assert any(looks)


class Packing(nn.Module):
    """Packs its sequences where it is told their lengths."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.mix = nn.Linear(5, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x, lengths=None):
        if lengths is not None:
            pack = nn.utils.rnn.pack_padded_sequence
            x = pack(x, lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = self.lstm(x)
        if lengths is not None:
            hidden, _ = nn.utils.rnn.pad_packed_sequence(hidden, batch_first=True)
        return self.head(self.mix(hidden))


def test_packed_sequences_are_refused_and_can_be_probed_behind():
    torch.manual_seed(0)
    model, x, lengths = Packing().double(), torch.randn(3, 6, 4).double(), torch.tensor([6, 3, 2])
    y = torch.randint(0, 3, (3, 6))
    with pytest.raises(ValueError, match=r"at 'lstm': expected one entry per sample first"):
        probes.attach(model, "lstm", sample=(x, lengths))

    probe = probes.attach(model, "lstm", n=2, sample=x)
    model(x, lengths)
    with pytest.raises(RuntimeError, match=r"'lstm' gave no axis of positions.*packed sequence"):
        probe.loss(y)

    # A pack takes lengths of numbers, which a pass without data does not have.
    probe = probes.attach(model, "mix", n=2, active="all", sample=x)
    y[1, 3:], y[2, 2:] = -100, -100
    model(x, lengths)
    loss = probe.loss(y)
    hidden = [model.mix(model.lstm(x[i : i + 1, :n])[0])[0] for i, n in enumerate(lengths)]
    expected = layer_loss(torch.cat(hidden), weights_of(probe, "mix"), y[y != -100], "bce")
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)


def test_evaluation_names_what_is_wrong_with_inputs():
    model, x, probe = make()
    y = torch.arange(5) % 3
    x_nan = x.clone()
    x_nan[3, 1] = float("nan")
    with pytest.raises(
        ValueError, match="`data`: expected inputs that are numbers, got NaN in sam"
    ):
        probe.evaluate((x_nan, y))
    with pytest.raises(ValueError, match=r"inputs of float32 for weights of float64; convert"):
        probe.evaluate((x.float(), y))
    with pytest.raises(ValueError, match=r"inputs of uint8 for weights of float64; convert"):
        probe.evaluate((x.abs().mul(9).to(torch.uint8), y))
    with pytest.raises(ValueError, match="`data`: expected at least one sample, got none"):
        probe.evaluate((x[:0], y[:0]))
    model(x[:0])
    with pytest.raises(ValueError, match="`y`: expected at least one sample, got an empty batch"):
        probe.loss(y[:0])
    model(x[:1])
    assert torch.isfinite(probe.loss(y[:1]))
