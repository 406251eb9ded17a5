"""Rows 15-19 of the table of traps for hooks: copies, saved states, and nothing left behind."""

import copy
import gc
import io
import pickle
import subprocess
import sys
import weakref
from types import FunctionType

import pytest
import torch
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel

import probes
from tests.helpers.probe_stages import LAYERS, expected_gradients, make
from tests.helpers.state import snapshot


@pytest.mark.parametrize("after_forward", [False, True])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, AveragedModel, lambda m: _saved(m)])
def test_rows_15_to_17_copies_of_the_model_are_nobodys(duplicate, after_forward):
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    if after_forward:
        model(x)
    other = duplicate(model)
    model(x)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    other.train()
    other(x)  # must not write into the probe
    total = F.cross_entropy(model(x), y)
    other(x)
    grads = torch.autograd.grad(total + probe.loss(y), list(model.parameters()))
    expected = expected_gradients(model, probe, x, y)[: len(grads)]
    torch.testing.assert_close(grads, expected)


def test_row_15_a_shallow_copy_shares_layers_but_is_nobodys():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    other = copy.copy(model)  # its hooks are the very same objects
    model(x)
    other(3 * x)
    found = torch.autograd.grad(probe.loss(y), [*model.first.parameters(), *probe.parameters()])
    model(x)
    expected = torch.autograd.grad(probe.loss(y), [*model.first.parameters(), *probe.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: _saved(m)])
def test_rows_15_to_17_hooks_of_a_copy_hold_nothing(duplicate):
    model, _, _ = make()
    probe = probes.attach(model, LAYERS, n=3)
    hooks = [
        hook
        for module in duplicate(model).modules()
        for hook in [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    ]
    assert len(hooks) == 4
    assert all(isinstance(hook, FunctionType) and hook() is None for hook in hooks)
    assert probe.attached


def _saved(model):
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_rows_15_to_17_a_copied_probe_is_detached_and_can_be_reattached(duplicate):
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3, alpha=probes.schedules.linear(1, 0, steps=10))
    model(x)
    other = duplicate(probe)
    assert probe.attached
    assert not other.attached
    with pytest.raises(RuntimeError, match=r"this is detached .* or call reattach\(model\)"):
        other.loss(y)
    twin = copy.deepcopy(model)
    other.reattach(twin)
    with pytest.raises(RuntimeError, match=r"no forward pass was seen: call model\(x\)"):
        other.loss(y)
    twin(x)
    assert torch.equal(other.loss(y), probe.loss(y))


def test_row_18_state_dicts_are_separate_and_round_trip():
    model, x, y = make()
    keys = list(model.state_dict())
    probe = probes.attach(model, LAYERS, n=3, alpha=probes.schedules.linear(1, 0, steps=10))
    assert list(model.state_dict()) == keys
    model(x)
    probe.loss(y).backward()
    with torch.no_grad():
        for p in probe.parameters():
            p += 1
    stream = io.BytesIO()
    torch.save(probe.state_dict(), stream)
    stream.seek(0)
    other = probes.attach(copy.deepcopy(model), LAYERS, n=3, seed=5)
    other.load_state_dict(torch.load(stream))
    assert other.step == 1
    for a, b in zip(probe.state_dict().items(), other.state_dict().items(), strict=True):
        assert a[0] == b[0]
        if isinstance(a[1], torch.Tensor):
            assert torch.equal(a[1], b[1])


def test_row_18_a_compressed_state_needs_its_seed():
    model, _, _ = make()
    state = probes.attach(model, LAYERS, n=3, method="compressed", seed=1).state_dict()
    with pytest.raises(ValueError, match="saved probe's 1, got 2"):
        probes.attach(model, LAYERS, n=3, method="compressed", seed=2).load_state_dict(state)


@pytest.mark.parametrize("change", [{"n": 4}, {"init": "normal"}, {"method": "exact"}])
def test_row_18_a_compressed_state_needs_its_settings(change):
    model, _, _ = make()
    settings = {"n": 3, "method": "compressed"}
    state = probes.attach(model, LAYERS, **settings).state_dict()
    with pytest.raises((ValueError, RuntimeError), match=r"saved probe|Unexpected key"):
        probes.attach(model, LAYERS, **(settings | change)).load_state_dict(state)


def test_row_19_an_exception_leaves_no_hook():
    model, _, _ = make()
    before = snapshot(model)
    with pytest.raises(KeyError), probes.attach(model, LAYERS, n=3):
        raise KeyError
    assert snapshot(model) == before


def test_row_19_a_collected_probe_leaves_no_hook():
    model, x, _ = make()
    before = snapshot(model)
    probe = probes.attach(model, LAYERS, n=3)
    model(x)
    del probe
    gc.collect()
    assert snapshot(model) == before


def test_detaching_lets_go_of_activations_without_the_garbage_collector():
    model, x, _ = make()
    gc.collect()
    gc.disable()
    try:
        probe = probes.attach(model, LAYERS, n=3)
        model(x)
        kept = [weakref.ref(h) for hs in probe._capture.features.values() for h in hs]
        assert len(kept) == 2
        assert all(ref() is not None for ref in kept)
        probe.detach()
        assert all(ref() is None for ref in kept)
        ref = weakref.ref(probe)
        del probe
        assert ref() is None, "a cycle keeps the probe alive"
    finally:
        gc.enable()


@pytest.mark.parametrize("method", ["exact", "compressed"])
@pytest.mark.parametrize("alpha", [1.0, probes.schedules.balance(0.5)])
def test_branches_follow_the_model_to_another_device(method, alpha):
    """The meta device stands for an accelerator: a tensor left behind would raise."""
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3, method=method, alpha=alpha)
    model.to("meta")
    x, y = x.detach().to("meta"), y.to("meta")
    main = F.cross_entropy(model(x), y)
    loss = probe.loss(y) if alpha == 1.0 else probe.loss(y, main=main)
    (main + loss).backward()
    assert loss.device.type == "meta"
    assert all(p.device.type == p.grad.device.type == "meta" for p in probe.parameters())


LOADING = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("probes", "resonance", "resonance_toolkit"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Blocker())
import io, torch

model = torch.load(sys.argv[1], weights_only=False)
x = torch.load(sys.argv[2])
assert torch.equal(model(x), torch.load(sys.argv[3]))
torch.save(model, io.BytesIO())  # and may be saved again
try:
    import probes
except ModuleNotFoundError:
    print("loaded without the toolkit")
"""


@pytest.mark.parametrize("attach", [probes.attach, probes.attach_exits])
def test_row_16_a_saved_model_loads_where_the_toolkit_is_not_installed(tmp_path, attach):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    x = torch.randn(5, 4)
    listener = attach(model, ["0", "1"])
    model(x)

    paths = [str(tmp_path / name) for name in ("model.pt", "x.pt", "output.pt")]
    for thing, path in zip((model, x, model(x).detach()), paths, strict=True):
        torch.save(thing, path)
    command = [sys.executable, "-c", LOADING, *paths]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "loaded without the toolkit"
    assert listener.attached
