import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probes
from probes import schedules, weightings
from probes._exit_training.head import POOLING_BETWEEN_MODULES
from probes._exit_training.model_head import _best_pooling
from tests.helpers.exit_models import BLOCKS, by_hand, gpt2, images, text, text_model, vit


@pytest.mark.parametrize(
    ("weights", "numbers"),
    [
        ("standard", (0, 0, 1)),
        ("deep_supervision", (1 / 3, 1 / 3, 1 / 3)),
        ("auxiliary", (0.5, 0, 0.5)),
        (weightings.asymmetric(0.5), (0.5, 0, 0.5)),
        (weightings.asymmetric(0.7), (0.7, 0, 0.3)),
        (weightings.asymmetric_l2(0.7), (0.7, 1, 0.3)),
        ((0.2, 0.5, 3.0), (0.2, 0.5, 3.0)),
    ],
)
def test_loss_and_gradients_are_those_written_out(weights, numbers):
    model, (ids, y) = text_model(), text()
    exits = probes.attach_exits(model, "blocks.*", weights=weights)
    model(ids)
    loss = exits.loss(y)
    expected = by_hand(model, ids, y, numbers)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    found, wanted = (
        torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
        for value in (loss, expected)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_presets_for_other_depths():
    assert weightings.standard(2) == (0, 1)
    assert weightings.auxiliary(5) == weightings.asymmetric(0.5)(5, 0) == (0.5, 0, 0, 0, 0.5)
    assert weightings.asymmetric_l2(0.9)(4, 0) == pytest.approx((0.9, 1, 1, 0.1))
    assert weightings.asymmetric(0.3)(2, 0) == (0.3, 0.7)
    with pytest.raises(ValueError, match="2 layers or more"):
        weightings.asymmetric(0.3)(1, 0)
    with pytest.raises(ValueError, match="`alpha`"):
        weightings.asymmetric(1.2)


@pytest.mark.parametrize(
    ("schedule", "alphas"),
    [
        (schedules.constant(0.7), [0.7] * 5),
        (schedules.linear(0.9, 0.5, steps=4), [0.9, 0.8, 0.7, 0.6, 0.5]),
        (schedules.cosine(0.9, 0.5, steps=4), [0.9, 0.8414213562, 0.7, 0.5585786438, 0.5]),
        (schedules.step(0.9, 0.5, steps=4), [0.9, 0.9, 0.5, 0.5, 0.5]),
        (schedules.step(0.9, 0.5, steps=4, at=0.75), [0.9, 0.9, 0.9, 0.5, 0.5]),
    ],
)
def test_schedules_run_over_the_losses_made(schedule, alphas):
    model, (ids, y) = text_model(), text()
    exits = probes.attach_exits(model, BLOCKS, weights=weightings.asymmetric(schedule))
    for alpha in alphas:
        model(ids)
        expected = by_hand(model, ids, y, (alpha, 0, 1 - alpha))
        torch.testing.assert_close(exits.loss(y), expected, rtol=1e-9, atol=0)


def test_own_heads_are_trained_and_not_part_of_the_model():
    model, (ids, y) = text_model(), text()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    exits = probes.attach_exits(model, BLOCKS, weights=(1.0, 2.0, 3.0), head="own")
    first, second = exits.heads
    assert sum(p.numel() for p in exits.parameters()) == 2 * (6 * 11 + 11)
    assert model.state_dict().keys() == before.keys()
    model(ids)
    loss = exits.loss(y)
    x, parts = model.embed(ids), []
    for block, head in zip(model.blocks, (first, second, model.head), strict=True):
        x = block(x)
        parts.append(F.cross_entropy(head(x).flatten(0, 1), y.flatten()))
    torch.testing.assert_close(loss, parts[0] + 2 * parts[1] + 3 * parts[2], rtol=1e-12, atol=0)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in exits.parameters())


def test_targets_of_minus_100_do_not_count():
    model, (ids, y) = text_model(), text()
    exits = probes.attach_exits(model, BLOCKS)
    y = y.masked_fill(torch.arange(9) > 4, -100)
    model(ids)
    # Causal: cut off, the rest is the same text.
    expected = by_hand(model, ids[:, :5], y[:, :5], (1 / 3,) * 3)
    torch.testing.assert_close(exits.loss(y), expected, rtol=1e-12, atol=0)


def test_gpt2_takes_its_final_norm_and_head():
    model, (ids, y) = gpt2().eval(), text()
    names = ["transformer.h.0", "transformer.h.2"]
    with probes.attach_exits(model, names, weights=(0.7, 0.3)) as exits, exits.listening():
        states = model(ids, output_hidden_states=True)
        shallow = model.lm_head(model.transformer.ln_f(states.hidden_states[1]))
        parts = [F.cross_entropy(z.flatten(0, 1), y.flatten()) for z in (shallow, states.logits)]
        torch.testing.assert_close(exits.loss(y, shift=False), 0.7 * parts[0] + 0.3 * parts[1])


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_vit_takes_its_norm_pooling_and_head(pool):
    model, (x, y) = vit(global_pool=pool), images()
    with probes.attach_exits(model, "blocks.*", weights=(0.2, 0.3, 0.5)) as exits:
        model(x)
        loss = exits.loss(y)
    _, states = model.forward_intermediates(
        x, norm=True, output_fmt="NLC", return_prefix_tokens=True
    )
    logits = [model.forward_head(torch.cat([prefix, grid], 1)) for grid, prefix in states]
    parts = [F.cross_entropy(z, y) for z in logits]
    torch.testing.assert_close(loss, 0.2 * parts[0] + 0.3 * parts[1] + 0.5 * parts[2])


