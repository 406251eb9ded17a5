"""What `attention` refuses to read, or to be asked for."""

import pytest
import timm
import torch
import torch.nn.functional as F
import xarray as xr
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import attention
from attention import _tap
from resonance_toolkit import NotApplicableError
from tests.helpers.small_vit import small_vit


class Flexible(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = nn.MultiheadAttention(16, 1, batch_first=True)
        self.flexible = FlexAttention()

    def forward(self, x):
        return self.flexible(self.plain(x, x, x)[0])


class FlexAttention(nn.Module):
    def forward(self, x):
        x = x[:, None]
        return flex_attention(x, x, x)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_refused_even_beside_attention_that_can_be_read():
    model, x = Flexible().eval(), torch.randn(1, 16, 16)
    with pytest.raises(ValueError, match=r"layer 'flexible' .* flex_attention.* sdpa or eager"):
        attention.capture(model, x, queries="mean")


class OwnKernel(nn.Module):
    def forward(self, x):
        q = x[:, None]
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)[0]


def test_a_kernel_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="_scaled_dot_product_flash_attention_for_cpu, which can"):
        attention.capture(OwnKernel(), torch.randn(1, 4, 8), queries="mean")


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0"])
def test_no_attention_is_refused(name):
    model = timm.create_model(name)
    with pytest.raises(NotApplicableError, match="no attention was seen"):
        attention.capture(model, torch.randn(1, 3, 32, 32), queries="mean")


def test_layers_without_attention_are_a_mistake_and_the_model_has_some():
    with pytest.raises(ValueError, match=r"there is some in blocks\.0\.attn") as refusal:
        attention.capture(small_vit(), torch.randn(1, 3, 32, 32), layers="patch_embed")
    assert not isinstance(refusal.value, NotApplicableError)


def test_separable_attention_is_refused_with_its_place():
    model = timm.create_model("mobilevitv2_050")
    with pytest.raises(
        ValueError, match=r"A softmax that no product .* is in stages.2.1.transformer.0.attn"
    ):
        attention.capture(model, torch.randn(1, 3, 64, 64), queries="mean")


