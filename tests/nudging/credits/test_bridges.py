"""State Bridge, Credit Bridge and equilibrium propagation against what they stand for."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.functional import jacobian

import nudging
from lab.backbones.resmlp import ResMLP
from nudging._credits.credit_bridge import soft_minimum, value
from tests.helpers.linear_network import make_linear_network

BLOCKS = ["embed", "blocks.*"]


def squared(outputs, targets):
    return 0.5 * (outputs - targets).square().sum(1)


def cosines(credit, state):
    found, true = credit(state), state.gradient()
    return [torch.cosine_similarity(found[b], true[b]).mean().item() for b in state.blocks]


@pytest.fixture
def state():
    torch.manual_seed(0)
    model = ResMLP(3, inputs=4, width=6, depth=2, std=0.3).double()
    return nudging.observe(model, torch.randn(5, 4).double(), torch.randint(3, (5,)), BLOCKS)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("at_prediction", [True, False])
def test_state_bridge_is_the_jacobian_times_the_readout_gradient(state, skip, at_prediction):
    bridge = nudging.StateBridge(hidden=16, skip=skip, at_prediction=at_prediction)
    for _ in range(3):
        bridge.update(state)
    model, found = state.model, bridge(state)
    with torch.no_grad():
        signal = torch.softmax(state.outputs, 1) - nn.functional.one_hot(state.targets, 3)
    for index, block in enumerate(["embed", "blocks.0"]):
        for i in range(5):

            def predict(h, i=i, index=index):
                time = torch.tensor([index / 2]).double()
                change = h.square().mean().sqrt() * bridge.net(
                    h[None, None], time, signal[i : i + 1]
                )
                return h * skip + change[0, 0]

            h = state.hidden[block][i]
            terminal = predict(h) if at_prediction else state.hidden["blocks.1"][i]
            terminal = terminal.detach().requires_grad_()
            logits = model.head(model.norm(terminal))
            loss = nn.functional.cross_entropy(logits, state.targets[i])
            (slope,) = torch.autograd.grad(loss, terminal)
            expected = jacobian(predict, h).T @ slope
            torch.testing.assert_close(found[block][i], expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found["blocks.1"], state.gradient()["blocks.1"])


def test_state_bridge_learns_the_relative_squared_error(state):
    bridge = nudging.StateBridge(hidden=16, skip=True)
    bridge.update(state)
    goal = state.hidden["blocks.1"].numpy()
    signal = nudging._credits.output_error.output_error(state)
    errors = []
    for index, block in enumerate(["embed", "blocks.0"]):
        h = state.hidden[block]
        size = h.square().mean(1, keepdim=True).sqrt()
        with torch.no_grad():
            change = bridge.net(h[:, None], torch.full((5,), index / 2).double(), signal)[:, 0]
        errors.append(((h + size * change).numpy() - goal) ** 2)
    expected = np.mean([e.sum(1) / (goal**2).sum(1) for e in errors])
    assert bridge.update(state) == pytest.approx(expected, rel=1e-5)


def test_soft_minimum_is_minus_t_log_mean_exp():
    values = torch.randn(8, 3, dtype=torch.float64)
    expected = -0.1 * np.log(np.mean(np.exp(-values.numpy() / 0.1), axis=0))
    np.testing.assert_allclose(soft_minimum(values, 0.1), expected, rtol=1e-12)
    np.testing.assert_allclose(soft_minimum(values, 1e-6), values.amin(0), atol=1e-4)
    np.testing.assert_allclose(soft_minimum(values, 1e6), values.mean(0), atol=1e-4)


def test_credit_bridge_is_the_slope_of_its_value(state):
    bridge = nudging.CreditBridge(hidden=16, draws=2)
    for _ in range(3):
        bridge.update(state)
    signal = nudging._credits.output_error.output_error(state)
    found, step = bridge(state), 1e-6
    for index, block in enumerate(state.blocks):
        h, time = state.hidden[block], torch.full((5,), index / 2).double()
        for feature in range(6):
            move = step * torch.eye(6)[feature].double()
            high, low = (value(bridge.net, (h + s * move)[:, None], time, signal) for s in (1, -1))
            expected = ((high - low) / (2 * step)).detach()
            torch.testing.assert_close(found[block][:, feature], expected, rtol=1e-5, atol=1e-8)


def test_credit_bridge_loss_is_bridge_plus_value_plus_slope(state):
    bridge = nudging.CreditBridge(hidden=16, noise=0.0, terminal=0.7, lr=1e-12)
    bridge.update(state)  # makes the networks, and hardly moves them: slow and fast are alike
    signal, last = nudging._credits.output_error.output_error(state), state.hidden["blocks.1"]
    with torch.no_grad():
        values = [
            value(bridge.net, h[:, None], torch.full((5,), i / 2).double(), signal).numpy()
            for i, h in enumerate(state.hidden.values())
        ]
    between = np.mean([(values[i] - values[i + 1]) ** 2 for i in (0, 1)])  # no noise: no softening
    level = np.mean((values[2] - state.losses().numpy()) ** 2)
    slopes = [bridge(state)["blocks.1"].numpy(), state.gradient()["blocks.1"].numpy()]
    unit = [s / np.sqrt((s**2).mean(1, keepdims=True)) for s in slopes]
    expected = between + level + 0.7 * np.mean((unit[0] - unit[1]) ** 2)
    assert bridge.update(state) == pytest.approx(expected, rel=1e-6)
    assert last.grad is None


def test_the_slow_copy_follows(state):
    bridge = nudging.CreditBridge(hidden=16, decay=0.9, lr=0.1)
    bridge.update(state)
    before = bridge.slow.first.weight.clone()
    bridge.update(state)
    expected = 0.9 * before + 0.1 * bridge.net.first.weight
    torch.testing.assert_close(bridge.slow.first.weight, expected.detach())


def test_bridges_find_the_costate_of_a_linear_network_and_feedback_does_not():
    torch.manual_seed(0)
    model = make_linear_network(48, 3, targets=2, scale=0.3)
    data = torch.randn(4096, 48), torch.randn(4096, 2)
    fresh = torch.randn(256, 48), torch.randn(256, 2)
    state = nudging.observe(model, *fresh, "blocks.*", loss=squared)
    small = {"hidden": 512, "layers": 2, "lr": 3e-3}
    bridges = [nudging.StateBridge(**small), nudging.CreditBridge(**small, draws=2)]
    for bridge, epochs in zip(bridges, (6, 16), strict=True):
        bridge.fit(model, data, "blocks.*", loss=squared, epochs=epochs, batch_size=64)
        assert min(cosines(bridge, state)) > 0.9
    many = [cosines(nudging.direct_feedback(seed=s), state) for s in range(40)]
    assert abs(np.mean(many)) < 3 * np.std(np.mean(many, axis=1)) / 40**0.5 + 0.01


@pytest.mark.parametrize("make", [nudging.StateBridge, nudging.CreditBridge])
def test_a_bridge_gives_every_token_of_a_transformer_its_credit(make):
    from timm.models import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(
        img_size=8, patch_size=4, num_classes=3, embed_dim=8, depth=3, num_heads=2
    )
    data = torch.randn(8, 3, 8, 8), torch.randint(3, (8,))
    bridge = make(hidden=16)
    curve = bridge.fit(model, data, "blocks.*", epochs=2, batch_size=4)
    credit = bridge(nudging.observe(model, *data, "blocks.*"))
    assert credit["blocks.0"].shape == (8, 5, 8)
    assert bool((credit["blocks.0"].abs().sum(2) > 0).all())
    assert curve["loss"].sizes == {"epoch": 2}
    assert bool(np.isfinite(curve["loss"]).all())


def _chain():
    torch.manual_seed(0)
    model = make_linear_network(5, 3, targets=4, scale=0.3).double()
    x, y = torch.randn(6, 5).double(), torch.randn(6, 4).double()
    return model, nudging.observe(model, x, y, "blocks.*", loss=squared)


def test_equilibrium_displacement_is_the_sum_of_what_earlier_blocks_pass_on():
    model, state = _chain()
    relaxed = {"beta": 1e-6, "steps": 400, "rate": 0.3, "anchored": True}
    moved = nudging.EquilibriumPropagation(**relaxed)(state)
    error = nudging.EquilibriumPropagation(**relaxed, of="error")(state)
    weights = [block.weight.detach().numpy() for block in model.blocks]
    head = model.head.weight.detach().numpy()
    # Closed form: costates by hand, then displacements h_l' = g_l + W_l h_{l-1}'.
    slope = (state.outputs.numpy() - state.targets.numpy()) @ head
    costates = [slope @ weights[2] @ weights[1], slope @ weights[2], slope]
    passed = np.zeros((6, 5))
    for block, weight, costate in zip(state.blocks, weights, costates, strict=True):
        passed = costate + passed @ weight.T
        np.testing.assert_allclose(error[block], costate, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(moved[block], passed, rtol=1e-4, atol=1e-5)


def test_one_step_of_equilibrium_is_a_step_against_the_readout_gradient():
    _, state = _chain()
    credit = nudging.EquilibriumPropagation(beta=0.5, steps=1, rate=0.1)(state)
    torch.testing.assert_close(credit["blocks.2"], 0.1 * state.gradient()["blocks.2"])
    assert not credit["blocks.0"].any()  # the pull has not come so far


def test_equilibrium_refuses_what_is_no_chain():
    _, state = _chain()
    gap = nudging.observe(
        state.model, state.inputs, state.targets, ["blocks.0", "blocks.2"], loss=squared
    )
    with pytest.raises(ValueError, match=r"expects a chain of blocks, but .* 'blocks\.2'"):
        nudging.EquilibriumPropagation()(gap)
    settings = {"beta": 0, "steps": 0, "rate": -1.0, "of": "else"}
    for name, setting in settings.items():
        with pytest.raises(ValueError, match=f"`{name}`"):
            nudging.EquilibriumPropagation(**{name: setting})
