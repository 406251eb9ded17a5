"""Random small models, data and options, all decided by one seed."""

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CLASSES = 3
FEATURES = 4


class Convolutions(nn.Module):
    """Batch norm and dropout; images."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, FEATURES, 3, padding=1)
        self.norm = nn.BatchNorm2d(FEATURES)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.stem(x)).relu()).mean((2, 3)))


class Transformer(nn.Module):
    """Blocks of attention; vectors of tokens, and a padding mask if there is one."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(FEATURES, 2, 8, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = block(x, src_key_padding_mask=None if mask is None else mask == 0)
        return self.head(x.mean(1))


class Tagger(Transformer):
    """An output for each token."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Recurrent(nn.Module):
    """A GRU, whose output is a tuple."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.GRU(FEATURES, FEATURES, batch_first=True)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x)[0][:, -1])


class Wrapped(nn.Module):
    """The outputs of an MLP in a tuple or a mapping."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.blocks = perceptron()

    def forward(self, x: Tensor) -> Any:
        logits = self.blocks(x)
        return (logits, x) if self.kind == "tuple" else {"features": x, "logits": logits}


def perceptron() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, CLASSES)
    )


MODELS = {
    "mlp": perceptron,
    "conv": Convolutions,
    "transformer": Transformer,
    "tagger": Tagger,
    "rnn": Recurrent,
    "tuple": lambda: Wrapped("tuple"),
    "dict": lambda: Wrapped("dict"),
}
SHAPES = {"conv": (3, 6, 5), "transformer": (4, FEATURES), "tagger": (4, FEATURES)}
SHAPES |= {"rnn": (4, FEATURES)}


@dataclass
class Case:
    """One model, its data, and what it was made of."""

    model: nn.Module
    data: Any
    x: Tensor
    y: Tensor
    words: dict[str, Any]
    choose: random.Random

    @property
    def is_plain(self) -> bool:
        """Whether a loss is easily computed by hand."""
        is_class = self.words["targets"] == "classes" and self.words["model"] not in ("tagger",)
        return is_class and self.words["dtype"] != torch.bfloat16


def make_case(seed: int) -> Case:
    """Draw a case."""
    choose = random.Random(seed)
    words = {
        "model": choose.choice(list(MODELS)),
        "dtype": choose.choice([torch.float64, torch.float32, torch.float32, torch.bfloat16]),
        "n": choose.choice([1, 2, 5, 8]),
        "layout": choose.choice(["plain", "plain", "channels_last", "strided", "expanded"]),
        "targets": choose.choice(
            ["classes"] * 4
            + ["ignored", "all ignored", "int32", "uint8", "labels", "shares", "numbers"]
            + ["too few", "out of range", "none"]
        ),
        "form": choose.choice(["pair", "pair", "mapping", "batches", "numpy", "dataset"]),
        "mask": choose.random() < 0.5,
        "training": choose.random() < 0.7,
        "frozen": choose.random() < 0.3,
        "nan": choose.random() < 0.03,
    }
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MODELS[words["model"]]().to(words["dtype"])

    model.train(words["training"])
    if words["frozen"]:
        next(model.parameters()).requires_grad_(False)
    for parameter in model.parameters():
        if parameter.requires_grad and choose.random() < 0.5:
            parameter.grad = torch.ones_like(parameter)

    x = _make_inputs(words, generator)
    y = _make_targets(words, generator)
    return Case(model, _arrange(words, x, y), x, y, words, choose)


def _make_inputs(words: dict[str, Any], generator: torch.Generator) -> Tensor:
    shape = (words["n"], *SHAPES.get(words["model"], (FEATURES,)))
    x = torch.randn(shape, generator=generator).to(words["dtype"])
    if words["nan"]:
        x.view(-1)[0] = float("nan")

    match words["layout"]:
        case "channels_last" if x.dim() == 4:
            return x.contiguous(memory_format=torch.channels_last)
        case "strided":
            return torch.stack([x, x], -1)[..., 0]
        case "expanded":
            return x[:1].expand(shape)
    return x


def _make_targets(words: dict[str, Any], generator: torch.Generator) -> Tensor:
    shape = (words["n"], 4) if words["model"] == "tagger" else (words["n"],)
    classes = torch.randint(0, CLASSES, shape, generator=generator)
    match words["targets"]:
        case "ignored":
            return classes.masked_fill(classes == 0, -100)
        case "all ignored":
            return torch.full_like(classes, -100)
        case "int32":
            return classes.int()
        case "uint8":
            return classes.byte()
        case "labels":
            return nn.functional.one_hot(classes, CLASSES).to(words["dtype"])
        case "shares":
            return torch.rand(*shape, CLASSES, generator=generator).softmax(-1).to(words["dtype"])
        case "numbers":
            return torch.randn(*shape, CLASSES, generator=generator).to(words["dtype"])
        case "too few":
            return classes[:-1]
        case "out of range":
            return classes + CLASSES
    return classes


def _arrange(words: dict[str, Any], x: Tensor, y: Tensor) -> Any:
    if words["targets"] == "none":
        return x
    has_mask = words["mask"] and words["model"] in ("transformer", "tagger")
    inputs: dict[str, Tensor] = {"x": x}
    if words["model"] in ("mlp",):
        inputs = {"input": x}
    if has_mask:
        inputs["mask"] = torch.ones(x.shape[:2], dtype=torch.long)

    match words["form"]:
        case "mapping":
            return inputs | {"labels": y}
        case "batches":
            half = max(1, len(x) // 2)
            pairs = [(x[:half], y[:half]), (x[half:], y[half:])]
            return [pair for pair in pairs if len(pair[0])]
        case "numpy" if x.dtype != torch.bfloat16 and y.dtype != torch.bfloat16:
            return x.numpy(), y.numpy()
        case "dataset":
            length = min(len(x), len(y))
            return torch.utils.data.TensorDataset(x[:length], y[:length])
    return x, y
