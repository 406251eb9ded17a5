"""What a recipe makes: images, model, rate; and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lab.backbones import asymmetric_paper as backbones
from lab.training.recipe import Recipe
from lab.training.train import train

TINY = Recipe(per_class=6, test_per_class=5, epochs=3, batch=16, n=3, trace_every=2)


@pytest.mark.parametrize("backbone", list(backbones.LAYERS))
def test_a_zero_head_is_the_last_layer(backbone):
    """So that every class is as likely as any other."""
    recipe = Recipe(backbone=backbone, image=32, per_class=1, test_per_class=1, zero_head=True)
    images = recipe.images()
    torch.manual_seed(0)
    plain = replace(recipe, zero_head=False).model(images)
    torch.manual_seed(0)
    model = recipe.model(images)
    with torch.no_grad():
        assert not model.eval()(images.x_test[:2]).any()

    zeroed = {
        name
        for name, parameter in model.named_parameters()
        if not torch.equal(parameter, plain.get_parameter(name))
    }
    heads = {name.rpartition(".")[0] for name in zeroed}
    assert len(heads) == 1  # and nothing else is touched
    assert model.get_submodule(*heads).out_features == 10


def test_steps_divide_the_rate_by_ten_at_each_milestone():
    recipe = Recipe(lr=0.2, schedule="step", milestones=(30, 60, 80), epochs=90)
    rates = [recipe.rate(epoch) for epoch in (0, 29.99, 30, 59.99, 60, 79.99, 80, 90)]
    np.testing.assert_allclose(rates, [0.2, 0.2, 0.02, 0.02, 2e-3, 2e-3, 2e-4, 2e-4], rtol=1e-12)
    run = train(replace(TINY, lr=1e-2, schedule="step", milestones=(1, 2)))
    np.testing.assert_allclose(run["learning_rate"], [1e-2, 1e-3, 1e-4], rtol=1e-12)


def test_bad_recipes():
    with pytest.raises(ValueError, match="`backbone`: expected one of mlp, cnn"):
        Recipe(backbone="perceptron")
    with pytest.raises(ValueError, match="`schedule`: expected one of"):
        Recipe(schedule="wavy")
    with pytest.raises(ValueError, match="expected at least 1, 1 and 0"):
        Recipe(epochs=0)
