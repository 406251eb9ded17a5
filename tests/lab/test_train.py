"""One training run, against the same written out by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import xarray as xr
from torch import nn

import probes
from lab.backbones import asymmetric_paper as backbones
from lab.data.images import digits
from lab.data.samples import subset
from lab.training.recipe import Recipe
from lab.training.train import train

TINY = Recipe(per_class=6, test_per_class=5, epochs=3, batch=16, n=3, trace_every=2)


@pytest.mark.parametrize(("kind", "clip"), [("adamw", 0.5), ("sgd", 0.0)])
def test_the_loop_is_plain_training(kind, clip):
    """Oracle: the same run written out by hand, with torch and `probes.attach` alone."""
    recipe = replace(TINY, lr=3e-3, clip=clip, schedule="cosine", min_lr=1e-4, warm_up=1)
    found = train(replace(recipe, optimizer=kind))

    images = subset(digits(), 6, 5, seed=42)
    torch.manual_seed(42)
    model = backbones.mlp(10, inputs=64)
    probe = probes.attach(model, "blocks.[0-3]", 3, 1.0, sample=images.x_train[:2], seed=42)
    learned = [*model.parameters(), *probe.parameters()]
    optimizer = torch.optim.AdamW(learned, lr=3e-3, weight_decay=1e-2)
    if kind == "sgd":
        optimizer = torch.optim.SGD(learned, lr=3e-3, momentum=0.9, weight_decay=1e-2)

    for epoch in range(3):
        generator = torch.Generator().manual_seed(42_000 + epoch)
        correct, total = 0, 0.0
        groups = torch.randperm(60, generator=generator).split(16)
        for step, rows in enumerate(groups):
            time = epoch + (step + 0.5) / 4
            cosine = 1e-4 + (3e-3 - 1e-4) * (1 + np.cos(np.pi * (time - 1) / 2)) / 2
            optimizer.param_groups[0]["lr"] = 3e-3 * time if time < 1 else cosine
            logits, y = model(images.x_train[rows]), images.y_train[rows]
            loss = F.cross_entropy(logits, y)
            (loss + probe.loss(y)).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)

            optimizer.step()
            optimizer.zero_grad()
            correct += int((logits.argmax(1) == y).sum())
            total += loss.item() * len(y)

        assert found["train_accuracy"][epoch].item() == correct / 60
        np.testing.assert_allclose(found["train_loss"][epoch], total / 60, rtol=1e-6)

        with torch.no_grad():
            logits = model(images.x_test)

        expected = F.cross_entropy(logits, images.y_test).item()
        np.testing.assert_allclose(found["test_loss"][epoch], expected, rtol=1e-5)

        accuracy = (logits.argmax(1) == images.y_test).double().mean().item()
        assert found["test_accuracy"][epoch].item() == accuracy

    assert found["step"].values.tolist() == [0, 2, 4, 6, 8, 10]


def test_runs_repeat_and_leave_the_random_state():
    recipe = replace(TINY, backbone="vit6", attention_epochs=(1, 3), augment=True, n=2)
    before = torch.get_rng_state()
    first, second = train(recipe), train(recipe)
    assert torch.equal(torch.get_rng_state(), before)
    xr.testing.assert_identical(first, second)
    assert first["seen_epoch"].values.tolist() == [1, 3]
    assert bool(first["entropy"].notnull().all())

    for name, variable in first.variables.items():
        assert "long_name" in variable.attrs, name


def test_label_smoothing_is_in_the_training_loss_alone():
    """Oracle: one update with SGD, by hand."""
    recipe = Recipe(per_class=6, test_per_class=5, epochs=1, batch=60, optimizer="sgd", lr=0.5)
    found = train(replace(recipe, label_smoothing=0.3, weight_decay=0.0))
    images = subset(digits(), 6, 5, seed=42)
    torch.manual_seed(42)
    model = backbones.mlp(10, inputs=64)
    log_p = F.log_softmax(model(images.x_train), 1)
    right = log_p[torch.arange(60), images.y_train]
    loss = -(0.7 * right + 0.3 * log_p.mean(1)).mean()
    loss.backward()
    np.testing.assert_allclose(found["train_loss"], [loss.item()], rtol=1e-6)

    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.5 * parameter.grad
        expected = F.cross_entropy(model(images.x_test), images.y_test).item()

    np.testing.assert_allclose(found["test_loss"], [expected], rtol=1e-5)


def test_controls_and_strengths_change_what_they_should():
    plain = train(replace(TINY, n=0))
    capacity = train(replace(TINY, connected=False))
    same = ["train_loss", "test_loss", "train_accuracy", "auxiliary_loss"]
    xr.testing.assert_identical(plain[same].drop_attrs(), capacity[same].drop_attrs())

    runs = [train(replace(TINY, strength=s)) for s in ("constant", "linear", "balance", "gate")]
    runs.append(train(replace(TINY, loss="ce")))
    runs.append(train(replace(TINY, active="all")))
    finals = {run["test_loss"][-1].item() for run in [plain, *runs]}
    assert len(finals) == 7


def test_divergence_is_recorded():
    run = train(replace(TINY, lr=1e30, optimizer="sgd"))
    assert run["diverged"].item() == 1
    assert bool(np.isnan(run["test_accuracy"][-1]))
    assert run.sizes["epoch"] == 3
    assert train(TINY)["diverged"].item() == 0


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_last_update_that_diverges_is_recorded(epochs):
    """With one batch, the loss is finite before the update, and no longer on the test images."""
    recipe = Recipe(per_class=6, batch=60, optimizer="sgd", lr=1e30, epochs=epochs)
    run = train(recipe)
    assert run["diverged"].item() == 1
    for name in ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "learning_rate"):
        assert run[name].shape == (epochs,)
        assert bool(run[name].isnull().all()), name
