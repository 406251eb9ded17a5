"""Slow decoding without caches, and a small model that is not the laboratory's."""

import torch
from torch import Tensor, nn


class Averager(nn.Module):
    """Each layer adds a mix of the running mean of what came before: one thing to remember."""

    def __init__(self, vocabulary: int = 7, width: int = 5, depth: int = 3):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(64, width)
        self.layers = nn.ModuleList(Averaging(width) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.table(ids) + self.places(positions)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids, torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Averaging(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.mix, self.turn = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, self.mix(x))

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor]:
        return (self.mix(x),)

    def attend(self, x: Tensor, positions: Tensor, mixed: Tensor) -> Tensor:
        mean = mixed.cumsum(1) / torch.arange(1, mixed.shape[1] + 1)[:, None]
        return x + torch.tanh(self.turn(x) + mean[:, -x.shape[1] :])


def decoding(classifier: nn.Module, images: Tensor) -> nn.Module:
    """A language model whose four tokens are pictures that a classifier sees."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Averager(4, 4, 2)
    model.classifier = classifier
    model.embed = lambda ids, positions: classifier(images[ids[0]])[None]
    return model


def layer_states(model: nn.Module, ids: Tensor) -> list[Tensor]:
    """Outputs of every layer in one plain pass, `(layer, sample, position, width)`."""
    states = []
    hooks = [m.register_forward_hook(lambda *a: states.append(a[2])) for m in model.layers]
    model(ids)
    for hook in hooks:
        hook.remove()
    return states


def full_decoding(model, ids, tokens, *, depth=None, exits=(), threshold=2.0):
    """Greedy: a plain pass over the whole text for each token, read at the first sure exit."""
    rows = []
    for _ in range(tokens):
        states = layer_states(model, ids)[:depth]
        for passed, state in enumerate(states, 1):
            p = model.head(state)[0, -1].softmax(0)
            if passed == len(states) or (passed in exits and p.max() >= threshold):
                break
        token = int(p.argmax())
        rows.append((token, passed, float(p.max()), -float(p[token].log())))
        ids = torch.cat([ids, torch.tensor([[token]])], 1)
    return rows


def propagated_decoding(model, ids, tokens, *, exits, threshold):
    """Greedy, from scratch for each token: every layer's inputs so far are kept as plain lists."""
    depth, rows = len(model.layers), []
    chosen = {}  # position -> layers passed
    for _ in range(tokens):
        end = ids.shape[1]
        inputs = [[] for _ in range(depth)]
        for t in range(end):
            x = model.embed(ids[:, t : t + 1], torch.tensor([t]))
            last = t == end - 1
            for d, layer in enumerate(model.layers):
                inputs[d].append(x)
                so_far = torch.cat(inputs[d], 1)
                if d < chosen.get(t, depth):
                    cache = layer.project(so_far, torch.arange(t + 1))
                    x = layer.attend(x, torch.tensor([t]), *cache)
                    p = model.head(x)[0, -1].softmax(0)
                    if last and d + 1 in exits and p.max() >= threshold:
                        chosen[t] = d + 1
                if last and d + 1 == chosen.get(t, depth):
                    row = (int(p.argmax()), d + 1, float(p.max()), -float(p.max().log()))
        rows.append(row)
        ids = torch.cat([ids, torch.tensor([[row[0]]])], 1)
    return rows
