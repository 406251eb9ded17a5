from dataclasses import replace

import numpy as np
import pytest
import torch

from lab.data.batches import batches
from lab.data.images import Images, digits, load, load_npz
from lab.data.samples import corrupt, hold_out, subset
from lab.training.recipe import Recipe
from lab.training.train import train


def test_digits_are_stratified_and_standardised():
    images = digits()
    assert (len(images.x_train), len(images.x_test)) == (1437, 360)
    assert (images.classes, images.image, images.channels) == (10, 8, 1)

    counts = torch.bincount(images.y_test)
    assert counts.min() >= 34
    assert counts.max() <= 38
    assert images.x_train.mean().abs() < 1e-5
    assert (images.x_train.std() - 1).abs() < 1e-3


@pytest.mark.parametrize("channels", [None, 3])
def test_archives_are_channels_last_bytes(tmp_path, channels):
    shape = (6, 4, 4) if channels is None else (6, 4, 4, channels)
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    y = np.arange(6, dtype=np.uint8) % 3
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    images = load_npz(tmp_path / "a.npz")
    raw = x.reshape(6, 4, 4, -1).transpose(0, 3, 1, 2) / 255
    mean, std = (f(raw, axis=(0, 2, 3), keepdims=True) for f in (np.mean, np.std))
    np.testing.assert_allclose(images.x_train, (raw - mean) / std, atol=1e-5)
    assert images.y_test.tolist() == [0, 1]
    assert images.classes == 3


def test_bad_archives_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=np.zeros(3))
    with pytest.raises(ValueError, match="lacks x_test, y_test, y_train"):
        load_npz(tmp_path / "a.npz")
    flat, y = np.zeros((2, 5)), np.zeros(2)
    np.savez(tmp_path / "b.npz", x_train=flat, y_train=y, x_test=flat, y_test=y)
    with pytest.raises(ValueError, match=r"x_train: expected 3 or 4 axes, got shape \(2, 5\)"):
        load_npz(tmp_path / "b.npz")


def test_sets_that_are_not_there_say_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("RESONANCE_DATA", str(tmp_path))
    for name, kind in (("cifar10", "CIFAR10"), ("cifar100", "CIFAR100")):
        with pytest.raises(FileNotFoundError, match=rf"datasets\.{kind}\(.*download=True"):
            load(name)

    with pytest.raises(FileNotFoundError, match=r"datasets\.FashionMNIST"):
        load("fashion-mnist")

    with pytest.raises(FileNotFoundError, match=r"no file nowhere\.npz; expected an \.npz"):
        load("nowhere.npz")

    with pytest.raises(FileNotFoundError, match=r"no folder .*train; .*image-net\.org"):
        load(tmp_path)


