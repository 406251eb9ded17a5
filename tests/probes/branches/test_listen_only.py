"""Probes that only listen: heads trained on features, and nothing sent back."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probes


def make(seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 6)]
    model = nn.Sequential(*layers, nn.Tanh(), nn.Linear(6, 3))
    return model, torch.randn(20, 5), torch.arange(20) % 3


def gradients(model, x, y, *listeners):
    model.zero_grad()
    total = F.cross_entropy(model(x), y)
    for probe in listeners:
        total = total + probe.loss(y)
    total.backward()
    return [p.grad.clone() for p in model.parameters()]


LAYERS = ["0", "2", "4"]


@pytest.mark.parametrize("loss", ["bce", "ce", F.cross_entropy])
@pytest.mark.parametrize("n", [1, 3])
def test_the_backbone_gets_bitwise_the_gradients_that_it_gets_without(loss, n):
    model, x, y = make()
    plain = gradients(copy.deepcopy(model), x, y)

    with probes.attach(model, LAYERS, n=n, loss=loss, listen_only=True) as probe:
        heard = gradients(model, x, y, probe)

    assert all(torch.equal(a, b) for a, b in zip(plain, heard, strict=True))
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in probe.parameters())


def test_a_pool_that_uses_parameters_of_the_model_sends_nothing_to_them():
    model, x, y = make()
    plain = gradients(copy.deepcopy(model), x, y)

    def pool(hidden):
        return hidden[:, :3] * model[5].bias

    with probes.attach(model, "3", pool=pool, listen_only=True) as probe:
        heard = gradients(model, x, y, probe)
    assert all(torch.equal(a, b) for a, b in zip(plain, heard, strict=True))


def test_beside_ordinary_branches_both_are_what_they_are_alone():
    model, x, y = make()
    alone_model, alone_listened = copy.deepcopy(model), copy.deepcopy(model)

    alone = probes.attach(alone_model, LAYERS, n=4)
    expected = gradients(alone_model, x, y, alone)
    listener_alone = probes.attach(alone_listened, LAYERS, listen_only=True)
    gradients(alone_listened, x, y, listener_alone)

    branches = probes.attach(model, LAYERS, n=4)
    listener = probes.attach(model, LAYERS, listen_only=True)
    together = gradients(model, x, y, branches, listener)

    assert all(torch.equal(a, b) for a, b in zip(expected, together, strict=True))
    pairs = zip(
        [*alone.parameters(), *listener_alone.parameters()],
        [*branches.parameters(), *listener.parameters()],
        strict=True,
    )
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)


@pytest.mark.parametrize("loss", ["bce", "ce"])
def test_loss_and_gradients_are_those_of_linear_heads_on_detached_features(loss):
    model, x, y = make()
    probe = probes.attach(
        model, ["0", "4"], loss=loss, alpha={"0": 0.5, "4": 2.0}, listen_only=True
    )
    model(x)
    total = probe.loss(y)
    total.backward()

    expected = 0
    heads = []
    hidden = {"0": model[0](x).detach(), "4": model[:5](x).detach()}
    for (name, features), alpha in zip(hidden.items(), (0.5, 2.0), strict=True):
        (weight,) = probe.branches[f"at_{name}"].active.detach()
        assert weight.shape == (3, features.shape[1] + 1)
        assert (weight[:, -1] == 0).all()  # the bias

        head = nn.Linear(features.shape[1], 3)
        head.weight.data, head.bias.data = weight[:, :-1].clone(), weight[:, -1].clone()
        one_hot = F.one_hot(y, 3).float()
        if loss == "ce":
            expected = expected + alpha * F.cross_entropy(head(features), y)
        else:
            expected = expected + alpha * F.binary_cross_entropy_with_logits(
                head(features), one_hot
            )
        heads.append(head)
    expected.backward()

    torch.testing.assert_close(total, expected)
    for head, layer in zip(heads, probe.branches.values(), strict=True):
        gradient = torch.cat([head.weight.grad, head.bias.grad[:, None]], 1)
        torch.testing.assert_close(layer.active.grad[0], gradient)


def test_weights_are_drawn_as_for_branches_that_send():
    model, *_ = make()
    sending = probes.attach(model, LAYERS, n=2, active="all")
    listening = probes.attach(model, LAYERS, n=2, listen_only=True)
    for ours, theirs in zip(listening.parameters(), sending.parameters(), strict=True):
        assert torch.equal(ours[..., :-1], theirs)
    assert listening.n_parameters == sending.n_parameters + 2 * 3 * 3


@pytest.mark.parametrize("way", ["no_grad", "inference_mode", "frozen", "eval"])
def test_it_learns_beside_a_frozen_model(way):
    model, x, y = make()
    model.requires_grad_(way == "eval")
    probe = probes.attach(model, LAYERS, loss="ce", listen_only=True)
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.5)
    contexts = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    model.train(way == "frozen")

    losses = []
    for _ in range(20):
        with probe.listening(), contexts.get(way, torch.enable_grad)():
            model(x)
        loss = probe.loss(y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    assert losses[-1] < 0.9 * losses[0]
    assert probe.step == 20
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_checkpointed_layers_of_either_kind_are_heard():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.stem, self.block, self.head = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)
            self.reentrant = reentrant

        def forward(self, x):
            h = checkpoint(self.block, self.stem(x), use_reentrant=self.reentrant)
            return self.head(h)

    for reentrant in (True, False):
        torch.manual_seed(0)
        model, x, y = Checkpointed(reentrant), torch.randn(4, 5), torch.tensor([0, 1, 2, 0])
        plain = gradients(copy.deepcopy(model), x, y)
        with probes.attach(model, "block", sample=x, listen_only=True) as probe:
            heard = gradients(model, x, y, probe)
        assert all(torch.equal(a, b) for a, b in zip(plain, heard, strict=True))


def test_tokens_and_pixels():
    torch.manual_seed(0)
    tagger = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 5), nn.Linear(5, 3))
    ids, y = torch.randint(0, 9, (5, 6)), torch.randint(0, 3, (5, 6))
    y[0, 1:] = -100
    with probes.attach(tagger, "1", loss="ce", sample=ids, listen_only=True) as probe:
        tagger(ids)
        loss = probe.loss(y)
        (weight,) = probe.branches["at_1"].active
        logits = F.linear(tagger[:2](ids), weight[:, :-1], weight[:, -1])
        torch.testing.assert_close(loss, F.cross_entropy(logits.mT, y))
        assert probe.evaluate((ids, y))["n_targets"].item() == 25

    painter = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 3, 1))
    x, mask = torch.randn(2, 1, 6, 6), torch.randint(0, 3, (2, 6, 6))
    with probes.attach(painter, "0", loss="ce", sample=x, listen_only=True) as probe:
        painter(x)
        loss = probe.loss(mask)
        (weight,) = probe.branches["at_0"].active
        logits = F.conv2d(painter[0](x), weight[:, :-1, None, None], weight[:, -1])
        torch.testing.assert_close(loss, F.cross_entropy(logits, mask))


def test_measure_evaluate_state_and_copies():
    model, x, y = make()
    model.eval()
    probe = probes.attach(model, LAYERS, n=2, listen_only=True)
    for parameter in probe.parameters():
        parameter.data += torch.randn_like(parameter) / 5  # biases, too

    with probe.listening():
        model(x)
    measured, evaluated = probe.measure(y), probe.evaluate((x, y), batch_size=7)
    torch.testing.assert_close(
        torch.tensor(measured["loss"].values), torch.tensor(evaluated["loss"].values)
    )
    h = model[:5](x)
    for branch, weight in enumerate(probe.branches["at_4"].active):
        hits = F.linear(h, weight[:, :-1], weight[:, -1]).argmax(1) == y
        accuracy = evaluated["accuracy"].sel(layer="4", branch=branch).item()
        assert accuracy == pytest.approx(hits.float().mean().item())
    assert evaluated.attrs["listen_only"] == 1
    assert evaluated["trained"].all()
    assert "listen_only=True, attached" in repr(probe)

    other = probes.attach(model, LAYERS, n=2, seed=1, listen_only=True)
    other.load_state_dict(probe.state_dict())
    assert other.evaluate((x, y))["loss"].equals(probe.evaluate((x, y))["loss"])

    clone = pickle.loads(pickle.dumps(probe)).reattach(model)
    probe.detach(), other.detach()
    model.train()
    plain = gradients(model, x, y)
    assert all(torch.equal(a, b) for a, b in zip(plain, gradients(model, x, y, clone), strict=True))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "compressed"}, "`method`: expected 'exact' with listen_only=True"),
        ({"connected": False}, "`connected`: expected True with listen_only=True"),
        ({"n": 3, "active": 1}, "`active`: expected 'all' with listen_only=True, got 1"),
        ({"active": 0}, "`active`: expected 'all' with listen_only=True, got 0"),
        ({"alpha": probes.schedules.balance(0.5)}, "`alpha`: expected a number, mapping or"),
    ],
)
def test_what_means_nothing_without_a_gradient_sent_is_refused(settings, words):
    model, *_ = make()
    with pytest.raises(ValueError, match=words):
        probes.attach(model, LAYERS, listen_only=True, **settings)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_word_for_listening_is_refused():
    model, *_ = make()
    with pytest.raises(TypeError, match="`listen_only`: expected True or False, got 'yes'"):
        probes.attach(model, LAYERS, listen_only="yes")


def test_frozen_branches_are_refused():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, listen_only=True).requires_grad_(False)
    model(x)
    with pytest.raises(RuntimeError, match="would train nothing: its branches need no gradient"):
        probe.loss(y)


def test_channels_first_and_half_precision():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(4, 3)).bfloat16()
    x, y = torch.randn(6, 1, 8, 8).bfloat16(), torch.arange(6) % 3
    with probes.attach(model, "0", sample=x, listen_only=True) as probe:
        model(x)
        probe.loss(y).backward()
        assert {p.dtype for p in probe.parameters()} == {torch.float32}
        assert all(p.grad is None for p in model.parameters())
        assert probe.fit((x, y))["accuracy"].notnull().all()
