"""Small models with the inputs and targets that users have: text, pixels, several inputs, graphs.

Each function gives a model in float64 and a batch for it.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

VOCABULARY = 13
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 16,
}


def text(n=6, length=5, seed=0) -> dict[str, Tensor]:
    """Tokens, the last two of every other text being padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCABULARY, (n, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[::2, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def bert_classifier():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**_SIZES, num_labels=3))
    return model.double().eval(), text() | {"labels": torch.tensor([0, 1, 2, 0, 1, 1])}


def bert_tagger():
    from transformers import BertConfig, BertForTokenClassification

    torch.manual_seed(0)
    model = BertForTokenClassification(BertConfig(**_SIZES, num_labels=3))
    batch = text()
    labels = batch["input_ids"] % 3
    return model.double().eval(), batch | {
        "labels": labels.masked_fill(batch["attention_mask"] == 0, -100)
    }


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=2, n_positions=16, n_inner=8
    )
    ids = text()["input_ids"]
    return GPT2LMHeadModel(config).double().eval(), {"input_ids": ids, "labels": ids}


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=8,
        d_kv=4,
        d_ff=8,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config).double().eval(), text() | {
        "labels": text(length=4, seed=1)["input_ids"]
    }


class Segmenter(nn.Module):
    """A mapping with `out`, as torchvision's segmentation models give, and something else."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.head = nn.Conv2d(4, 3, 1)

    def forward(self, x):
        hidden = self.stem(x).tanh()
        return OrderedDict(out=self.head(hidden), hidden=hidden)


def segmenter():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 2, 5, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (4, 5, 6), generator=generator)
    y[0, :2] = -100
    y[1, :, 4:] = -100
    return Segmenter().double(), (x, y)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(40, 6)
        self.right = nn.Linear(3, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, left, right):
        return self.head((self.left(left) + self.right(right)).tanh())


def two_inputs():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    left, right = (
        torch.randn(9, width, generator=generator, dtype=torch.float64) for width in (40, 3)
    )
    return TwoInputs().double(), ((left, right), torch.arange(9) % 3)


class Denoiser(nn.Module):
    """A small UNet that is told the time."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.time = nn.Linear(1, 4)
        self.up = nn.ConvTranspose2d(4, 1, 2, stride=2)

    def forward(self, x, t):
        hidden = self.down(x) + self.time(t[:, None])[:, :, None, None]
        return self.up(hidden.tanh()) + x


def denoiser():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 1, 6, 6, generator=generator, dtype=torch.float64)
    noise = torch.randn(5, 1, 6, 6, generator=generator, dtype=torch.float64)
    return Denoiser().double(), ((x, torch.linspace(0, 1, 5).double()), noise)


class GraphNetwork(nn.Module):
    """Samples are the nodes of one graph, whose edges the model knows."""

    def __init__(self, n_nodes):
        super().__init__()
        ring = torch.eye(n_nodes) + torch.eye(n_nodes).roll(1, 0)
        self.register_buffer("edges", ring / 2)
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 3)

    def forward(self, x):
        hidden = self.edges @ self.first(x)
        return self.edges @ self.second(hidden.tanh())


def graph():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    return GraphNetwork(20).double(), (x, torch.arange(20) % 3)
