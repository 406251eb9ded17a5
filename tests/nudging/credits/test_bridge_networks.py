"""The networks inside the bridges: what they see, and what their values are compared with."""

import numpy as np
import pytest
import torch

import nudging
from lab.backbones.resmlp import ResMLP
from nudging._credits.credit_bridge import value
from nudging._credits.network import BridgeNetwork, NetworkSettings


@pytest.mark.parametrize("relative", [True, False])
def test_the_goal_is_a_soft_minimum_of_the_slow_copy_around_the_next_block(relative):
    torch.manual_seed(0)
    model = ResMLP(3, inputs=4, width=6, depth=2, std=0.3).double()
    x, y = (
        torch.randn(5, 4).double() * torch.tensor([[0.1], [1], [2], [5], [9]]),
        torch.arange(5) % 3,
    )
    state = nudging.observe(model, x, y, ["embed", "blocks.*"])
    bridge = nudging.CreditBridge(
        hidden=16,
        draws=3,
        noise=0.5,
        relative_noise=relative,
        temperature=0.2,
        decay=0.9,
        lr=0.05,
        terminal=0.0,
    )
    for _ in range(4):  # until the slow copy is far from the network
        bridge.update(state)
    signal = torch.softmax(state.outputs, 1) - torch.eye(3).double()[y]
    generator = torch.Generator()
    generator.set_state(bridge.generator.get_state())
    eps = torch.randn(3, 10, 1, 6, generator=generator).double().split(5, dim=1)
    hidden = list(state.hidden.values())

    @torch.no_grad()
    def values(net, h, block):
        time = torch.full((5,), block / 2).double()
        return value(net, h[..., None, :], time, signal).numpy()

    between = []
    for block in (0, 1):
        after = hidden[block + 1]
        size = after.square().mean(1, keepdim=True).sqrt() if relative else 1.0
        near = [values(bridge.slow, after + 0.5 * size * e[:, 0], block + 1) for e in eps[block]]
        goal = -0.2 * np.log(np.mean(np.exp(-np.array(near) / 0.2), axis=0))
        between.append((values(bridge.net, hidden[block], block) - goal) ** 2)
    level = (values(bridge.net, hidden[2], 2) - state.losses().numpy()) ** 2
    assert bridge.update(state) == pytest.approx(np.mean(between) + np.mean(level), rel=1e-6)


def test_every_position_sees_itself_and_the_mean_of_all():
    settings = NetworkSettings(width=4, classes=2, pooled=True, hidden=8, layers=2, times=6, seed=0)
    net = BridgeNetwork(settings, outputs=3).double()
    torch.manual_seed(1)
    rows, time = torch.randn(2, 7, 4).double(), torch.tensor([0.2, 0.9]).double()
    signal, order = torch.randn(2, 2).double(), torch.randperm(7)
    out = net(rows, time, signal)
    torch.testing.assert_close(net(rows[:, order], time, signal), out[:, order])
    others = rows.clone()
    others[:, 1:] = rows[:, 1:].flip(0) + rows[:, 1:].mean(1, keepdim=True)  # another mean
    assert (net(others, time, signal)[:, 0] - out[:, 0]).abs().min() > 1e-4
    others[:, 1:] = rows[:, 1:].mean(1, keepdim=True)  # the same
    torch.testing.assert_close(net(others, time, signal)[:, 0], out[:, 0])
