import numpy as np
import pytest
import torch

from gradients import Trace, regroup
from tests.helpers.small_network import gradients_of, make_batch, make_network, two_losses
from tests.helpers.state import snapshot


def train(model, steps, backward, seed=3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(seed)
    for step in range(steps):
        optimizer.zero_grad()
        backward(*two_losses(model, *make_batch(seed=step, dtype=model.token.dtype)))
        optimizer.step()
    return model


def same_bits(model, other):
    states = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("separate", [None, True])
def test_training_is_bitwise_what_it_is_without(every, separate, dtype):
    plain = train(make_network(dtype=dtype), 5, lambda a, b: (a + b).backward())

    model = make_network(dtype=dtype)
    trace = Trace(model, every, separate=separate)
    train(model, 5, trace.backward)

    assert same_bits(model, plain)
    assert trace.to_dataset().sizes["step"] == len(range(0, 5, every))


def oracle(model, batches, seed=3):
    """Two forward passes, one gradient of each: per parameter, summed over the batches."""
    sums = []
    for index in (0, 1):
        torch.manual_seed(seed)
        total = {}
        for x, y in batches:
            for name, g in gradients_of(two_losses(model, x, y)[index], model).items():
                old = total.get(name)
                total[name] = g if old is None else old if g is None else old + g
        sums.append(total)
    return sums


def cosine(pairs):
    a = torch.cat([x.flatten() for x, _ in pairs])
    b = torch.cat([y.flatten() for _, y in pairs])
    return (a @ b / a.norm() / b.norm()).item()


OWNERS = {
    "": ["token"],  # the root's own
    "stem.0": ["stem.0.weight", "stem.0.bias"],
    "stem.1": ["stem.1.weight", "stem.1.bias"],
}


@pytest.mark.parametrize("separate", [None, True])
def test_every_number_equals_two_separate_graphs(separate):
    model, batch = make_network(), make_batch()
    main, auxiliary = oracle(model, [batch])

    torch.manual_seed(3)
    trace = Trace(model, separate=separate)
    losses = two_losses(model, *batch)
    trace.backward(*losses)
    found = trace.to_dataset().isel(step=0)

    for layer, names in OWNERS.items():
        a = torch.cat([main[name].flatten() for name in names])
        b = torch.cat([auxiliary[name].flatten() for name in names])
        at = found.sel(layer=layer)
        np.testing.assert_allclose(at["dot"], (a @ b).item(), rtol=1e-11)
        np.testing.assert_allclose(at["norm_main"], a.norm().item(), rtol=1e-11)
        np.testing.assert_allclose(at["norm_aux"], b.norm().item(), rtol=1e-11)
        np.testing.assert_allclose(at["cosine"], cosine([(a, b)]), rtol=1e-11)
    shared = [name for names in OWNERS.values() for name in names]
    expected = cosine([(main[name], auxiliary[name]) for name in shared])
    np.testing.assert_allclose(found["cosine_total"], expected, rtol=1e-11)
    np.testing.assert_allclose(found["loss_main"], losses[0].item())
    np.testing.assert_allclose(found["loss_aux"], losses[1].item())
    whole = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    np.testing.assert_allclose(found["gradient_norm"], whole, rtol=1e-11)


@pytest.mark.parametrize("separate", [None, True])
def test_layers_that_a_loss_cannot_reach_are_nan(separate):
    model = make_network()
    trace = Trace(model, separate=separate)
    trace.backward(*two_losses(model, *make_batch()))
    found = trace.to_dataset().isel(step=0)

    unreached = found.sel(layer=["late.0", "head", "side"])  # the last by the main loss
    for name in ("dot", "norm_main", "norm_aux", "cosine"):
        assert np.isnan(unreached[name]).all()
        assert np.isfinite(found[name].sel(layer=list(OWNERS))).all()


def test_regrouping_is_exact():
    model, batch = make_network(), make_batch()
    main, auxiliary = oracle(model, [batch])
    torch.manual_seed(3)
    trace = Trace(model)
    trace.backward(*two_losses(model, *batch))

    groups = {"stem": "stem", "all": ["**"], "late": ["late", "head"]}
    found = regroup(trace.to_dataset(), groups).isel(step=0)

    names = OWNERS["stem.0"] + OWNERS["stem.1"]
    expected = cosine([(main[name], auxiliary[name]) for name in names])
    np.testing.assert_allclose(found["cosine"].sel(layer="stem"), expected, rtol=1e-11)
    np.testing.assert_allclose(found["cosine"].sel(layer="all"), found["cosine_total"], rtol=1e-12)
    assert np.isnan(found["cosine"].sel(layer="late"))
    assert found["n_parameters"].sel(layer="stem") == 56
    with pytest.raises(ValueError, match="`groups`: nothing is called 'steam'"):
        regroup(trace.to_dataset(), "steam")
    with pytest.raises(ValueError, match="`groups`: expected at least one"):
        regroup(trace.to_dataset(), {})
    with pytest.raises(ValueError, match="`trace`: expected a dimension `layer`"):
        regroup(trace.to_dataset().drop_dims("layer"), "stem")
    overlapping = {"stem": "stem.*", "norm": "stem.1", "all": "**"}
    overlapping = regroup(trace.to_dataset(), overlapping).isel(step=0)
    np.testing.assert_allclose(overlapping["cosine"][0], found["cosine"].sel(layer="stem"))
    np.testing.assert_allclose(overlapping["cosine"][2], found["cosine_total"])


def test_accumulated_micro_batches_are_compared_as_one_gradient():
    model = make_network()
    batches = [make_batch(seed=i) for i in range(3)]
    main, auxiliary = oracle(model, batches)
    expected = cosine([(main[n], auxiliary[n]) for names in OWNERS.values() for n in names])

    torch.manual_seed(3)
    trace = Trace(model)
    for index, batch in enumerate(batches):
        trace.backward(*two_losses(model, *batch), update=index == 2)

    found = trace.to_dataset()
    np.testing.assert_allclose(found["cosine_total"], [expected], rtol=1e-11)
    assert trace.step == 1
    for name, p in model.named_parameters():
        parts = [g for g in (main[name], auxiliary[name]) if g is not None]
        torch.testing.assert_close(p.grad, sum(parts), rtol=1e-11, atol=1e-14)


def test_gradients_already_there_do_not_enter():
    model, batch = make_network(dropout=0.0), make_batch()
    clean, dirty = Trace(model), Trace(model)
    clean.backward(*two_losses(model, *batch))
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e3)
    dirty.backward(*two_losses(model, *batch))
    np.testing.assert_array_equal(
        dirty.to_dataset()["cosine"].values, clean.to_dataset()["cosine"].values
    )


def test_nothing_is_left_behind_when_backward_raises():
    model, batch = make_network(), make_batch()
    trace = Trace(model)
    main, auxiliary = two_losses(model, *batch)
    before = snapshot(model)
    failing = auxiliary * 1.0
    failing.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trace.backward(main, failing)
    assert snapshot(model) == before
    assert trace.to_dataset().sizes["step"] == 0
    trace.backward(*two_losses(model, *batch))
    assert trace.to_dataset().sizes["step"] == 1


def test_an_optimizer_inside_the_backward_pass_may_take_each_gradient_away():
    model, batch = make_network(dropout=0.0), make_batch()
    expected, trace = Trace(model), Trace(model)
    expected.backward(*two_losses(model, *batch))
    model.zero_grad()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    trace.backward(*two_losses(model, *batch))
    np.testing.assert_array_equal(
        trace.to_dataset()["cosine"].values, expected.to_dataset()["cosine"].values
    )
