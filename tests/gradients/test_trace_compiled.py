"""Compiled models: the same numbers and the same training."""

import numpy as np
import pytest
import torch

from gradients import Trace
from tests.helpers.small_network import make_batch, make_network
from tests.helpers.traced_training import assert_same_bits, reference, train


@pytest.fixture
def fresh_compiler():
    import torch._functorch.config as config

    before = config.donated_buffer
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    config.donated_buffer = before


# Dynamo looks at `.grad` of what comes out of the first block.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("how", ["whole", "in place", "by block", "method"])
def test_compiled_models(how, fresh_compiler):
    states = []
    for traced in (False, True):
        model = make_network(dtype=torch.float32, dropout=0.0)
        called = model
        if how == "whole":
            called = torch.compile(model, backend="aot_eager")
        elif how == "in place":
            model.compile(backend="aot_eager")
        elif how == "method":
            model.forward = torch.compile(model.forward, backend="aot_eager")
        else:
            model.stem.compile(backend="aot_eager")
            model.late.compile(backend="aot_eager")
        trace = Trace(called)
        states.append(train(trace.backward if traced else lambda a, b: (a + b).backward(), called))
    assert_same_bits(*states)

    model, batch = make_network(dtype=torch.float32, dropout=0.0), make_batch(dtype=torch.float32)
    found = trace.to_dataset().isel(step=0)
    np.testing.assert_allclose(found["cosine_total"], reference(model, batch), rtol=1e-4)
    assert np.isnan(found["cosine"].sel(layer=["late.0", "head", "side"])).all()


def test_the_compiler_gets_its_setting_back(fresh_compiler):
    config = torch._functorch.config
    config.donated_buffer = True
    Trace(make_network())
    assert config.donated_buffer  # nothing is compiled, so nothing is changed
    model = torch.compile(make_network(), backend="aot_eager")
    one, two = Trace(model), Trace(model)
    one.close()
    one.close()
    assert not config.donated_buffer  # the other still needs it
    del two
    assert config.donated_buffer


def test_a_compiled_method_keeps_its_buffers_too(fresh_compiler):
    config = torch._functorch.config
    config.donated_buffer = True
    model = make_network()
    model.stem.forward = torch.compile(model.stem.forward, backend="aot_eager")
    with Trace(model):
        assert not config.donated_buffer
    assert config.donated_buffer
