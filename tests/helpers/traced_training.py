"""A short training, and the cosine it should have recorded."""

import copy

import torch

from tests.helpers.small_network import gradients_of, make_batch, two_losses


def reference(model, batch, dtype=torch.float64, context=torch.enable_grad):
    """Cosine over the shared parameters, from two graphs."""
    twin = copy.deepcopy(model).to(dtype)
    x, y = batch
    found = []
    for index in (0, 1):
        with context():
            loss = two_losses(twin, x.to(dtype), y)[index]
        found.append(gradients_of(loss, twin))
    pairs = [(a, found[1][n]) for n, a in found[0].items() if None not in (a, found[1][n])]
    a, b = (torch.cat([pair[i].flatten().double() for pair in pairs]) for i in (0, 1))
    return (a @ b / a.norm() / b.norm()).item()


def train(backward, model, *, context=None, dtype=torch.float32, after=lambda: None):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(3)
    for step in range(3):
        optimizer.zero_grad()
        x, y = make_batch(seed=step, dtype=dtype)
        with context() if context else torch.enable_grad():
            losses = two_losses(model, x, y)
        backward(*losses)
        after(optimizer) if after.__code__.co_argcount else optimizer.step()
    return {k: v.clone() for k, v in model.state_dict().items()}


def assert_same_bits(one, other):
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def autocast():
    return torch.autocast("cpu", torch.bfloat16)
