"""What a monitor measures, and that nobody notices it."""

import gc
import math
import random
import warnings
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import xarray as xr
from torch import nn

import attention
import gradients
import landscape
import probes
import resonance
from resonance_toolkit import Monitor
from tests.helpers.exit_models import BLOCKS, TextModel
from tests.helpers.state import snapshot
from tests.resonance_toolkit.front.monitor.training import (
    Hybrid,
    Run,
    add_and_backward,
    assert_same_bits,
    make_batch,
    make_model,
)


def monitored(run, **settings):
    settings = {"every": 2, "data": make_batch(9), **settings}
    return Monitor(run.model, probe=run.probe, **settings)


# Bitwise the same training


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"every": 1, "sharpness_every": 1},
        {"sharpness_every": 3},
        {"level": "parameter"},
    ],
)
def test_training_is_bitwise_the_same(settings):
    plain, watched = Run(), Run()
    plain.train(5)
    generators = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002

    monitor = monitored(watched, **settings)
    watched.train(5, monitor.backward)
    assert_same_bits(watched.state(), plain.state())
    assert len(monitor.tree()["gradients"]["step"]) == (5 if settings.get("every") == 1 else 3)

    # What is drawn next is what would have been drawn.
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert np.random.get_state()[1].tolist() == generators[1]  # noqa: NPY002
    assert random.getstate() == generators[2]


def test_random_numbers_that_nobody_seeds_go_on_as_without_it():
    """Dropout through the whole training draws from one stream."""
    states = []
    for is_watched in (False, True):
        run = Run()
        backward = monitored(run, every=1).backward if is_watched else add_and_backward
        torch.manual_seed(5)
        for step in range(4):
            backward(*run.losses(step))
            run.optimizer.step()
            run.optimizer.zero_grad()
        states.append(run.state())
    assert_same_bits(*states)


def test_nothing_stays_on_the_model():
    model = make_model()
    before = snapshot(model)
    with Monitor(model, layers="head", every=1, data=make_batch(9), sharpness_every=1) as it:
        out = model(make_batch()[0])
        it.backward(F.cross_entropy(out, make_batch()[1]), out.square().mean())
    assert len(it.tree()["attention"]["step"]) == 1
    for parameter in model.parameters():
        parameter.grad = None
    after = snapshot(model)
    assert after["hooks"] == before["hooks"]
    assert after["modes"] == before["modes"]
    assert after["attributes"] == before["attributes"]


def test_a_dropped_monitor_takes_its_hooks_along():
    model = make_model()
    monitor = Monitor(model, layers="blocks.*")
    reference = weakref.ref(monitor)
    del monitor
    gc.collect()
    assert reference() is None
    assert not any(module._forward_hooks for module in model.modules())


# The numbers


def test_numbers_are_those_of_the_single_verbs():
    run, by_hand = Run(), Run()
    monitor = monitored(run, every=1, samples=None, sharpness_every=1)
    run.train(1, monitor.backward)
    tree = monitor.tree()

    torch.manual_seed(100)
    trace = gradients.Trace(by_hand.model, level="activation", layers=by_hand.probe.layers)
    losses = by_hand.losses(0)
    trace.backward(*losses)
    expected = {"gradients": trace.to_dataset()}
    expected["branches"] = by_hand.probe.measure(make_batch(0)[1]).drop_vars("step")
    expected["attention"] = attention.capture(by_hand.model, make_batch(9)).mean("sample")
    with by_hand.probe.listening():

        def auxiliary(model, x, y):
            model(x)
            return by_hand.probe.loss(y)

        expected["sharpness"] = landscape.critical_sharpness(
            by_hand.model, make_batch(9), losses={"main": None, "auxiliary": auxiliary}
        )

    for part, dataset in expected.items():
        node = tree[part].to_dataset()
        assert node["step"].values.tolist() == [0]
        for name in node.data_vars:
            wanted = dataset[name]
            row = node[name].isel(step=0)
            wanted = wanted.isel(step=0) if "step" in wanted.dims else wanted
            np.testing.assert_array_equal(row.values, wanted.values, err_msg=f"{part} {name}")


