"""Small language models of transformers, in double precision, and texts of unequal length."""

import torch
import transformers

VOCABULARY = 40
LENGTHS = (9, 4, 6, 7)

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


def bert(n_labels=3):
    config = transformers.BertConfig(**_SIZES, num_labels=n_labels)
    return _seeded(transformers.BertForSequenceClassification, config)


def masked_bert():
    return _seeded(transformers.BertForMaskedLM, transformers.BertConfig(**_SIZES))


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return _seeded(transformers.GPT2LMHeadModel, config)


def t5():
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    return _seeded(transformers.T5ForConditionalGeneration, config)


def texts(pads=0, lengths=LENGTHS):
    """Tokens and mask, padded to the longest text and by `pads` more."""
    generator = torch.Generator().manual_seed(3)
    width = max(lengths) + pads
    tokens = torch.zeros(len(lengths), width, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, length in enumerate(lengths):
        tokens[row, :length] = torch.randint(1, VOCABULARY, (length,), generator=generator)
        mask[row, :length] = 1
    return {"input_ids": tokens, "attention_mask": mask}


def _seeded(build, config):
    torch.manual_seed(0)
    return build(config).double()
