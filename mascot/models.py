"""Loading a base's model into this process."""

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from mascot.device import device, precision
from mascot.dialogue.types import Message
from mascot.errors import ModelError
from mascot.references import Base, loading


def load_tokenizer(base: Base) -> PreTrainedTokenizerBase:
    """The tokenizer of a base. Raises `ModelError` if its padding is its end token, or missing."""
    with loading(base):
        tokenizer: Any = AutoTokenizer.from_pretrained(**base.load_arguments)
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        raise ModelError(
            f"{base.reference}: its padding token must be there and differ from its end token; set `pad_token` in the model's tokenizer."
        )
    return tokenizer


def prompt_ids(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """The token ids of a chat under the model's template, without thinking, up to where the answer begins."""
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, enable_thinking=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def load_encoder(base: Base) -> Callable[[Sequence[str]], NDArray[Any]]:
    """The sentence encoder of a base: texts to unit vectors, [texts, dimension]."""
    from sentence_transformers import SentenceTransformer

    with loading(base):
        encoder = SentenceTransformer(base.name, revision=base.revision, device=device(), trust_remote_code=False)
    return lambda texts: encoder.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)


def load_ends(base: Base) -> frozenset[int]:
    """The tokens that end a reply: the tokenizer's end token, and those at which the model stops generating."""
    with loading(base):
        try:
            configured = GenerationConfig.from_pretrained(base.name, revision=base.revision or "main").eos_token_id
        except OSError:
            configured = AutoConfig.from_pretrained(**base.load_arguments).eos_token_id
    several = configured if isinstance(configured, list) else [configured]
    return frozenset(int(str(token)) for token in (*several, load_tokenizer(base).eos_token_id) if token is not None)


def load_window(base: Base) -> int:
    """The number of tokens, prompt and reply together, that the model can read."""
    with loading(base):
        return AutoConfig.from_pretrained(**base.load_arguments).max_position_embeddings


def load_language_model(base: Base) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The causal language model of a base, in evaluation mode, in fp32 on a CPU and bf16 on a GPU, and its tokenizer."""
    with loading(base):
        model = AutoModelForCausalLM.from_pretrained(**base.load_arguments, dtype=precision())
    return model.to(device()).eval(), load_tokenizer(base)