def test_the_cosine_is_that_of_two_backward_passes():
    run = Run()
    monitor = monitored(run, every=1)
    run.train(1, monitor.backward)

    # By hand: the gradient of each loss at the output of the last block, where they meet.
    twin = Run()
    outputs = []
    handle = twin.model.blocks[1].register_forward_hook(lambda *call: outputs.append(call[2]))
    torch.manual_seed(100)
    main, auxiliary = twin.losses(0)
    handle.remove()
    a, b = (torch.autograd.grad(loss, outputs, retain_graph=True)[0] for loss in (main, auxiliary))
    cosine = (a.flatten() @ b.flatten() / a.norm() / b.norm()).item()
    found = monitor.tree()["gradients"]["cosine"].sel(step=0, layer="blocks.1").item()
    assert found == pytest.approx(cosine, abs=1e-6)


def test_it_measures_when_it_should():
    run = Run()
    monitor = monitored(run, every=3, sharpness_every=5)
    run.train(7, monitor.backward)
    tree = monitor.tree()
    steps = {part: node["step"].values.tolist() for part, node in tree.children.items()}
    assert steps == {
        "gradients": [0, 3, 6],
        "branches": [0, 3, 6],
        "attention": [0, 3, 6],
        "sharpness": [0, 5],
    }
    assert monitor.step == 7


def test_micro_batches_are_one_update():
    run = Run()
    monitor = monitored(run, every=1, data=None)
    for index in range(4):
        monitor.backward(*(loss / 2 for loss in run.losses(index)), update=index % 2 == 1)
    assert monitor.tree()["gradients"]["step"].values.tolist() == [0, 1]
    assert monitor.tree()["branches"]["step"].values.tolist() == [0, 1]


def test_join_and_advance_are_backward():
    results = []
    for kind in ("backward", "join"):
        run = Run()
        monitor = monitored(run, every=2)

        def joined(main, auxiliary, monitor=monitor):
            monitor.join(main, auxiliary).backward()
            monitor.advance()

        run.train(3, monitor.backward if kind == "backward" else joined)
        results.append((run.state(), monitor.tree()))
    assert_same_bits(results[0][0], results[1][0])
    xr.testing.assert_identical(results[0][1], results[1][1])


def test_twice_is_the_same():
    trees = []
    for seed in (1, 2):
        run = Run()
        random.seed(seed)
        monitor = monitored(run, sharpness_every=2)
        run.train(3, monitor.backward)
        trees.append(monitor.tree())
    xr.testing.assert_identical(*trees)


def test_without_a_probe_blocks_are_found():
    model = make_model()
    monitor = Monitor(model, every=1)
    out = model(make_batch()[0])
    monitor.backward(F.cross_entropy(out, make_batch()[1]))
    recorded = monitor.tree()["gradients"]
    assert recorded["layer"].values.tolist() == ["blocks.0", "blocks.1"]
    assert (recorded["norm_main"] > 0).all()
    assert "cosine" not in recorded


def test_exits_have_their_losses():
    torch.manual_seed(0)
    model = TextModel()
    exits = probes.attach_exits(model, BLOCKS)
    monitor = Monitor(model, probe=exits, every=1, level="parameter")
    ids = torch.randint(0, 11, (2, 5))
    model(ids)
    loss = exits.loss(ids)
    expected = exits.measure()["loss"]
    monitor.backward(loss)
    found = monitor.tree()["branches"]["loss"].isel(step=0)
    np.testing.assert_array_equal(found, expected)
    assert found["layer"].values.tolist() == expected["layer"].values.tolist()


