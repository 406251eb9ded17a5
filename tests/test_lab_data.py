import numpy as np
import pytest
import torch

from lab.data import digits, load_npz


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
