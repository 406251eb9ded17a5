"""Tiny models of transformers, one per architecture, with batches as their processors make them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor

from coverage_instruments import Case
from coverage_vision import fill_zero_heads

Batch = dict[str, Tensor]

_N_SAMPLES = 3
_N_LABELS = 5
_N_TOKENS = 8
_VOCABULARY = 60

# Names that most configurations share.
_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_TEXT = {"vocab_size": _VOCABULARY, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
_ENCODER = _SIZES | _TEXT | {"max_position_embeddings": 64}
_DECODER = _ENCODER | {"num_key_value_heads": 2}
# Of the family of Bart.
_SEQUENCES = _TEXT | {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
}
_IMAGES = {"image_size": 32, "patch_size": 8}
_SOUND = _SIZES | {
    "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 3, 2),
    "conv_stride": (5, 2, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 16,
    "vocab_size": 20,
    # Masks in time are longer than the sounds here.
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
}


def _classified_text() -> Batch:
    return _tokens() | {"labels": _labels()}


def _tagged_text() -> Batch:
    batch = _tokens()
    tags = torch.randint(_N_LABELS, batch["input_ids"].shape, generator=_generator())
    return batch | {"labels": tags.masked_fill(batch["attention_mask"] == 0, -100)}


def _text() -> Batch:
    batch = _tokens()
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return batch | {"labels": labels}


def _text_with_ends() -> Batch:
    """Each with one end token, where this family reads its class."""
    batch = _tokens()
    batch["input_ids"][:, -4] = 1
    return batch | {"labels": _labels()}


def _classified_unpadded_text() -> Batch:
    return {"input_ids": _tokens()["input_ids"], "labels": _labels()}


def _unpadded_text() -> Batch:
    token_ids = _tokens()["input_ids"]
    return {"input_ids": token_ids, "labels": token_ids}


def _pictures(size: int = 32) -> Batch:
    pixels = torch.randn(_N_SAMPLES, 3, size, size, generator=_generator())
    return {"pixel_values": pixels, "labels": _labels()}


def _larger_pictures() -> Batch:
    return _pictures(64)


def _segmented_pictures() -> Batch:
    maps = torch.randint(_N_LABELS, (_N_SAMPLES, 16, 16), generator=_generator())
    return _pictures(64) | {"labels": maps}


def _videos() -> Batch:
    pixels = torch.randn(_N_SAMPLES, 4, 3, 32, 32, generator=_generator())
    return {"pixel_values": pixels, "labels": _labels()}


def _sounds() -> Batch:
    waves = torch.randn(_N_SAMPLES, 800, generator=_generator())
    return {"input_values": waves, "labels": _labels()}


def _spectrograms() -> Batch:
    values = torch.randn(_N_SAMPLES, 32, 16, generator=_generator())
    return {"input_values": values, "labels": _labels()}


def _heard_text() -> Batch:
    features = torch.randn(_N_SAMPLES, 16, 40, generator=_generator())
    return {"input_features": features, "labels": _unpadded_text()["labels"]}


@dataclass(frozen=True)
class Architecture:
    """A class of transformers, a configuration of a few thousand weights, and its batches."""

    model_class: str
    make_batch: Callable[[], Batch]
    settings: dict[str, Any] = field(default_factory=dict)

    def build(self) -> Case:
        """Build the model with random weights, the same each time."""
        torch.manual_seed(0)
        model_class = getattr(transformers, self.model_class)
        labels = {"num_labels": _N_LABELS} if "Classification" in self.model_class else {}
        if "Segmentation" in self.model_class:
            labels = {"num_labels": _N_LABELS}

        config = model_class.config_class(**self.settings, **labels)
        return Case(fill_zero_heads(model_class(config)), self.make_batch())


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _tokens() -> Batch:
    """Token numbers without the special ones; the second text is three tokens shorter."""
    token_ids = torch.randint(3, _VOCABULARY, (_N_SAMPLES, _N_TOKENS), generator=_generator())
    attention_mask = torch.ones_like(token_ids)
    attention_mask[1, -3:] = 0
    padded_ids = token_ids.masked_fill(attention_mask == 0, 2)
    return {"input_ids": padded_ids, "attention_mask": attention_mask}


def _labels() -> Tensor:
    return torch.arange(_N_SAMPLES) % _N_LABELS


_EXPERTS = _DECODER | {"num_local_experts": 4, "num_experts_per_tok": 2}
_QWEN_EXPERTS = _DECODER | {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
_STATE_SPACE = _TEXT | {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
_STAGES = {"hidden_sizes": [16, 32], "depths": [1, 2]}

ARCHITECTURES: dict[str, Architecture] = {
    # Encoders of text
    "bert": Architecture("BertForSequenceClassification", _classified_text, _ENCODER),
    "bert, masked": Architecture("BertForMaskedLM", _text, _ENCODER),
    "bert, tagging": Architecture("BertForTokenClassification", _tagged_text, _ENCODER),
    "roberta": Architecture("RobertaForSequenceClassification", _classified_text, _ENCODER),
    "distilbert": Architecture(
        "DistilBertForSequenceClassification",
        _classified_text,
        _TEXT | {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    ),
    "albert": Architecture(
        "AlbertForSequenceClassification", _classified_text, _ENCODER | {"embedding_size": 16}
    ),
    "electra": Architecture(
        "ElectraForSequenceClassification", _classified_text, _ENCODER | {"embedding_size": 16}
    ),
    "deberta v2": Architecture("DebertaV2ForSequenceClassification", _classified_text, _ENCODER),
    "mpnet": Architecture("MPNetForSequenceClassification", _classified_text, _ENCODER),
    "convbert": Architecture(
        "ConvBertForSequenceClassification", _classified_text, _ENCODER | {"embedding_size": 16}
    ),
    "modernbert": Architecture("ModernBertForSequenceClassification", _classified_text, _ENCODER),
    "fnet": Architecture("FNetForSequenceClassification", _classified_unpadded_text, _ENCODER),
    "mobilebert": Architecture(
        "MobileBertForSequenceClassification",
        _classified_text,
        _ENCODER | {"embedding_size": 16, "true_hidden_size": 32, "intra_bottleneck_size": 32},
    ),
    "squeezebert": Architecture(
        "SqueezeBertForSequenceClassification",
        _classified_text,
        _ENCODER | {"embedding_size": 32},
    ),
    "roformer": Architecture(
        "RoFormerForSequenceClassification", _classified_text, _ENCODER | {"embedding_size": 32}
    ),
    "xlnet": Architecture(
        "XLNetForSequenceClassification",
        _classified_text,
        _TEXT | {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    ),
    # Decoders of text
    "gpt2": Architecture(
        "GPT2LMHeadModel", _text, _TEXT | {"n_embd": 32, "n_layer": 2, "n_head": 4}
    ),
    "gpt2, classifier": Architecture(
        "GPT2ForSequenceClassification",
        _classified_text,
        _TEXT | {"n_embd": 32, "n_layer": 2, "n_head": 4},
    ),
    "llama": Architecture("LlamaForCausalLM", _text, _DECODER),
    "mistral": Architecture("MistralForCausalLM", _text, _DECODER),
    "opt": Architecture(
        "OPTForCausalLM", _text, _ENCODER | {"ffn_dim": 64, "word_embed_proj_dim": 32}
    ),
    "gpt neo": Architecture(
        "GPTNeoForCausalLM",
        _text,
        _TEXT
        | {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 64,
        },
    ),
    "gpt neox": Architecture("GPTNeoXForCausalLM", _text, _ENCODER),
    "gptj": Architecture(
        "GPTJForCausalLM", _text, _TEXT | {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}
    ),
    "bloom": Architecture(
        "BloomForCausalLM", _text, _TEXT | {"hidden_size": 32, "n_layer": 2, "n_head": 4}
    ),
    "falcon": Architecture("FalconForCausalLM", _text, _ENCODER),
    "phi": Architecture("PhiForCausalLM", _text, _DECODER),
    "qwen2": Architecture("Qwen2ForCausalLM", _text, _DECODER),
    "qwen3": Architecture("Qwen3ForCausalLM", _text, _DECODER | {"head_dim": 8}),
    "gemma": Architecture("GemmaForCausalLM", _text, _DECODER | {"head_dim": 8}),
    "stablelm": Architecture("StableLmForCausalLM", _text, _DECODER),
    "olmo2": Architecture("Olmo2ForCausalLM", _text, _DECODER),
    "starcoder2": Architecture("Starcoder2ForCausalLM", _text, _DECODER),
    "cohere": Architecture("CohereForCausalLM", _text, _DECODER),
    "mpt": Architecture(
        "MptForCausalLM",
        _text,
        {"vocab_size": _VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    ),
    # Mixtures of experts
    "mixtral": Architecture("MixtralForCausalLM", _text, _EXPERTS),
    "qwen2 moe": Architecture("Qwen2MoeForCausalLM", _text, _QWEN_EXPERTS),
    "olmoe": Architecture("OlmoeForCausalLM", _text, _QWEN_EXPERTS),
    "granite moe": Architecture("GraniteMoeForCausalLM", _text, _EXPERTS),
    "switch": Architecture(
        "SwitchTransformersForConditionalGeneration",
        _text,
        _TEXT
        | {
            "d_model": 32,
            "d_ff": 64,
            "d_kv": 8,
            "num_layers": 2,
            "num_decoder_layers": 2,
            "num_heads": 4,
            "num_experts": 4,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            "decoder_start_token_id": 0,
        },
    ),
    # Encoder-decoders
    "t5": Architecture(
        "T5ForConditionalGeneration",
        _text,
        _TEXT
        | {
            "d_model": 32,
            "d_ff": 64,
            "d_kv": 8,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": Architecture("BartForConditionalGeneration", _text, _SEQUENCES),
    "bart, classifier": Architecture("BartForSequenceClassification", _text_with_ends, _SEQUENCES),
    "pegasus": Architecture("PegasusForConditionalGeneration", _text, _SEQUENCES),
    "mbart": Architecture("MBartForConditionalGeneration", _text, _SEQUENCES),
    "marian": Architecture("MarianMTModel", _text, _SEQUENCES),
    # Images and videos
    "vit": Architecture("ViTForImageClassification", _pictures, _SIZES | _IMAGES),
    "deit": Architecture("DeiTForImageClassification", _pictures, _SIZES | _IMAGES),
    "beit": Architecture("BeitForImageClassification", _pictures, _SIZES | _IMAGES),
    "dinov2": Architecture("Dinov2ForImageClassification", _pictures, _SIZES | _IMAGES),
    "swin": Architecture(
        "SwinForImageClassification",
        _pictures,
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [1, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
    ),
    "convnext": Architecture(
        "ConvNextForImageClassification", _larger_pictures, _STAGES | {"num_stages": 2}
    ),
    "resnet": Architecture(
        "ResNetForImageClassification",
        _larger_pictures,
        _STAGES | {"embedding_size": 16, "layer_type": "basic"},
    ),
    "segformer": Architecture(
        "SegformerForSemanticSegmentation",
        _segmented_pictures,
        {
            "num_encoder_blocks": 2,
            "depths": [1, 2],
            "sr_ratios": [4, 2],
            "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [2, 4],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
    ),
    "mobilevit": Architecture(
        "MobileViTForImageClassification",
        _larger_pictures,
        {
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64],
            "num_attention_heads": 4,
            "image_size": 64,
        },
    ),
    "poolformer": Architecture(
        "PoolFormerForImageClassification",
        _larger_pictures,
        {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32]},
    ),
    "videomae": Architecture(
        "VideoMAEForVideoClassification",
        _videos,
        _SIZES | _IMAGES | {"num_frames": 4, "tubelet_size": 2},
    ),
    # Sound
    "wav2vec2": Architecture("Wav2Vec2ForSequenceClassification", _sounds, _SOUND),
    "hubert": Architecture("HubertForSequenceClassification", _sounds, _SOUND),
    "wavlm": Architecture("WavLMForSequenceClassification", _sounds, _SOUND),
    "ast": Architecture(
        "ASTForAudioClassification",
        _spectrograms,
        _SIZES
        | {
            "patch_size": 8,
            "max_length": 32,
            "num_mel_bins": 16,
            "frequency_stride": 8,
            "time_stride": 8,
        },
    ),
    "whisper": Architecture(
        "WhisperForConditionalGeneration",
        _heard_text,
        _SEQUENCES
        | {
            "num_mel_bins": 16,
            "max_source_positions": 20,
            "max_target_positions": 32,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
    ),
    # State spaces and other recurrences
    "mamba": Architecture("MambaForCausalLM", _unpadded_text, _STATE_SPACE),
    "mamba2": Architecture(
        "Mamba2ForCausalLM",
        _unpadded_text,
        _STATE_SPACE | {"num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
    ),
    "falcon mamba": Architecture("FalconMambaForCausalLM", _unpadded_text, _STATE_SPACE),
    "rwkv": Architecture(
        "RwkvForCausalLM",
        _unpadded_text,
        {
            "vocab_size": _VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "context_length": 32,
        },
    ),
    "recurrent gemma": Architecture(
        "RecurrentGemmaForCausalLM",
        _unpadded_text,
        _DECODER | {"lru_width": 32, "attention_window_size": 16, "num_hidden_layers": 3},
    ),
    "jamba": Architecture(
        "JambaForCausalLM",
        _text,
        _DECODER
        | {
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "num_hidden_layers": 3,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
}
