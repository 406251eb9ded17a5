"""A text, cut into windows of tokens for a causal language model."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from resonance_toolkit import predicts_next_token
from resonance_toolkit._front.command.inputs.libraries import LoadedModel
from resonance_toolkit._front.command.inputs.source import Prepared, Source
from resonance_toolkit._front.command.mistake import Mistake, first_line
from resonance_toolkit._front.command.settings import Preparation

_N_BYTES = 256

# As many windows as training for some hundred steps can use.
_MOST_WINDOWS = 20_000


class TextSource(Source):
    """A text in UTF-8, whose tokens are the model's."""

    is_text = True

    def __init__(self, path: Path, window: int) -> None:
        try:
            self.text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise Mistake(f"--data: {path} is not a text in UTF-8: {error}") from error
        self.path = path
        self.window = window

    def prepare(self, loaded: LoadedModel, options: Preparation) -> Prepared:
        """Give windows of tokens: a mapping with `labels` for transformers', else pairs."""
        model = loaded.module
        self._check_reads_on(model)
        vocabulary_size = _vocabulary_size(model)
        tokens, kind = self._encode_text(loaded.tokenizer, vocabulary_size)

        largest = int(tokens.max()) if len(tokens) else 0
        if largest >= vocabulary_size:
            raise Mistake(
                f"--data: {self.path} has token {largest} ({kind}), and the model's vocabulary "
                f"ends at {vocabulary_size - 1}"
            )

        window = min(self.window, _longest_input(model))
        if len(tokens) < 2 * window + 1:
            raise Mistake(
                f"--data: {self.path} has {len(tokens)} {kind}; expected at least "
                f"{2 * window + 1}, two windows of {window} (--window) and a token after them"
            )

        # Neighbours share a token: the last target of one is the first input of the next.
        rows = tokens.unfold(0, window + 1, window)[:_MOST_WINDOWS]
        words = f"{len(rows)} windows of {window} {kind}"
        if hasattr(model, "config"):
            inputs = rows[:, :-1].contiguous()
            return Prepared({"input_ids": inputs, "labels": inputs.clone()}, words)
        return Prepared((rows[:, :-1].contiguous(), rows[:, 1:].contiguous()), words)

    def _check_reads_on(self, model: nn.Module) -> None:
        # Bert and its like see the token that they would be asked for.
        if hasattr(model, "config") and not predicts_next_token(model):
            raise Mistake(
                f"--data: a text is for causal language models; {type(model).__name__} is not one: "
                "call resonance.examine from Python with batches of its own"
            )

    def _encode_text(
        self, tokenizer: str | Path | None, vocabulary_size: int
    ) -> tuple[Tensor, str]:
        if tokenizer is not None:
            encoder = _find_tokenizer(tokenizer)
            if encoder is not None:
                # The length of the whole text is no mistake: it is cut into windows here.
                numbers = encoder(self.text, add_special_tokens=False, verbose=False)["input_ids"]
                return torch.tensor(numbers, dtype=torch.long), "tokens"

        characters = sorted(set(self.text))
        if len(characters) == vocabulary_size or vocabulary_size < _N_BYTES:
            if len(characters) > vocabulary_size:
                raise Mistake(
                    f"--data: {self.path} has {len(characters)} different characters, the model's "
                    f"vocabulary {vocabulary_size}, and there is no tokenizer; give the text that "
                    "the model was made for"
                )
            number_of = {character: number for number, character in enumerate(characters)}
            return torch.tensor([number_of[character] for character in self.text]), "characters"
        return torch.tensor(list(self.text.encode())), "bytes"


def _find_tokenizer(place: str | Path) -> Any:
    """Load the tokenizer that lies beside a model; None if there is none."""
    from transformers import AutoTokenizer

    folder = Path(place)
    if folder.is_dir() and not any(folder.glob("*token*")) and not any(folder.glob("vocab*")):
        return None
    try:
        return AutoTokenizer.from_pretrained(place, local_files_only=True)
    except Exception as error:
        raise Mistake(
            f"--data: the tokenizer of {place} cannot be loaded: {first_line(error)}"
        ) from error


def _vocabulary_size(model: nn.Module) -> int:
    get_embeddings = getattr(model, "get_input_embeddings", None)
    if get_embeddings is not None:
        return int(get_embeddings().num_embeddings)

    # Of an embedding of tokens and one of positions, the first to be defined is that of tokens.
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    if not sizes:
        raise Mistake(
            f"--data: {type(model).__name__} has no embedding, so it reads no text; give data that "
            "it reads"
        )
    return sizes[0]


def _longest_input(model: nn.Module) -> int:
    config = getattr(model, "config", None)
    for name in ("max_position_embeddings", "n_positions", "n_ctx"):
        if isinstance(length := getattr(config, name, None), int) and length > 0:
            return length

    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    return sizes[1] if config is None and len(sizes) > 1 else 1 << 30
