"""Each mistake gets one sentence that names the argument and what would do."""

import pytest
import torch
from torch import nn

import resonance
from tests.resonance_toolkit.front.examine.models import make_mlp, make_vectors


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"budget": "an age"}, r"`budget`: expected 'seconds', 'minutes', 'hour' or a number"),
        ({"budget": 0}, r"`budget`: expected .* got 0$"),
        ({"budget": float("nan")}, r"`budget`: expected .* got nan"),
        ({"budget": True}, r"`budget`: expected .* got True"),
        ({"parts": "curvatur"}, r"`parts`: .*curvature"),
        ({"parts": []}, r"`parts`: expected some of model, .* got none"),
        ({"parts": ["model", "model"]}, r"`parts`: expected different names"),
        ({"parts": 3}, r"`parts`: expected names of parts, got int"),
        ({"n": 0}, r"`n`: "),
        ({"n": 2.5}, r"`n`: "),
        ({"steps": 0}, r"`steps`: "),
        ({"seeds": -1}, r"`seeds`: "),
        ({"samples": "many"}, r"`samples`: "),
        ({"batch_size": 0}, r"`batch_size`: "),
        ({"seed": -1}, r"`seed`: "),
        ({"alpha": "strong"}, r"`alpha`: "),
        ({"alpha": -1}, r"`alpha`: "),
        ({"layers": "blocks.*"}, r"`layers`: "),
        ({"layers": 3}, r"`layers`: "),
        ({"loss": "mse"}, r"`loss`: expected a callable \(outputs, targets\), got str"),
        ({"optimizer": "sgd"}, r"`optimizer`: expected a callable parameters -> optimizer"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)])}, r"`optimizer`: expected a callable"),
        ({"held_out": 0}, r"`held_out`: "),
        ({"held_out": "test.csv"}, r"`held_out`: "),
        ({"held_out": []}, r"`held_out`: "),
        ({"title": 3}, r"`title`: expected text, got int"),
        ({"checkpoint": "/nowhere/run.nc"}, r"`checkpoint`: there is no folder '/nowhere'"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_before_any_work(settings, sentence):
    model = make_mlp()
    model.register_forward_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises((ValueError, TypeError), match=sentence) as caught:
        resonance.examine(model, make_vectors(), **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "data", "sentence"),
    [
        ("resnet18", make_vectors(), r"`model`: "),
        (nn.Linear, make_vectors(), r"`model`: "),
        (make_mlp(), None, r"`data`: "),
        (make_mlp(), [], r"`data`: "),
        (make_mlp(), make_vectors()[0], r"`data`: "),
        (make_mlp(), (torch.ones(3, 4), torch.ones(4).long()), r"`data`: "),
        (make_mlp(), (torch.ones(3, 4), torch.rand(3)), r"`data`: .*give one, such as loss="),
    ],
)
def test_a_model_that_is_none_and_data_that_are_none(model, data, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence) as caught:
        resonance.examine(model, data)
    assert "\n" not in str(caught.value)


def test_a_strength_for_layers_that_are_not_there_is_refused():
    with pytest.raises(ValueError, match=r"^`alpha`"):
        resonance.examine(make_mlp(), make_vectors(), alpha={"nowhere": 1.0})


def test_an_optimizer_that_is_none_is_told_with_its_part():
    tree = resonance.examine(
        make_mlp(), make_vectors(), parts="response", budget=1, optimizer=lambda _: None
    )
    assert tree["status"].values == ["refused"]
    assert "`optimizer`: expected a callable that returns an optimizer" in tree["reason"].item()