class Gated(nn.Module):
    """Attention, then a softmax that weighs tokens without a product of matrices."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = self.attention(x, x, x)[0]
        return (x * x.softmax(-1)).sum(1)


def test_a_softmax_that_is_left_out_is_named():
    with pytest.warns(UserWarning, match=r"a softmax was left out.* in $"):
        attention.capture(Gated(), torch.randn(2, 5, 8), queries="mean")


def capture_at_once(model, x):
    attention.capture(model, x, queries="mean")


def capture_in_a_body(model, x):
    with attention.capturing(model, queries="mean"):
        model(x)


@pytest.mark.parametrize("run", [capture_at_once, capture_in_a_body])
def test_a_warning_points_at_the_line_of_the_user(run):
    with pytest.warns(UserWarning, match="a softmax was left out") as warned:
        run(Gated(), torch.randn(2, 5, 8))
    assert [record.filename for record in warned] == [__file__]


def test_what_does_not_reproduce_the_output_is_not_returned(monkeypatch):
    real = F.scaled_dot_product_attention

    class Sharper(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    def wrong(place, output, arguments, **known):
        return real_description(place, output, arguments | {"scale": 0.1}, **known)

    real_description = _tap.call_from_kernel
    monkeypatch.setattr("attention._tap.call_from_kernel", wrong)
    x = torch.randn(1, 2, 5, 8)
    with pytest.raises(RuntimeError, match="layer '': the attention read does not reproduce"):
        attention.capture(Sharper(), x, queries="mean")
    assert F.scaled_dot_product_attention is real


@pytest.mark.parametrize("kind", ["kernel", "softmax"])
def test_every_layer_is_compared_with_its_own_output(monkeypatch, kind):
    """The second layer alone does not reproduce what it used."""
    described = getattr(_tap, f"call_from_{kind}")

    def wrong(place, *args, **known):
        if place.layer == "1" and kind == "kernel":
            args = (args[0], args[1] | {"scale": 3.0})
        elif place.layer == "1":
            args = (3 * args[0], args[1])  # other scores than those of the softmax
        return described(place, *args, **known)

    monkeypatch.setattr(f"attention._tap.call_from_{kind}", wrong)
    way = "fused" if kind == "kernel" else "aten"
    model = nn.Sequential(Split(way), Split(way))
    with pytest.raises(RuntimeError, match="layer '1': the attention read does not reproduce"):
        attention.capture(model, torch.randn(2, 7, 16), queries="mean")


def test_scores_that_change_after_their_softmax_are_not_returned():
    with pytest.raises(RuntimeError, match="layer '': the attention read does not reproduce"):
        attention.capture(Split("overwritten"), torch.randn(2, 7, 16), queries="mean")


BAD = {
    "queries": ["none", [], "", 3, [1.5], [True, False], torch.tensor([True, False])],
    "keys": ["cls"],
    "threshold": [0, 1.5, "high"],
    "mass": [0, 2],
    "chunk": [0, 1.5, True],
    "prefix": [-1, 1.5, "1", True, 17],  # there are 16 patches, and the class token
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in BAD.items() for v in vs])
def test_bad_arguments_are_named(name, value):
    with pytest.raises(ValueError, match=f"`{name}`: expected .* got"):
        attention.capture(small_vit(), torch.randn(1, 3, 32, 32), **{name: value})


def test_what_is_no_module_is_named():
    text = r"`model`: expected an nn\.Module, got the class Gated: call it first"
    with pytest.raises(TypeError, match=text):
        attention.capture(Gated, torch.ones(1, 3, 8))
    with pytest.raises(TypeError, match=text), attention.capturing(Gated):
        pass


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="the input has no samples"):
        attention.capture(small_vit(), torch.randn(0, 3, 32, 32))


def test_a_model_without_class_token_says_what_else_to_ask_for():
    model = small_vit(class_token=False, global_pool="avg")
    with pytest.raises(ValueError, match=r'`queries`: expected .*"mean", .* no class token'):
        attention.capture(model, torch.randn(1, 3, 32, 32), queries="cls")
    with pytest.raises(ValueError, match=r"`layers`: nothing is called 'block"):
        attention.capture(small_vit(), torch.randn(1, 3, 32, 32), layers="block.0")
    with pytest.raises(
        ValueError, match=r"`layers`: no attention in blocks.0.mlp; .*blocks.1.attn"
    ):
        attention.capture(small_vit(), torch.randn(1, 3, 32, 32), layers="blocks.0.mlp")


class Split(nn.Module):
    """Two heads, written by hand in some way."""

    def __init__(self, way):
        super().__init__()
        self.way, self.num_heads = way, 2
        self.qkv = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        if self.way == "linear":  # two softmaxes, neither of them from queries to keys
            return (q.softmax(-1) @ (k.softmax(-2).mT @ v)).transpose(1, 2).flatten(2)
        if self.way == "transposed":
            return ((k @ q.mT).softmax(-2).mT @ v).transpose(1, 2).flatten(2)
        if self.way == "fused":
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        if self.way == "logarithm":
            return (F.log_softmax(q @ k.mT, -1).exp() @ v).transpose(1, 2).flatten(2)
        if self.way == "overwritten":
            scores = q @ k.mT
            weights = scores.softmax(-1)
            scores.mul_(3)
            return (weights @ v).transpose(1, 2).flatten(2)
        return (torch.ops.aten.softmax(q @ k.mT, -1) @ v).transpose(1, 2).flatten(2)


def beside_a_readable_layer(way):
    return nn.Sequential(Split(way), nn.TransformerEncoderLayer(16, 2, 16, batch_first=True))


def test_linear_attention_is_refused():
    model = beside_a_readable_layer("linear")
    with pytest.warns(UserWarning, match="another axis"), pytest.raises(ValueError, match="linear"):
        attention.capture(model, torch.randn(2, 7, 16), queries="mean")


def test_a_softmax_along_another_axis_is_named():
    model, x = beside_a_readable_layer("transposed"), torch.randn(2, 7, 16)
    with pytest.warns(UserWarning, match="another axis than the last, in 0"):
        seen = attention.capture(model, x, queries="mean")
    assert list(seen["layer"]) == ["1.self_attn"]
    with pytest.raises(ValueError, match=r"no attention was seen.*another axis"):
        attention.capture(model[0], x, queries="mean")


def test_a_softmax_called_as_an_operator_is_read():
    seen = attention.capture(beside_a_readable_layer("aten"), torch.randn(2, 7, 16), queries="mean")
    assert list(seen["layer"]) == ["0", "1.self_attn"]


def test_the_exponential_of_a_log_softmax_is_read():
    model, x = beside_a_readable_layer("logarithm").double(), torch.randn(2, 7, 16).double()
    seen = attention.capture(model, x, queries="mean")
    assert list(seen["layer"]) == ["0", "1.self_attn"]
    model[0].way = "aten"
    expected = attention.capture(model, x, queries="mean")
    xr.testing.assert_allclose(seen.drop_attrs(), expected.drop_attrs(), rtol=1e-9)


class Windowed(nn.Module):
    """As many windows as it is told, of the first two axes."""

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


def test_passes_of_different_forms_are_refused():
    model = Windowed()
    with attention.capturing(model, queries="mean") as recording:
        model(torch.randn(2, 3, 5, 8))
        model(torch.randn(2, 4, 5, 8))
    with pytest.raises(ValueError, match=r"differ in form: layer '' has \[3, 1\] heads"):
        recording.dataset()


@pytest.mark.parametrize("queries", ["auto", "cls", "mean"])
def test_a_model_without_attention_is_told_just_that(queries):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(2))
    x = torch.randn(2, 3, 8, 8)
    model(x)
    with pytest.raises(ValueError, match="`model`: no attention was seen") as refusal:
        attention.capture(model, x, queries=queries)
    assert "class token" not in str(refusal.value)


def test_inputs_that_are_nan_are_refused_and_named():
    x = torch.randn(3, 3, 32, 32)
    x[1, 0, 4] = torch.nan
    with pytest.raises(ValueError, match=r"`data`: expected inputs that are numbers, .* sample 1$"):
        attention.capture(small_vit(), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8])
def test_inputs_of_another_dtype_get_a_sentence(dtype):
    with pytest.raises(ValueError, match="for weights of float32; convert the inputs"):
        attention.capture(small_vit(), torch.ones(1, 3, 32, 32).to(dtype))


def test_two_arrays_are_a_pair_and_a_model_of_two_arguments_says_so():
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    tokens = torch.randn(2, 3, 8)
    with pytest.raises(TypeError, match=r"missing .* 'tgt'; several inputs are a tuple"):
        attention.capture(model, (tokens, tokens))
