"""What follows a block, computed alone, against full forward passes with a hook."""

import pytest
import timm
import torch
import torchvision
import transformers
from torch import nn

import nudging
import tests.helpers.nudging_models as nets
from tests.helpers.state import snapshot


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=29,
        n_positions=16,
        n_embd=16,
        n_layer=3,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def next_token(outputs, tokens):
    """Mean over the tokens of each text."""
    logits = outputs.logits[:, :-1].mT
    return nn.functional.cross_entropy(logits, tokens[:, 1:], reduction="none").mean(1)


def vit():
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        depth=4,
        embed_dim=24,
        num_heads=2,
        num_classes=5,
    )


def in_place():
    inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
    return nn.Sequential(
        nn.Linear(12, 8), nn.ReLU(inplace=True), inner, nn.ReLU(True), nn.Linear(8, 5)
    )


TOKENS = torch.randint(0, 29, (4, 9), generator=torch.Generator().manual_seed(0))
IMAGES = nets.batch(4, (3, 32, 32))
ZOO = {
    "resmlp": (nets.ResMLP, nets.batch(), ["embed", "blocks.*"], None),
    "vit": (vit, IMAGES, "blocks.*", None),
    "resnet": (lambda: torchvision.models.resnet18(num_classes=5), IMAGES, "layer[1-4].*", None),
    "resnet, nested": (
        lambda: torchvision.models.resnet18(num_classes=5),
        IMAGES,
        ["relu", "layer[12]", "layer2.0", "layer2.0.bn1", "layer4.1.conv2"][1:],
        None,
    ),
    "gpt2": (gpt2, (TOKENS, TOKENS), "transformer.h.*", next_token),
    "in place": (in_place, nets.batch(), ["0", "2", "2.0", "3"], None),
    "branches": (nets.Branches, nets.batch(), ["left", "right", "deep.*"], None),
    "whispering": (nets.Whispering, nets.batch(), ["first", "second"], None),
}


@pytest.fixture(params=list(ZOO))
def case(request):
    build, (x, y), blocks, loss = ZOO[request.param]
    model = nets.make(build)
    if request.param.startswith("resnet"):
        randomise_batch_norm(model)
    return model, x, y, blocks, loss


def randomise_batch_norm(model):
    generator = torch.Generator().manual_seed(3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.copy_(torch.randn(module.num_features, generator=generator) / 9)
            module.running_var.copy_(0.5 + torch.rand(module.num_features, generator=generator))


def test_what_follows_a_block_equals_a_full_pass_bit_for_bit(case):
    model, x, y, blocks, loss = case
    state = nudging.observe(model, x, y, blocks, loss=loss)
    for name, rest in state.hidden.items():
        assert torch.equal(rest, output_of(model, x, name)), name
        moved = rest + torch.randn(rest.shape, generator=torch.Generator().manual_seed(1))
        expected = nets.by_hook(model, x, name, moved)
        got = state.replay(name, moved)
        for key in ("logits",) if loss else (...,):
            want, have = (out[key] for out in (expected, got))
            assert torch.equal(have, want), name
        assert not torch.equal(state.losses(got), state.losses())  # the change does reach the loss


def output_of(model, x, block):
    found = []
    model.eval()

    def keep(_module, _args, output):
        tensor = output[0] if isinstance(output, tuple) else output
        found.append(tensor.clone())

    with model.get_submodule(block).register_forward_hook(keep):
        model(x)
    model.train()
    return found[0]


def test_nudges_equal_full_passes_with_a_hook(case):
    model, x, y, blocks, loss = case
    found = nudging.nudge(
        model, (x, y), nudging.backprop, blocks, loss=loss, samples=None, keep_samples=True, eta=0.3
    )
    state = nudging.observe(model, x, y, blocks, loss=loss)
    for name, g in reference_gradients(state, model, x).items():
        rms = (
            g.flatten(1).square().mean(1).sqrt().clamp(min=1e-30).reshape(-1, *[1] * (g.dim() - 1))
        )
        moved = nets.by_hook(model, x, name, state.hidden[name] - 0.3 * g / rms)
        change = state.losses(moved).double() - state.losses().double()
        got = torch.from_numpy(found["sample_change"].sel(layer=name).values[0])
        torch.testing.assert_close(got, change, rtol=1e-4, atol=2e-6)


def reference_gradients(state, model, x):
    """One backward pass per block, through a hook that makes its output a leaf."""
    found = {}
    for name, rest in state.hidden.items():
        leaf = rest.clone().requires_grad_()
        model.eval()

        def replace_output(_module, _args, output, leaf=leaf):
            return nets.in_place_of(output, leaf * 1)

        with model.get_submodule(name).register_forward_hook(replace_output):
            total = state.losses(model(x)).sum()
        model.train()
        (found[name],) = torch.autograd.grad(total, leaf)
    return found


def test_the_gradient_of_all_blocks_in_one_pass_is_that_of_each_alone(case):
    model, x, y, blocks, loss = case
    state = nudging.observe(model, x, y, blocks, loss=loss)
    reference = reference_gradients(state, model, x)
    for name, g in state.gradient().items():
        torch.testing.assert_close(g, reference[name])


def test_blocks_before_the_nudged_one_are_not_computed():
    model, ran = nets.make(nets.ResMLP), []
    every = nudging.observe(model, *nets.batch(), ["embed", "blocks.*"])
    last = nudging.observe(model, *nets.batch(), "norm")  # a list that holds no block comes before
    for block in model.blocks:
        # The block's own call is answered; what is inside it does not run.
        block.first.register_forward_pre_hook(lambda *_: ran.append(1))
    for state, name, expected in [
        (every, "embed", 4),
        (every, "blocks.0", 3),
        (every, "blocks.2", 1),
        (every, "blocks.3", 0),
        (last, "norm", 0),
    ]:
        ran.clear()
        state.replay(name, state.hidden[name])
        assert len(ran) == expected, name


def test_only_a_model_that_needs_full_passes_makes_them_and_says_so():
    words = {}
    for name, (build, data, blocks, loss) in ZOO.items():
        model = nets.make(build)
        found = nudging.nudge(model, data, nudging.random(), blocks, loss=loss, samples=None)
        words[name] = found.attrs["passes"]
    assert words.pop("whispering").startswith("full passes: what follows first depends on more")
    assert set(words.values()) == {"what follows each block"}


def test_state_leaves_the_model_alone(case):
    model, x, y, blocks, loss = case
    model.train()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before, kept = snapshot(model), x.clone()
    state = nudging.observe(model, x, y, blocks, loss=loss)
    value = state.hidden[state.blocks[0]].clone()
    state.replay(state.blocks[0], value)
    state.gradient()
    nudging.backprop(state)
    nudging.auxiliary(lambda outputs, targets: state.losses(outputs))(state)
    if not isinstance(model, nets.Whispering):  # its own forward leaves a note
        assert snapshot(model) == before
    assert torch.equal(value, state.hidden[state.blocks[0]])
    assert torch.equal(x, kept)
