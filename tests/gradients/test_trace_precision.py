"""Autocast, loss scaling and half-precision parameters."""

import numpy as np
import torch

from gradients import Trace
from tests.helpers.small_network import make_batch, make_network, two_losses
from tests.helpers.traced_training import assert_same_bits, autocast, reference, train


def test_autocast_and_grad_scaler():
    scaled = {}
    for traced in (False, True):
        model = make_network(dtype=torch.float32)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

        def step(optimizer, scaler=scaler):
            scaler.step(optimizer)
            scaler.update()

        trace = Trace(model, scaler=scaler)
        plain = lambda a, b, scaler=scaler: scaler.scale(a + b).backward()  # noqa: E731
        backward = trace.backward if traced else plain
        scaled[traced] = train(backward, model, context=autocast, after=step)
    assert_same_bits(scaled[True], scaled[False])

    model, batch = make_network(dtype=torch.float32, dropout=0.0), make_batch(dtype=torch.float32)
    expected = reference(model, batch, torch.float32, autocast)
    unscaled = Trace(model)
    unscaled.backward(*two_losses(model, *batch))
    trace = Trace(model, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**12))
    with autocast():
        losses = two_losses(model, *batch)
    trace.backward(*losses)
    np.testing.assert_allclose(trace.to_dataset()["cosine_total"], expected, atol=1e-3)
    wanted = unscaled.to_dataset()["norm_aux"]
    np.testing.assert_allclose(trace.to_dataset()["norm_aux"], wanted, rtol=0.02)


def test_an_overflowing_gradient_is_nan_and_training_goes_on():
    model, batch = make_network(dtype=torch.float32), make_batch(dtype=torch.float32)
    trace = Trace(model, scaler=torch.amp.GradScaler("cpu", init_scale=1e38))
    for _ in range(2):
        trace.backward(*(1e6 * loss for loss in two_losses(model, *batch)))
    found = trace.to_dataset()
    assert found.sizes["step"] == 2
    for name in ("dot", "norm_main", "norm_aux", "cosine_total", "gradient_norm"):
        assert np.isnan(found[name]).all(), name
    assert np.isfinite(found["loss_main"]).all()


def test_half_precision_parameters():
    model = make_network(dtype=torch.bfloat16, dropout=0.0)
    batch = make_batch(size=64, dtype=torch.bfloat16)
    trace = Trace(model)
    main, auxiliary = two_losses(model, *batch)
    trace.backward(main, 300 * auxiliary)  # a difference of the two would be noise
    np.testing.assert_allclose(
        trace.to_dataset()["cosine_total"], reference(model, batch), atol=0.02
    )
