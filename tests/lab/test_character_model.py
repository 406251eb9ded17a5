"""The reference character model: its published counts, causality, and rotary positions."""

import numpy as np
import pytest
import torch

from lab.backbones.character_model import CharacterModel, rotate


@pytest.mark.parametrize(("depth", "count"), [(1, 69_504), (3, 200_832), (4, 266_496)])
def test_parameter_counts_are_the_published_ones(depth, count):
    model = CharacterModel(30, depth=depth)
    assert sum(p.numel() for p in model.parameters()) == count
    assert count == 2 * 30 * 64 + depth * (16 * 64**2 + 2 * 64)


def test_a_later_character_changes_nothing_before_it():
    torch.manual_seed(0)
    model = CharacterModel(11).double()
    ids = torch.randint(11, (2, 12))
    for position in range(1, 12):
        changed = ids.clone()
        changed[:, position] = (changed[:, position] + 1) % 11
        same = (model(ids) - model(changed)).abs().amax((0, 2)) == 0
        assert same[:position].all()
        assert not same[position:].any()


def test_rotary_is_multiplication_by_complex_units():
    x = torch.randn(2, 3, 7, 8).double()
    positions = torch.tensor([0, 1, 2, 5, 9, 100, 4095])
    pairs = x[..., :4].numpy() + 1j * x[..., 4:].numpy()
    frequency = 1 / 10_000 ** (np.arange(4) / 4)
    turned = pairs * np.exp(1j * positions.numpy()[:, None] * frequency)
    expected = np.concatenate([turned.real, turned.imag], -1)
    np.testing.assert_allclose(rotate(x, positions), expected, rtol=1e-12, atol=1e-13)


def test_attention_depends_on_distance_not_place():
    a, b = torch.randn(2, 1, 1, 16).double()
    near, far = (
        rotate(a, torch.tensor([p])) @ rotate(b, torch.tensor([p + 3])).mT for p in (0, 50)
    )
    torch.testing.assert_close(near, far, rtol=1e-12, atol=1e-12)


def test_forward_equals_plain_matrix_arithmetic():
    torch.manual_seed(0)
    model = CharacterModel(9, depth=2).double()
    for p in model.parameters():  # norms away from one
        p.data += 0.1 * torch.randn_like(p)

    ids = torch.randint(9, (1, 6))
    x = model.embedding.weight.detach().numpy()[ids[0].numpy()]
    for layer in model.layers:
        w = {name: p.detach().numpy() for name, p in layer.named_parameters()}
        seen = np.concatenate([_head(x, w, slice(16 * h, 16 * h + 16)) for h in range(4)], -1)
        x = _norm(x + seen @ w["out.weight"].T, w["norm_attention.weight"])
        gate = x @ w["gate.weight"].T
        hidden = gate / (1 + np.exp(-gate)) * (x @ w["up.weight"].T)
        x = _norm(x + hidden @ w["down.weight"].T, w["norm_feed.weight"])

    logits = x @ model.head.weight.detach().numpy().T
    np.testing.assert_allclose(model(ids)[0].detach(), logits, rtol=1e-10, atol=1e-12)


def _head(x, w, part):
    turn = np.exp(1j * np.arange(len(x))[:, None] / 10_000 ** (np.arange(8) / 8))
    q, k, v = (x @ w[f"{name}.weight"][part].T for name in ("query", "key", "value"))
    q, k = ((z[:, :8] + 1j * z[:, 8:]) * turn for z in (q, k))
    scores = np.exp((q @ k.conj().T).real / 4) * np.tri(len(x))
    return scores / scores.sum(1, keepdims=True) @ v


def _norm(x, weight):
    return weight * x / np.sqrt((x**2).mean(-1, keepdims=True) + np.finfo(float).eps)


def test_a_width_that_heads_cannot_share_is_refused():
    with pytest.raises(ValueError, match="`width`: expected a multiple of 2 x 4 heads, got 60"):
        CharacterModel(5, width=60)