def test_a_loss_still_due_can_be_had():
    """Passes on the fixed samples are none of the training."""
    run = Run()
    monitor = monitored(run, every=1, sharpness_every=1)
    main, auxiliary = run.losses(0)
    before = run.probe.measure()
    step = run.probe.step
    monitor.backward(main, auxiliary)
    xr.testing.assert_identical(run.probe.measure(), before)
    assert run.probe.step == step


def test_what_is_logged_is_what_was_measured():
    run, logged = Run(), []
    monitor = monitored(
        run, sharpness_every=2, log=lambda values, step: logged.append((values, step))
    )
    run.train(3, monitor.backward)
    assert [step for _, step in logged] == [0, 2]

    tree, values = monitor.tree(), logged[1][0]
    cosine = tree["gradients"]["cosine"].sel(step=2, layer="blocks.0").item()
    assert values["resonance/gradients/cosine/blocks.0"] == cosine
    accuracy = tree["branches"]["accuracy"].sel(step=2, layer="blocks.1").mean().item()
    assert values["resonance/branches/accuracy/blocks.1"] == accuracy
    entropy = tree["attention"]["normalised_entropy"].sel(step=2, layer="blocks.0.attn")
    assert values["resonance/attention/normalised_entropy/blocks.0.attn"] == entropy.mean().item()
    assert all(math.isfinite(value) for value in values.values())
    assert monitor.latest == {"step": 2} | {
        name.removeprefix("resonance/"): value for name, value in values.items()
    }


def test_three_losses_have_a_cosine_for_each_pair():
    model = nn.Linear(3, 2)
    monitor = Monitor(model, level="parameter", every=1)
    out = model(torch.randn(4, 3))
    monitor.backward(out.sum(), out.square().mean(), out.sin().mean())
    pairs = sorted(name for name in monitor.latest if name.startswith("gradients/cosine_total"))
    assert pairs == [
        "gradients/cosine_total/auxiliary 1/auxiliary 2",
        "gradients/cosine_total/main/auxiliary 1",
        "gradients/cosine_total/main/auxiliary 2",
    ]
    assert "gradients/cosine/model/main/auxiliary 1" in monitor.latest


# What does not apply, fails or is wrong


