"""What the language models of transformers leave to convention.

How labels are shifted, what a decoder is fed, and which encoders put a class token first.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from resonance_toolkit._base.find_layers import unwrap

# As in torch and transformers: a target that does not count.
IGNORED_TARGET = -100

# Classes whose own loss compares position t with label t + 1.
_CAUSAL_ENDINGS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")

# Encoders of transformers, by `model_type`, whose tokenizers put a class token first: [CLS], or <s>
# with that meaning. It is an ordinary token of the vocabulary, so that no parameter tells.
_WITH_CLASS_TOKEN = frozenset(
    {
        *("albert", "bert", "big_bird", "bros", "camembert", "canine", "convbert", "data2vec-text"),
        *("deberta", "deberta-v2", "distilbert", "electra", "ernie", "esm", "flaubert", "funnel"),
        *("ibert", "layoutlm", "layoutlmv2", "layoutlmv3", "lilt", "longformer", "luke"),
        *("markuplm", "megatron-bert", "mobilebert", "modernbert", "mpnet", "mra", "nomic_bert"),
        *("nystromformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer"),
        *("splinter", "squeezebert", "tapas", "visual_bert", "xlm-roberta", "xlm-roberta-xl"),
        *("xmod", "yoso"),
    }
)


def reads_class_token(model: nn.Module) -> bool:
    """Tell whether a model is a text encoder whose first token is a class token, as Bert's [CLS].

    Also if it is inside another module, as in a classifier of one's own. Not if it is a decoder.
    """
    configs = (getattr(module, "config", None) for module in unwrap(model).modules())
    config = next((config for config in configs if hasattr(config, "model_type")), None)
    if config is None or getattr(config, "is_decoder", False):
        return False
    return config.model_type in _WITH_CLASS_TOKEN


def predicts_next_token(model: nn.Module) -> bool:
    """Tell whether a model's own loss compares each position with the label after it.

    So do the causal language models of transformers. Encoder-decoders do not: their decoder's
    inputs are shifted instead.
    """
    inner_model = unwrap(model)
    config = getattr(inner_model, "config", None)
    if config is None or getattr(config, "is_encoder_decoder", False):
        return False
    return type(inner_model).__name__.endswith(_CAUSAL_ENDINGS)


def find_token_ids(inputs: Any) -> Tensor | None:
    """Find the tokens among a model's inputs: `input_ids`, or else the first argument.

    Returns:
        Whole numbers `(sample, position)`; None if there are none.
    """
    candidate = inputs[0] if isinstance(inputs, tuple) and inputs else inputs
    if isinstance(inputs, Mapping):
        candidate = inputs.get("input_ids")
    if not isinstance(candidate, Tensor) or candidate.dim() != 2:
        return None
    return None if candidate.is_floating_point() or candidate.is_complex() else candidate


def are_inputs_themselves(inputs: Any, targets: Tensor) -> bool:
    """Tell whether targets are the tokens that a model reads, but for those that do not count."""
    ids = find_token_ids(inputs)
    if ids is None or ids.shape != targets.shape or targets.is_floating_point():
        return False
    counts = targets != IGNORED_TARGET
    return bool(counts.any()) and bool((targets == ids.to(targets.device))[counts].all())


def describe_targets(meaning: str, inputs: Any, targets: Any) -> str:
    """Say what targets mean, and if each is the token after its position, for attributes.

    Examples:
        >>> ids = torch.tensor([[5, 6, 7]])
        >>> describe_targets("classes", {"input_ids": ids}, shift_labels(ids))
        'classes: the next token'
    """
    ids = find_token_ids(inputs)
    if ids is None or not isinstance(targets, Tensor) or targets.shape != ids.shape:
        return meaning
    is_next = are_inputs_themselves(shift_labels(ids), targets)
    return f"{meaning}: the next token" if is_next else meaning


def shift_labels(labels: Tensor) -> Tensor:
    """Give each position the label of the next one; the last position has none.

    Examples:
        >>> shift_labels(torch.tensor([[5, 6, 7]]))
        tensor([[   6,    7, -100]])
    """
    last = torch.full_like(labels[:, :1], IGNORED_TARGET)
    return torch.cat([labels[:, 1:], last], dim=1)


def with_decoder_inputs(model: nn.Module, inputs: Any, labels: Tensor) -> Any:
    """Add what an encoder-decoder feeds its decoder, which it makes from its labels itself."""
    inner_model = unwrap(model)
    if not isinstance(inputs, Mapping):
        return inputs
    if inputs.get("decoder_input_ids") is not None:
        return inputs
    if inputs.get("decoder_inputs_embeds") is not None:
        return inputs

    prepare = getattr(inner_model, "prepare_decoder_input_ids_from_labels", None)
    if prepare is not None:
        return {**inputs, "decoder_input_ids": prepare(labels)}

    # Models that hear (Whisper) shift labels inside their forward pass only.
    if _writes_tokens(inner_model) and labels.dim() == 2:
        return {**inputs, "decoder_input_ids": _shift_right(labels, inner_model)}
    return inputs


def _writes_tokens(model: nn.Module) -> bool:
    config = getattr(model, "config", None)
    if not getattr(config, "is_encoder_decoder", False):
        return False
    if getattr(config, "decoder_start_token_id", None) is None:
        return False
    return type(model).__name__.endswith("ForConditionalGeneration")


def _shift_right(labels: Tensor, model: nn.Module) -> Tensor:
    config: Any = model.config
    start = torch.full_like(labels[:, :1], config.decoder_start_token_id)
    shifted = torch.cat([start, labels[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == IGNORED_TARGET, config.pad_token_id)
