"""Training with exits in the laboratory: the objective, the seeds, and the cache."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import probes
from lab.backbones.character_model import CharacterModel
from lab.data import text
from lab.training.train_text import TextRecipe, Variant, train_text_model

CORPUS = text.encode([text.documentation()[i : i + 2200] for i in (0, 3000, 6000)], name="short")
BRIEF = TextRecipe(seed=1, epochs=1, batch=8)


def same(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize(
    ("variant", "weights"),
    [
        (Variant("standard"), (0, 0, 1)),
        (Variant("deep_supervision"), (1 / 3, 1 / 3, 1 / 3)),
        (Variant("auxiliary"), (0.5, 0, 0.5)),
        (Variant("asymmetric", 0.3), (0.3, 0, 0.7)),
        (Variant("asymmetric_l2", 0.7), (0.7, 1, 0.3)),
    ],
)
def test_one_step_follows_the_weighted_sum(variant, weights):
    recipe = TextRecipe(seed=1, epochs=1, batch=10_000)  # one batch: one step
    trained = train_text_model(CORPUS, variant, recipe)

    torch.manual_seed(1)
    model = CharacterModel(len(CORPUS.vocabulary))
    x, y = text.windows(CORPUS.train)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    hidden, total = model.embed(x[order], torch.arange(64)), 0
    for layer, weight in zip(model.layers, weights, strict=True):
        hidden = layer(hidden)
        total += weight * F.cross_entropy(model.head(hidden).mT, y[order])

    total.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    for ours, theirs in zip(trained.parameters(), model.parameters(), strict=True):
        # A first step of Adam is a sign: where the gradient is nearly 0 rounding decides it.
        assert ((ours - theirs).abs() < 1e-5).double().mean() > 0.999


def test_half_is_auxiliary_and_variants_start_alike():
    half, auxiliary = (
        train_text_model(CORPUS, Variant(*v), BRIEF) for v in [("asymmetric", 0.5), ("auxiliary",)]
    )
    assert same(half, auxiliary)
    assert not same(half, train_text_model(CORPUS, Variant("asymmetric", 0.7), BRIEF))

    untrained = TextRecipe(seed=1, epochs=0)
    starts = [
        train_text_model(CORPUS, Variant(preset), untrained) for preset in ("standard", "auxiliary")
    ]
    assert same(*starts)


def test_a_finished_model_is_found_and_another_is_not(tmp_path, monkeypatch):
    variant = Variant("asymmetric", 0.7)
    first = train_text_model(CORPUS, variant, BRIEF, cache=tmp_path)
    monkeypatch.setattr(probes, "attach_exits", lambda *a, **k: pytest.fail("trained again"))
    assert same(first, train_text_model(CORPUS, variant, BRIEF, cache=tmp_path))

    for other in ({"seed": 2}, {"epochs": 2}, {"batch": 4}):
        with pytest.raises(pytest.fail.Exception):
            train_text_model(CORPUS, variant, replace(BRIEF, **other), cache=tmp_path)

    with pytest.raises(pytest.fail.Exception):
        train_text_model(CORPUS, Variant("asymmetric", 0.6), BRIEF, cache=tmp_path)

    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_model_is_made_again(tmp_path):
    first = train_text_model(CORPUS, Variant("standard"), BRIEF, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.warns(UserWarning, match=f"{path.name} in the cache is damaged, run again"):
        assert same(first, train_text_model(CORPUS, Variant("standard"), BRIEF, cache=tmp_path))
    assert same(first, train_text_model(CORPUS, Variant("standard"), BRIEF, cache=tmp_path))


def test_variants_say_their_names():
    assert str(Variant("asymmetric", 0.7)) == "asymmetric 0.7"
    assert str(Variant("standard", depth=1)) == "standard, 1 layer"