def test_a_model_without_attention_says_so():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    monitor = Monitor(model, layers="1", every=1, data=torch.randn(5, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            monitor.backward(model(torch.randn(5, 4)).sum())
    tree = monitor.tree()
    assert list(tree.children) == ["gradients"]
    assert tree.attrs["attention_reason"] == "no attention was seen"


def test_a_log_that_raises_stops_nothing_and_is_told_once():
    calls = []

    def broken(values, step):
        calls.append(step)
        if step < 4:
            raise ConnectionError("the server is away")

    plain, run = Run(), Run()
    plain.train(6)
    monitor = monitored(run, log=broken)
    with pytest.warns(UserWarning, match=r"`log` failed.*step 0: ConnectionError: the server") as w:
        run.train(6, monitor.backward)
    assert len(w) == 1
    assert calls == [0, 2, 4]  # it is tried again
    assert_same_bits(run.state(), plain.state())
    assert monitor.tree()["gradients"].sizes["step"] == 3
    assert monitor.tree().attrs["log_reason"] == "step 0: ConnectionError: the server is away"


def test_ctrl_c_in_a_log_is_heard():
    run = Run()

    def interrupted(values, step):
        raise KeyboardInterrupt

    monitor = monitored(run, log=interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.train(1, monitor.backward)
    assert monitor.tree()["attention"].sizes["step"] == 1


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("sharpness_every", [None, 2])
def test_a_pass_that_fails_amid_a_measurement_leaves_the_model_clean(failure, sharpness_every):
    run, calls = Run(), []
    monitor = monitored(run, sharpness_every=sharpness_every)
    part = "attention" if sharpness_every is None else "sharpness"
    if part == "sharpness":
        monitor._instruments = [i for i in monitor._instruments if i.part != "attention"]

    def fail(module, args):
        if not module.training:
            calls.append(module)
            if len(calls) == (1 if part == "attention" else 5):
                raise failure("inside")

    main, auxiliary = run.losses(0)
    (main + auxiliary).backward()
    grads = {name: p.grad.clone() for name, p in run.model.named_parameters()}
    run.optimizer.zero_grad()

    torch.manual_seed(100)
    handle = run.model.head.register_forward_pre_hook(fail)
    losses = run.losses(0)
    before = snapshot(run.model)
    if failure is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            monitor.backward(*losses)
    else:
        with pytest.warns(UserWarning, match=f"{part} could not be measured at step 0"):
            monitor.backward(*losses)
        assert "inside" in monitor.tree().attrs[f"{part}_reason"]
    after = snapshot(run.model)
    handle.remove()

    assert calls
    assert {k: v for k, v in after.items() if k != "grads"} == {
        k: v for k, v in before.items() if k != "grads"
    }
    assert all(
        p.grad is not None and p.grad.shape == grads[n].shape
        for n, p in run.model.named_parameters()
    )
    assert monitor.step == 1


def test_a_training_that_fails_is_told_as_ever():
    run = Run()
    monitor = monitored(run)
    main, _ = run.losses(0)
    main.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        monitor.backward(main, run.model(make_batch()[0]).sum())
    assert monitor.step == 0


class Skipping(Hybrid):
    """Leaves a block out when told to, as layer dropout does."""

    skips = False

    def forward(self, x):
        tokens = self.norm(self.stem(x)).flatten(2).mT
        tokens = self.blocks[0](tokens)
        if not self.skips:
            tokens = self.blocks[1](tokens)
        return self.head(tokens.mean(1))


def test_an_update_that_cannot_be_read_is_trained_on_all_the_same():
    grads = []
    for is_watched in (True, False):
        torch.manual_seed(0)
        model = Skipping().eval()
        monitor = Monitor(model, layers=["blocks.*", "head"], every=1)

        def losses(model=model):
            out = model(make_batch()[0])
            return F.cross_entropy(out, make_batch()[1]), out.square().mean()

        if is_watched:
            model.skips = True
            with pytest.raises(gradients.UnreadableUpdateError, match=r"blocks\.1"):
                monitor.backward(*losses())  # the first one: a mistake in the call, for all we know
            model.skips = False
            monitor.backward(*losses())
            model.zero_grad()

            model.skips = True
            with pytest.warns(UserWarning, match=r"gradients could not be read at step 1"):
                monitor.backward(*losses())
            assert monitor.step == 2
            assert monitor.tree()["gradients"]["step"].values.tolist() == [0]
        else:
            model.skips = True
            add_and_backward(*losses())
        grads.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert_same_bits(*grads)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"probe": "p"}, r"`probe`: expected what probes.attach or attach_exits returned, got str"),
        ({"every": 0}, r"`every`: expected a whole number of at least 1, got 0"),
        ({"sharpness_every": 2.5, "data": 1}, r"`sharpness_every`: expected a whole number"),
        ({"sharpness_every": 2}, r"`data`: expected samples, on which sharpness is measured"),
        ({"level": "weights"}, r"`level`: expected one of activation, parameter, got 'weights'"),
        ({"layers": "blockz.*"}, r"blockz"),
        ({"name": ""}, r"`name`: expected a word, got ''"),
        ({"path": "no/such/folder/x.jsonl"}, r"`path`: expected a file in a folder that exists"),
        ({"data": object()}, r"`data`"),
    ],
)
def test_refusals_leave_no_hook(settings, message):
    model = make_model()
    with pytest.raises((TypeError, ValueError), match=message):
        Monitor(model, **settings)
    assert not any(module._forward_hooks for module in model.modules())


def test_it_is_at_the_front_door():
    assert resonance.Monitor is Monitor
    assert resonance.read_monitor is not None
