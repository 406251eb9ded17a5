"""Models and data in the forms that users have them."""

import numpy as np
from PIL import Image

OWN_MODEL = '''
from torch import nn

class Net(nn.Module):
    """Two layers."""
    def __init__(self, n_classes=3):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, n_classes))

    def forward(self, x):
        return self.layers(x)

class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.convolution(x).relu().mean((2, 3)))

class Characters(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(27, 6)
        self.positions = nn.Embedding(12, 6)
        self.head = nn.Linear(6, 27)

    def forward(self, ids):
        return self.head(self.tokens(ids))

def build():
    return Net()

def regression():
    return Net(1)

def needs_width(width):
    return nn.Linear(4, width)

def fails():
    raise RuntimeError("no weights here")

def number():
    return 7

ready = Net(2)
'''


def write_model(folder):
    path = folder / "own_model.py"
    path.write_text(OWN_MODEL, encoding="utf-8")
    return path


def write_arrays(path, x=None, y=None, *, n=12, **others):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(n, 4)) if x is None else x
    y = np.arange(n) % 3 if y is None else y
    np.savez(path, **{"x": x, "y": y, **others})
    return path


def write_images(folder, *, n=4, size=(10, 8)):
    generator = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (folder / name).mkdir(parents=True)
        for number in range(n):
            pixels = generator.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder
