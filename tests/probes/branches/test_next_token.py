"""Labels of causal language models: every position is compared with the label after it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import probes
from tests.helpers.probe_reference import branch_loss, weights_of
from tests.helpers.text_models import VOCABULARY, gpt2, masked_bert

TIGHT = {"rtol": 1e-10, "atol": 1e-12}
LAYERS = ["transformer.h.0", "transformer.h.1"]


def make(**settings):
    model = gpt2().train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ids = torch.randint(1, VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[0, 4:], labels[2, :2] = -100, -100
    return model, ids, labels, probes.attach(model, n=2, active="all", **settings)


def hidden_states(model, ids):
    states = model(input_ids=ids, output_hidden_states=True).hidden_states
    # The last of transformers' states is behind the final norm.
    outputs = []
    hook = model.transformer.h[1].register_forward_hook(
        lambda _, __, output: outputs.append(output[0] if isinstance(output, tuple) else output)
    )
    model(ids)
    hook.remove()
    return dict(zip(LAYERS, (states[1], outputs[0]), strict=True))


def loop_over_shifted_positions(model, ids, labels, weights, layer):
    """By hand: position t with label t + 1, if that counts."""
    hidden = hidden_states(model, ids)[layer]
    losses = [
        torch.stack(
            [
                branch_loss(hidden[i, t][None], weight, labels[i, t + 1][None], "bce")
                for i in range(len(ids))
                for t in range(ids.shape[1] - 1)
                if labels[i, t + 1] != -100
            ]
        ).mean()
        for weight in weights
    ]
    return torch.stack(losses)


def test_a_loss_equals_a_loop_over_positions_shifted_by_hand():
    model, ids, labels, probe = make()
    expected = {
        layer: loop_over_shifted_positions(model, ids, labels, weights_of(probe, layer), layer)
        for layer in LAYERS
    }
    model(input_ids=ids, labels=labels)
    measured = probe.measure(labels)
    torch.testing.assert_close(probe.loss(labels), sum(e.sum() for e in expected.values()), **TIGHT)

    evaluated = probe.evaluate({"input_ids": ids, "labels": labels}, batch_size=2)
    for layer in LAYERS:
        by_hand = expected[layer].detach().numpy()
        np.testing.assert_allclose(measured["loss"].sel(layer=layer), by_hand, rtol=1e-10)
        np.testing.assert_allclose(evaluated["loss"].sel(layer=layer), by_hand, rtol=1e-10)
    n_targets = int((labels[:, 1:] != -100).sum())
    assert evaluated["n_targets"].values.tolist() == [n_targets, n_targets]


def test_positions_may_be_taken_at_their_word():
    model, ids, labels, probe = make()
    shifted = torch.cat([labels[:, 1:], torch.full((3, 1), -100)], 1)
    losses = []
    for y, shift in ((labels, None), (labels, True), (shifted, False)):
        model(ids)
        losses.append((probe.loss(y, shift=shift), probe.measure(y, shift=shift)["loss"].values))
    for loss, measured in losses[1:]:
        assert torch.equal(loss, losses[0][0])
        assert (measured == losses[0][1]).all()

    # In a pair targets are taken so in every package.
    evaluated = probe.evaluate((ids, shifted))
    np.testing.assert_allclose(evaluated["loss"], losses[0][1], rtol=1e-10)


def test_labels_that_are_shifted_already_are_refused():
    model, ids, _, probe = make()
    model(ids[:, :-1])
    with pytest.raises(ValueError, match=r"are shifted already; .* or shift=False"):
        probe.loss(ids[:, 1:])
    assert torch.isfinite(probe.loss(ids[:, 1:], shift=False))
    with pytest.raises(TypeError, match=r"`shift`: expected True, False or None, got 1\.5"):
        probe.measure(ids[:, 1:], shift=1.5)


def test_evaluation_reads_a_pair_with_the_tokens_that_are_read_as_the_mapping():
    _, ids, labels, probe = make()
    of_pair = probe.evaluate((ids, labels))
    of_mapping = probe.evaluate({"input_ids": ids, "labels": labels})
    np.testing.assert_array_equal(of_pair["loss"], of_mapping["loss"])


def test_models_that_are_not_causal_and_targets_of_samples_stay_where_they_are():
    model, ids, _, probe = make()
    model(ids)
    of_samples = torch.tensor([1, 2, 3])
    assert torch.equal(probe.loss(of_samples), probe_loss_again(model, ids, probe, of_samples))

    bert = masked_bert().train()
    probe = probes.attach(bert, n=2)
    losses = []
    for shift in (None, False):
        torch.manual_seed(0)
        bert(ids)
        losses.append(probe.loss(ids, shift=shift))
    assert torch.equal(*losses)


def probe_loss_again(model, ids, probe, y):
    model(ids)
    return probe.loss(y, shift=False)


def test_exits_read_labels_as_the_models_own_loss_does():
    model, ids, labels, probe = make()
    probe.detach()
    exits = probes.attach_exits(model, weights=[0.0, 1.0])
    assert exits.layers == LAYERS
    assert "layers found: 2 modules of class GPT2Block" in repr(exits)

    output = model(input_ids=ids, labels=labels)
    own_loss = F.cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    assert output.loss.item() == pytest.approx(own_loss.item(), rel=1e-6)  # in single precision
    torch.testing.assert_close(exits.loss(labels), own_loss, **TIGHT)
    model(ids[:, :-1])
    with pytest.raises(ValueError, match="`targets`: the model is a causal language model"):
        exits.loss(ids[:, 1:])
    expected = F.cross_entropy(model(ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(exits.loss(ids[:, 1:], shift=False), expected, **TIGHT)

    record = probes.record_exits(model.eval(), {"input_ids": ids, "labels": labels})
    found = record["cross_entropy"].isel(layer=-1).mean().item()
    assert found == pytest.approx(own_loss.item(), rel=1e-10)
    assert record.attrs["layers_reason"] == "2 modules of class GPT2Block"
    named = probes.record_exits(model, {"input_ids": ids, "labels": labels}, "transformer.h.*")
    assert named.attrs["layers_reason"] == "named in the call"
    trained = probes.record_exits(model, {"input_ids": ids, "labels": labels}, head=exits)
    assert list(trained["layer"].values) == LAYERS
