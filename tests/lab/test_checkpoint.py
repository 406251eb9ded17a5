"""Runs that are interrupted go on, and files that are damaged are as good as none."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import xarray as xr

import lab.training.train as module
from lab.training.recipe import Recipe
from lab.training.train import train

TINY = Recipe(per_class=6, test_per_class=5, epochs=3, batch=16, n=3, trace_every=2)


@pytest.mark.parametrize("backbone", ["mlp", "cnn"])  # the second has dropout
def test_an_interrupted_run_goes_on(tmp_path, monkeypatch, backbone):
    recipe = replace(TINY, backbone=backbone, per_class=2)
    whole, path = train(recipe), tmp_path / "run.pt"
    evaluated = []

    def stop_at_the_third(run):
        evaluated.append(1)
        if len(evaluated) == 3:
            raise KeyboardInterrupt
        return evaluate(run)

    evaluate = module.evaluate
    monkeypatch.setattr(module, "evaluate", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, checkpoint=path, every=1)

    monkeypatch.undo()
    resumed = train(recipe, checkpoint=path, every=1)
    xr.testing.assert_allclose(whole, resumed, rtol=1e-12)
    assert len(evaluated) == 3


@pytest.mark.parametrize("n", [0, 3])  # one loss, and two
def test_a_run_may_be_interrupted_again_before_a_gradient_is_measured(tmp_path, monkeypatch, n):
    recipe, path = replace(TINY, n=n, trace_every=100), tmp_path / "run.pt"
    whole = train(recipe)
    train_epoch = module.train_epoch
    for last in (1, 2):

        def stop(run, epoch, last=last):
            if epoch == last:
                raise KeyboardInterrupt
            return train_epoch(run, epoch)

        monkeypatch.setattr(module, "train_epoch", stop)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, checkpoint=path, every=1)

        monkeypatch.undo()

    xr.testing.assert_identical(train(recipe, checkpoint=path, every=1), whole)


def _cut(path):
    path.write_bytes(path.read_bytes()[:5000])


def _changed_in_one_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255  # of some weight
    path.write_bytes(content)


def _without_probe(path):
    torch.save({k: v for k, v in torch.load(path).items() if k != "probe"}, path)


def _something_else(path):
    torch.save([1, 2], path)


@pytest.mark.parametrize("damage", [_cut, _changed_in_one_byte, _without_probe, _something_else])
def test_a_damaged_checkpoint_is_as_good_as_none(tmp_path, damage):
    recipe, path = replace(TINY, per_class=2), tmp_path / "run.pt"
    whole = train(recipe, checkpoint=path, every=2)
    damage(path)
    with pytest.warns(UserWarning, match="run.pt in the cache is damaged, run again"):
        again = train(recipe, checkpoint=path, every=2)
    xr.testing.assert_identical(whole, again)


def test_a_checkpoint_of_another_recipe_is_refused_and_kept(tmp_path):
    path = tmp_path / "run.pt"
    train(TINY, checkpoint=path, every=2)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"run.pt is of another recipe: `lr` is 0.001 there, 0.1 "):
        train(replace(TINY, lr=0.1), checkpoint=path)
    assert path.read_bytes() == before
    train(replace(TINY, milestones=[]), checkpoint=path)  # the same, as read from a file


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path, monkeypatch):
    path, write, before = tmp_path / "run.pt", torch.save, []

    def fails_the_second_time(state, target):
        if before:
            target.write(b"half of it")
            raise OSError("no space left")
        write(state, target)
        target.flush()
        before.append(Path(target.name).read_bytes())

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fails_the_second_time)
        with pytest.raises(OSError, match="no space left"):
            train(TINY, checkpoint=path, every=1)

    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before[0]
    xr.testing.assert_allclose(train(TINY, checkpoint=path), train(TINY), rtol=1e-12)
