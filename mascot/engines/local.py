"""Loading a base's language model into this process."""

import os
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from mascot.errors import ModelError
from mascot.references import Base


def device() -> str:
    """Where models run: `MASCOT_DEVICE`, else a GPU if there is one, else the CPU."""
    return os.environ.get("MASCOT_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")


def load_tokenizer(base: Base) -> PreTrainedTokenizerBase:
    """The tokenizer of a base. Raises `ModelError` if its padding is its end token, or missing."""
    tokenizer: Any = AutoTokenizer.from_pretrained(**base.load_arguments)
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        raise ModelError(
            f"{base.reference}: its padding token must be there and differ from its end token; set `pad_token` in the model's tokenizer."
        )
    return tokenizer


def load_window(base: Base) -> int:
    """The number of tokens, prompt and reply together, that the model can read."""
    return AutoConfig.from_pretrained(**base.load_arguments).max_position_embeddings


def load_language_model(base: Base) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The causal language model of a base, in evaluation mode, in fp32 on a CPU and bf16 on a GPU, and its tokenizer."""
    place = device()
    model = AutoModelForCausalLM.from_pretrained(**base.load_arguments, dtype=torch.float32 if place == "cpu" else torch.bfloat16)
    return model.to(place).eval(), load_tokenizer(base)