def test_torchvision_sets_are_read(tmp_path, monkeypatch):
    """CIFAR-10 as torchvision keeps it: pickled rows of planes, of which we write a few."""
    import pickle

    import torchvision

    rng = np.random.default_rng(0)
    kind = torchvision.datasets.CIFAR10
    folder = tmp_path / kind.base_folder
    folder.mkdir()
    rows = rng.integers(0, 256, (2, 3072), dtype=np.uint8)
    for name, _ in [*kind.train_list, *kind.test_list]:
        (folder / name).write_bytes(pickle.dumps({"data": rows, "labels": [3, 9]}))

    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    monkeypatch.setenv("RESONANCE_DATA", str(tmp_path))
    monkeypatch.setattr(kind, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    load.cache_clear()
    images = load("cifar10")
    assert (len(images.x_train), len(images.x_test), images.classes) == (10, 2, 10)

    raw = rows.reshape(2, 3, 32, 32) / 255
    mean, std = (f(raw, axis=(0, 2, 3), keepdims=True) for f in (np.mean, np.std))
    np.testing.assert_allclose(images.x_test, (raw - mean) / std, atol=1e-4)


def test_folders_are_read_as_they_are_needed(tmp_path):
    from PIL import Image

    for part, count in (("train", 3), ("val", 1)):
        for label, colour in (("cat", 0), ("dog", 255)):
            folder = tmp_path / part / label
            folder.mkdir(parents=True)
            for index in range(count):
                Image.new("RGB", (300, 260), (colour,) * 3).save(folder / f"{index}.png")

    images = load(tmp_path)
    assert (images.classes, images.image, images.channels) == (2, 224, 3)

    few = subset(images, 2, seed=1)
    assert few.y_train.tolist() == [0, 0, 1, 1]

    (x, y), (x_augmented, _) = (
        next(batches(few, "train", [torch.tensor([0, 3])], augment=augment)) for augment in (0, 1)
    )
    assert x.shape == x_augmented.shape == (2, 3, 224, 224)
    assert y.tolist() == [0, 1]

    expected = [(0 - 0.485) / 0.229, (1 - 0.485) / 0.229]
    np.testing.assert_allclose(x[:, 0, 100, 100], expected, rtol=1e-5)

    run = train(Recipe(backbone="resnet18", data=str(tmp_path), image=64, epochs=1, batch=6))
    assert run["diverged"].item() == 0


def test_subsets_have_so_many_of_each_class():
    few = subset(digits(), 7, 3, seed=1)
    assert torch.bincount(few.y_train).tolist() == [7] * 10
    assert torch.bincount(few.y_test).tolist() == [3] * 10

    other = subset(digits(), 7, 3, seed=2)
    assert not torch.equal(few.x_train, other.x_train)
    assert torch.equal(few.x_test, other.x_test)

    with pytest.raises(ValueError, match=r"`per_class`: expected 1 to 139 of the train images"):
        subset(digits(), 200)


@pytest.mark.parametrize("part", ["x_train", "y_train", "x_test", "y_test"])
def test_fingerprints_follow_pixels_and_labels(part):
    images = subset(digits(), 3, 2)
    again = subset(digits(), 3, 2)
    assert images.fingerprint == again.fingerprint
    changed = getattr(images, part).clone()
    changed.view(-1)[-1] += 1  # one pixel, or one label
    assert replace(images, **{part: changed}).fingerprint != images.fingerprint


def test_fingerprints_of_files_follow_names_and_labels_not_the_place():
    names, y = np.array(["here/cat/1.png", "here/dog/2.png"]), torch.tensor([0, 1])
    images = Images(names, y, names, y, 224)
    moved = np.array(["away/cat/1.png", "away/dog/2.png"])
    assert replace(images, x_train=moved).fingerprint == images.fingerprint
    other = np.array(["here/cat/1.png", "here/dog/3.png"])
    assert replace(images, x_train=other).fingerprint != images.fingerprint
    assert replace(images, y_test=1 - y).fingerprint != images.fingerprint


def test_a_held_out_tenth_is_stratified_and_disjoint():
    images = digits()
    searched = hold_out(images, 0.1, seed=3)
    assert len(searched.y_train) + len(searched.y_test) == len(images.y_train)

    shares = torch.bincount(searched.y_test) / torch.bincount(images.y_train)
    assert ((shares - 0.1).abs() < 0.01).all()

    whole = torch.cat([searched.x_train, searched.x_test]).flatten(1)
    assert torch.equal(whole.sum(0), images.x_train.flatten(1).sum(0)) or torch.allclose(
        whole.sum(0), images.x_train.flatten(1).sum(0), atol=1e-3
    )


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
def test_label_noise_flips_to_other_classes_alike(share):
    y = torch.arange(40_000) % 10
    clean = Images(torch.zeros(40_000, 1, 1, 1), y, torch.zeros(1, 1, 1, 1), y[:1])
    noisy = corrupt(clean, share, seed=5).y_train
    wrong = noisy != y
    assert abs(wrong.double().mean().item() - share) < 0.01
    assert torch.equal(noisy, corrupt(clean, share, seed=5).y_train)

    if share:
        shifts = torch.bincount((noisy - y)[wrong] % 10, minlength=10)[1:] / wrong.sum()
        assert ((shifts - 1 / 9).abs() < 0.015).all()

    with pytest.raises(ValueError, match="`label_noise`: expected a probability"):
        corrupt(clean, 1.5)


def test_crops_and_flips_only_move_pixels():
    """Each result must be found among the 25 shifts, twice for the flip, of its own image."""
    x, y = torch.rand(20, 2, 24, 16), torch.arange(20)
    images, rows = Images(x, y, x, y), [torch.arange(20)]
    ((moved, labels),) = batches(images, "train", rows, augment=True, seed=1)
    assert moved.shape == x.shape
    assert torch.equal(labels, y)

    black = x.amin((0, 2, 3))  # not 0, which is the mean colour of normalised images
    flips, shifts = 0, set()
    for image, result in zip(x, moved, strict=True):
        padded = black[:, None, None].repeat(1, 28, 20)
        padded[:, 2:26, 2:18] = image
        windows = {
            (i, j, flip): padded[:, i : i + 24, j : j + 16]
            for i in range(5)
            for j in range(5)
            for flip in (False, True)
        }
        matches = [k for k, w in windows.items() if torch.equal(w.flip(-1) if k[2] else w, result)]
        assert len(matches) == 1

        flips += matches[0][2]
        shifts.add(matches[0][:2])

    assert 3 < flips < 17
    assert len(shifts) > 8


def test_many_images_are_standardised_in_double_precision(tmp_path):
    """A float32 sum over one channel stops growing at 2**24: these are twice as many numbers."""
    rng = np.random.default_rng(0)
    shape = (40, 1024, 1024, 1)
    x = np.full(shape, 255, dtype=np.uint8)
    x[0] = rng.integers(0, 256, shape[1:])
    x[1::2] = 51
    labels = np.arange(40) % 2
    path = tmp_path / "many.npz"
    np.savez(path, x_train=x, y_train=labels, x_test=x[:2], y_test=labels[:2])

    images = load_npz(path)

    mean, std = x.mean() / 255, x.std() / 255  # numpy sums whole numbers in float64
    np.testing.assert_allclose(images.x_test, (x[:2, None, ..., 0] / 255 - mean) / std, atol=1e-4)