@pytest.mark.parametrize(
    "pooling", ["mean", "mean without first token", "mean without five tokens"]
)
def test_the_best_of_poolings_that_hardly_differ(pooling):
    # Numbers of 10 bits, whose means with and without some tokens are the same to 2 %.
    x = (1 + 0.3 * torch.randn(1, 80, 4, generator=torch.Generator().manual_seed(0))).half()
    assert _best_pooling(x, POOLING_BETWEEN_MODULES[pooling](x)) == pooling


def test_dropout_before_the_head_does_not_hide_the_way():
    model = nn.Sequential(nn.Tanh(), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 3)).train()
    exits = probes.attach_exits(model, ["0", "1"], sample=torch.randn(2, 4))
    assert "2 > 3" in repr(exits)


def test_soft_targets_of_a_classifier():
    model, (x, y) = vit(), images()
    exits = probes.attach_exits(model, "blocks.*")
    losses = []
    for targets in (y, F.one_hot(y, 5).float()):
        model(x)
        losses.append(exits.loss(targets))
    torch.testing.assert_close(*losses)


def test_norm_can_be_left_out_or_replaced():
    model, (ids, y) = gpt2().eval(), text()
    names = ["transformer.h.0", "transformer.h.2"]
    for norm in (None, torch.tanh):
        with probes.attach_exits(model, names, weights=(1, 0), norm=norm) as exits:
            with exits.listening():
                state = model(ids, output_hidden_states=True).hidden_states[1]
            logits = model.lm_head(state if norm is None else state.tanh())
            expected = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            torch.testing.assert_close(exits.loss(y, shift=False), expected)


def test_a_callable_head():
    model, (ids, y) = text_model(), text()
    head = nn.Linear(6, 11).double()
    exits = probes.attach_exits(model, BLOCKS, weights=(1, 1, 0), head=head)
    assert not list(exits.parameters())
    model(ids)
    expected = by_hand(model, ids, y, (1, 1, 0), head)
    torch.testing.assert_close(exits.loss(y), expected, rtol=1e-12, atol=0)


def test_resnet_stages_need_heads_of_their_own():
    import torchvision

    model = torchvision.models.resnet18(num_classes=5)
    with pytest.raises(ValueError, match="`head`: expected logits"):
        probes.attach_exits(model, "layer[1-4]")
    exits = probes.attach_exits(model, "layer[1-4]", head="own")
    assert [head.in_features for head in exits.heads] == [64, 128, 256]
    x, y = torch.randn(2, 3, 64, 64), torch.tensor([0, 3])
    model(x)
    exits.loss(y).backward()


def test_parameter_groups_follow_the_exits():
    model = gpt2()
    exits = probes.attach_exits(model, "transformer.h.*")
    groups = exits.parameter_groups(lr=1e-2, factors=(1, 0.5, 0.1))
    assert [g["lr"] for g in groups] == pytest.approx([1e-2, 5e-3, 1e-3])
    names = {id(p): name for name, p in model.named_parameters()}
    held = [{names[id(p)] for p in group["params"]} for group in groups]
    assert sum(map(len, held)) == len(names)
    for index, group in enumerate(held):
        expected = {n for n in names.values() if n.startswith(f"transformer.h.{index}.")}
        if index == 0:  # embeddings (the tied head with them) and the norm that all exits share
            expected |= {"transformer.wte.weight", "transformer.wpe.weight"}
            expected |= {"transformer.ln_f.weight", "transformer.ln_f.bias"}
        assert group == expected
    torch.optim.AdamW(groups)


def test_parameter_groups_of_exits_with_own_heads():
    model = text_model()
    exits = probes.attach_exits(model, BLOCKS, head="own")
    first, second, last = exits.parameter_groups(lr=1.0)
    assert any(p is exits.heads[0].weight for p in first["params"])
    assert any(p is exits.heads[1].bias for p in second["params"])
    assert any(p is model.head.weight for p in last["params"])
    for block, group in zip(model.blocks, (first, second, last), strict=True):
        assert {id(p) for p in block.parameters()} <= {id(p) for p in group["params"]}
    assert any(p is model.embed.weight for p in first["params"])
    with pytest.raises(ValueError, match="`factors`"):
        exits.parameter_groups(lr=1.0, factors=(1, 2))


def test_parts_of_the_latest_loss():
    model, (ids, y) = text_model(), text()
    exits = probes.attach_exits(model, BLOCKS, weights=weightings.asymmetric(0.7))
    assert exits.measure()["loss"].isnull().all()
    model(ids)
    total = exits.loss(y)
    parts = exits.measure()
    assert parts["loss"].isnull().values.tolist() == [False, True, False]
    assert parts["weight"].values.tolist() == pytest.approx([0.7, 0, 0.3])
    assert float((parts["loss"] * parts["weight"]).sum()) == pytest.approx(total.item())


def test_learning_rates_may_be_tensors():
    model = text_model()
    exits = probes.attach_exits(model, BLOCKS)
    groups = exits.parameter_groups(lr=torch.tensor(0.5), factors=(1, 0.5, 0))
    assert [float(group["lr"]) for group in groups] == [0.5, 0.25, 0.0]
    with pytest.raises(ValueError, match="`lr`: expected a finite number of at least 0"):
        exits.parameter_groups(lr=torch.tensor(-0.5))


def test_a_weighting_is_tried_once_when_exits_are_attached():
    steps = []

    def weighting(layers, step):
        steps.append(step)
        return (1.0,) * layers

    exits = probes.attach_exits(text_model(), BLOCKS, weights=weighting)
    assert steps == [0]
    assert exits.weights == dict.fromkeys(BLOCKS, 1.0)
