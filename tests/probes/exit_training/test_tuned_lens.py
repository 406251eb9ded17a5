"""The tuned lens: translators before the model's head, beside the logit lens and KL by hand."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import probes
from probes._exit_training.translator import Translator
from tests.helpers import text_models

LAYERS = "transformer.h.*"


def make():
    model = text_models.gpt2().eval()
    ids = torch.randint(0, model.config.vocab_size, (4, 7), generator=torch.manual_seed(0))
    return model, ids


def lens_logits(model, ids, exits=None):
    """The logits of the first exit, by the model's parts."""
    hidden = model.transformer(ids, output_hidden_states=True).hidden_states[1]
    if exits is not None:
        (translator,) = exits.heads
        hidden = hidden + hidden @ translator.weight.mT + translator.bias
    return model.lm_head(model.transformer.ln_f(hidden))


def kl(reference, logits, counts):
    """Sum of p (ln p - ln q), class by class and place by place."""
    p, q = reference.double().softmax(-1).numpy(), logits.double().softmax(-1).numpy()
    return np.mean(
        [(a * (np.log(a) - np.log(b))).sum() for a, b in zip(p[counts], q[counts], strict=True)]
    )


def test_at_first_it_is_the_logit_lens_bit_for_bit():
    model, ids = make()
    exits = probes.attach_exits(model, LAYERS, head="tuned", sample=ids)
    tuned = probes.record_exits(model, (ids[:, :-1], ids[:, 1:]), LAYERS, head=exits)
    plain = probes.record_exits(model, (ids[:, :-1], ids[:, 1:]), LAYERS, head="model")
    for name in ("cross_entropy", "prediction", "confidence"):
        assert tuned[name].equals(plain[name])

    with torch.no_grad(), exits.listening():
        model(ids)
        hidden = model.transformer(ids, output_hidden_states=True).hidden_states[1]
        assert torch.equal(exits.logits("transformer.h.0", hidden), lens_logits(model, ids))
    assert "translator > transformer.ln_f > lm_head" in repr(exits)


def test_the_divergence_is_kl_written_out_over_places_that_count():
    model, ids = make()
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    exits = probes.attach_exits(model, LAYERS, weights=[0.25, 0.75], head="tuned", sample=ids)
    torch.nn.init.normal_(exits.heads[0].weight, std=0.3)
    torch.nn.init.normal_(exits.heads[0].bias)

    with torch.no_grad(), exits.listening():
        logits = model(ids, attention_mask=mask).logits
        value = exits.divergence()
    hidden_states = []
    handle = model.transformer.h[0].register_forward_hook(
        lambda module, args, output: hidden_states.append(
            output if isinstance(output, torch.Tensor) else output[0]
        )
    )
    with torch.no_grad():
        model(ids, attention_mask=mask)
        handle.remove()
        (translator,) = exits.heads
        hidden = hidden_states[0] @ (torch.eye(16) + translator.weight.mT) + translator.bias
        early_logits = model.lm_head(model.transformer.ln_f(hidden))

    expected = kl(logits, early_logits, mask.bool().numpy())
    assert value.item() == pytest.approx(0.25 * expected, rel=1e-5)
    measured = exits.measure()
    np.testing.assert_allclose(measured["loss"], [expected, 0], rtol=1e-5)
    assert measured.attrs["loss"] == "divergence"


def test_training_lowers_the_divergence_of_every_layer_and_moves_translators_alone():
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=11, n_embd=12, n_layer=4, n_head=2, initializer_range=0.5
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.randint(0, 11, (8, 9))
    before = copy.deepcopy(model.state_dict())
    exits = probes.attach_exits(model, LAYERS, head="tuned", sample=ids)
    optimizer = torch.optim.Adam(exits.parameters(), lr=0.02)

    rounds = []
    for _ in range(60):
        with exits.listening():
            model(ids)
        loss = exits.divergence()
        rounds.append(exits.measure()["loss"].values)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    assert (rounds[-1][:-1] < 0.7 * rounds[0][:-1]).all()
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert exits.step == 60


def test_on_targets_the_model_gets_the_gradient_of_its_own_loss_alone():
    model, ids = make()
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    plain = copy.deepcopy(model)
    logits = plain(ids).logits[:, :-1]
    (0.5 * F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())).backward()

    exits = probes.attach_exits(model, LAYERS, head="tuned", sample=ids)
    model(ids)
    exits.loss(ids).backward()

    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-9)
    assert all(p.grad.abs().sum() > 0 for p in exits.parameters())


def test_other_exits_have_a_divergence_as_well_and_strings_for_it_are_refused():
    model, ids = make()
    exits = probes.attach_exits(model, LAYERS, sample=ids)
    with exits.listening():
        logits = model(ids).logits
        value = exits.divergence()
    with torch.no_grad():
        early = lens_logits(model, ids)
    everywhere = np.ones(ids.shape, dtype=bool)
    assert value.item() == pytest.approx(0.5 * kl(logits.detach(), early, everywhere), rel=1e-4)
    with pytest.raises(RuntimeError):
        exits.divergence()  # taken

    with pytest.raises(ValueError, match="`head`: tuned heads are trained"):
        probes.record_exits(model, (ids, ids), LAYERS, head="tuned")
    with pytest.raises(ValueError, match="`head`: expected one of model, own, tuned"):
        probes.attach_exits(model, LAYERS, head="tune", sample=ids)


def test_a_translator_maps_the_axis_of_features_whichever_it_is():
    hidden = torch.randn(2, 3, 4, 5, generator=torch.manual_seed(0))
    translator = Translator(3, 1, hidden)
    torch.nn.init.normal_(translator.weight)
    torch.nn.init.normal_(translator.bias)

    mapped = torch.einsum("oc,nchw->nohw", translator.weight, hidden)
    expected = hidden + mapped + translator.bias[:, None, None]
    torch.testing.assert_close(translator(hidden), expected)
