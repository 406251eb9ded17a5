"""A short training, and the cosine it should have recorded."""

import copy

import torch

from tests.helpers.small_network import gradients_of, make_batch, two_losses


def reference(model, batch, dtype=torch.float64, context=torch.enable_grad):
    """Cosine over the shared parameters, from two graphs."""
    twin = copy.deepcopy(model).to(dtype)
    x, y = batch

    main, auxiliary = {}, {}
    for index, by_name in enumerate((main, auxiliary)):
        with context():
            loss = two_losses(twin, x.to(dtype), y)[index]
        by_name.update(gradients_of(loss, twin))

    shared = [name for name in main if main[name] is not None and auxiliary[name] is not None]
    a = torch.cat([main[name].flatten().double() for name in shared])
    b = torch.cat([auxiliary[name].flatten().double() for name in shared])
    return (a @ b / a.norm() / b.norm()).item()


def train(backward, model, *, context=None, dtype=torch.float32, after=lambda: None):
    """Three steps; `after(optimizer)`, if it takes one, stands for the optimizer's own step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(3)

    for step in range(3):
        optimizer.zero_grad()
        x, y = make_batch(seed=step, dtype=dtype)
        with context() if context else torch.enable_grad():
            losses = two_losses(model, x, y)
        backward(*losses)

        if after.__code__.co_argcount:
            after(optimizer)
        else:
            optimizer.step()

    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same_bits(one, other):
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def autocast():
    return torch.autocast("cpu", torch.bfloat16)
