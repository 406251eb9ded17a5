"""Decoding with skipped layers, against decoding without caches."""

from functools import partial

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import probes
from lab.backbones.character_model import CharacterModel
from probes._decoding.generate import _choose_token
from tests.helpers.decoders import Averager, full_decoding, propagated_decoding
from tests.helpers.state import snapshot

NAMES = ("token", "depth", "confidence", "cross_entropy")


def sharp(kind, depth=3):
    """A random model whose exits are sometimes sure."""
    torch.manual_seed(3)
    model = kind(depth=depth).double()
    model.head.weight.data *= 3
    return model


@pytest.fixture(params=[partial(CharacterModel, 11), Averager], ids=["lab", "other"])
def model(request):
    return sharp(request.param)


def prompt(samples=2, length=5):
    return torch.randint(7, (samples, length), generator=torch.Generator().manual_seed(1))


def compared(result, model, decode, ids):
    """Every row against a decoding of its prompt alone."""
    for sample, row in enumerate(ids):
        with torch.no_grad():
            expected = np.array(decode(model, row[None], result.sizes["position"])).T
        for name, values in zip(NAMES, expected, strict=True):
            got = result[name].sel(sample=sample)
            np.testing.assert_allclose(got, values, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("skipped", ["propagate", "recompute"])
@pytest.mark.parametrize("length", [1, 5])
def test_above_one_it_is_full_decoding(model, skipped, length):
    ids = prompt(length=length)
    result = probes.generate(model, ids, 12, layers="layers.[01]", threshold=1.01, skipped=skipped)
    compared(result, model, full_decoding, ids)
    assert (result["depth"] == 3).all()
    assert (result["layers_run"] == 3).all()
    assert (result["heads_run"] == 3).all()
    assert (result["projections"] == 0).all()


@pytest.mark.parametrize("skipped", ["propagate", "recompute"])
def test_at_zero_it_is_the_model_cut_off_at_the_exit(model, skipped):
    ids = prompt()
    result = probes.generate(model, ids, 12, layers="layers.1", threshold=0.0, skipped=skipped)
    compared(result, model, partial(full_decoding, depth=2), ids)
    assert (result["layers_run"] == 2).all()
    assert result["compute"] == pytest.approx(2 / 3)


def middle(model, ids, **settings):
    """A threshold that about half of the tokens reach."""
    free = probes.generate(model, ids, 25, layers="layers.0", threshold=0.0, **settings)
    return float(free["confidence"].median())


def test_recomputing_reads_the_full_pass_at_the_exit(model):
    ids = prompt()
    threshold = middle(model, ids)
    result = probes.generate(
        model, ids, 25, layers="layers.[01]", threshold=threshold, skipped="recompute"
    )
    assert set(np.unique(result["depth"])) == {1, 2, 3}
    compared(result, model, partial(full_decoding, exits=(1, 2), threshold=threshold), ids)


def test_propagating_lets_the_exit_stand_in(model):
    ids = prompt()
    threshold = middle(model, ids)
    result = probes.generate(model, ids, 25, layers="layers.[01]", threshold=threshold)
    assert set(np.unique(result["depth"])) == {1, 2, 3}
    compared(result, model, partial(propagated_decoding, exits=(1, 2), threshold=threshold), ids)
    exact = partial(full_decoding, exits=(1, 2), threshold=threshold)
    with pytest.raises(AssertionError):  # an approximation, and this shows it
        compared(result, model, exact, ids)


@pytest.mark.parametrize("skipped", ["propagate", "recompute"])
def test_work_is_what_the_layers_saw(model, skipped, monkeypatch):
    ids = prompt(samples=1)
    threshold = middle(model, ids)
    seen = {"attend": 0, "project": 0, "head": 0}

    def count(module, name):
        real = getattr(type(module), name) if name != "head" else None

        def counted(self, x, *rest):
            seen[name] += x.shape[1]
            return real(self, x, *rest)

        monkeypatch.setattr(type(module), name, counted)

    count(model.layers[0], "attend")
    count(model.layers[0], "project")
    hook = model.head.register_forward_hook(lambda m, a, o: seen.update(head=seen["head"] + 1))
    result = probes.generate(
        model, ids, 25, layers="layers.[01]", threshold=threshold, skipped=skipped
    )
    hook.remove()
    extra = 1  # one token shows the cost of its parts
    before = 3 * 4  # the prompt but for its last token
    assert seen["attend"] == int(result["layers_run"].sum()) + before + extra
    done = int((result["layers_run"] + result["projections"]).sum())
    assert seen["project"] == done + before + extra + 1  # the last position, to see if it fits
    assert seen["head"] == int(result["heads_run"].sum()) + extra
    if skipped == "propagate":
        assert (result["layers_run"] == result["depth"]).all()
        assert (result["projections"] == 3 - result["depth"]).all()
    else:
        # Every layer has run on all positions up to the last one that needed it.
        depth = result["depth"].values[0]
        last = [int(np.flatnonzero(depth > d).max()) + 1 for d in range(3)]
        assert int(result["layers_run"].sum()) == sum(last)


def test_compute_counts_head_and_projections():
    model = sharp(partial(CharacterModel, 11))
    ids = prompt()
    threshold = middle(model, ids)
    result = probes.generate(model, ids, 25, layers="layers.0", threshold=threshold)
    layer, head = 16 * 64**2, 64 * 11
    deep = (result["depth"] == 3).mean().item()
    assert 0 < deep < 1
    work = deep * (3 * layer + 2 * head) + (1 - deep) * (layer + head + 2 * 2 * 64**2)
    # Attention of one position to itself is counted, too: a few operations of width 64.
    assert result["compute_with_head"] == pytest.approx(work / (3 * layer + head), rel=2e-3)
    assert result["compute"] == pytest.approx(1 - (1 - deep) * (1 - 1 / 3))


def test_following_a_text_gives_its_cross_entropy():
    model = sharp(partial(CharacterModel, 11))
    text = prompt(samples=3, length=20)
    result = probes.generate(model, text[:, :1], 19, threshold=0.5, follow=text[:, 1:])
    with torch.no_grad():
        logits = model(text[:, :-1])
    entropy = nn.functional.cross_entropy(
        logits.flatten(0, 1), text[:, 1:].flatten(), reduction="none"
    )
    np.testing.assert_allclose(result["cross_entropy"].values.ravel(), entropy, rtol=1e-10)
    np.testing.assert_array_equal(result["token"], logits.argmax(-1))
    np.testing.assert_array_equal(result["correct"], (logits.argmax(-1) == text[:, 1:]).double())
    assert probes.generate(model, text, 2)["correct"].isnull().all()


def test_recomputing_gives_what_the_analysis_of_one_pass_says():
    model = sharp(partial(CharacterModel, 11))
    text = prompt(samples=4, length=20)
    record = probes.record_exits(model, (text[:, :-1], text[:, 1:]), "layers.*")
    threshold = float(record["confidence"].sel(measure="max softmax").isel(layer=0).median())
    settings = {"layers": "layers.*", "threshold": threshold, "follow": text[:, 1:]}
    exact = probes.generate(model, text[:, :1], 19, skipped="recompute", **settings)
    tokens = probes.exit_map(record, threshold)
    np.testing.assert_array_equal(exact["depth"].values.ravel(), tokens["left_at"] + 1)
    for ours, theirs in (("token", "prediction"), *((n, n) for n in ("confidence", "correct"))):
        np.testing.assert_allclose(exact[ours].values.ravel(), tokens[theirs], rtol=1e-9)
    routed = probes.route_exits(record, thresholds=[threshold])
    routed = routed.sel(measure="max softmax", exit="any").squeeze()
    assert np.exp(exact["cross_entropy"].mean()) == pytest.approx(float(routed["perplexity"]))
    assert exact["compute"] == pytest.approx(float(routed["compute"]))
    propagated = probes.generate(model, text[:, :1], 19, **settings)
    assert abs(propagated["cross_entropy"] - exact["cross_entropy"]).max() > 1e-3


def test_draws_follow_the_softmax_at_its_temperature():
    model = sharp(Averager)
    model.head.weight.data /= 3
    ids = torch.full((4000, 1), 2)
    result = probes.generate(model, ids, 1, temperature=0.7, seed=5)
    with torch.no_grad():
        p = (model(ids[:1])[0, -1] / 0.7).softmax(0).numpy()
    counts = np.bincount(result["token"].values.ravel(), minlength=7)
    chi_square = ((counts - 4000 * p) ** 2 / (4000 * p)).sum()
    assert chi_square < 22.5  # six degrees of freedom: exceeded once in a thousand
    again = probes.generate(model, ids, 1, temperature=0.7, seed=5)
    xr.testing.assert_identical(result, again)
    other = probes.generate(model, ids, 1, temperature=0.7, seed=6)
    assert (other["token"] != result["token"]).any()


def test_a_token_leaves_at_the_threshold_itself():
    model, ids = sharp(Averager), prompt(samples=1)
    made = probes.generate(model, ids, 1, layers="layers.0", threshold=0.0)
    sure = made["confidence"].item()
    for threshold, depth in ((sure, 1), (np.nextafter(sure, 2), 3)):
        made = probes.generate(model, ids, 1, layers="layers.0", threshold=threshold)
        assert made["depth"].item() == depth


def test_a_draw_never_takes_what_is_impossible():
    logits = torch.tensor([-torch.inf, 0.0, 0.0, -torch.inf]).double()
    taken = [_choose_token(logits, 1.0, draw) for draw in (0.0, 0.49, 0.5, 1 - 2**-53)]
    assert taken == [1, 1, 2, 2]


def test_each_exit_may_have_its_threshold():
    model, ids = sharp(Averager), prompt()
    both = probes.generate(model, ids, 9, layers="layers.*[01]", threshold=[2.0, 0.0])
    assert (both["depth"] == 2).all()
    first = probes.generate(model, ids, 9, layers=["layers.0", "layers.1"], threshold=[0.0, 2.0])
    assert (first["depth"] == 1).all()
    named = probes.generate(model, ids, 9, layers="layers.*", threshold=[0.0, 2.0])
    xr.testing.assert_identical(named, first)
    array = xr.DataArray([0.0, 2.0])  # as `calibrate_exits` gives them
    named = probes.generate(model, ids, 9, layers="layers.*", threshold=array)
    xr.testing.assert_identical(named, first)
    named = probes.generate(model, ids, 9, layers="layers.*", threshold=array[0])
    np.testing.assert_array_equal(named["token"], first["token"])


@pytest.mark.parametrize("failure", [RuntimeError("layer failed"), KeyboardInterrupt()])
def test_the_model_is_as_it_was(failure):
    model = sharp(partial(CharacterModel, 11)).train()
    model.layers[1].eval()
    before = snapshot(model)
    probes.generate(model, prompt(), 5, layers="layers.0", threshold=0.3, temperature=1.0)
    assert snapshot(model) == before

    def fail(*_):
        raise failure

    hook = model.layers[2].down.register_forward_hook(fail)
    before = snapshot(model)
    with pytest.raises(type(failure)):
        probes.generate(model, prompt(), 5, layers="layers.0", threshold=0.3)
    assert snapshot(model) == before
    hook.remove()


def test_a_wrapped_model_is_decoded_like_its_own():
    model = sharp(Averager)
    plain = probes.generate(model, prompt(), 5, layers="layers.0", threshold=0.3)
    wrapped = probes.generate(torch.compile(model), prompt(), 5, layers="layers.0", threshold=0.3)
    xr.testing.assert_identical(plain, wrapped)
