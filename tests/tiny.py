"""A Qwen3 of a few thousand parameters, with random weights, its own tokenizer and Qwen3's chat template: for unit tests alone."""

from pathlib import Path

import torch
import trl
import yaml
from conftest import ROOT
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from mascot.files import folder_hash
from mascot.references import Base, ModelReference, build_base, load_base

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def write_tiny_qwen3(folder: Path, seed: int = 0, window: int = 512) -> Path:
    """Save the model and its tokenizer to `folder` in the Hugging Face layout."""
    written = yaml.safe_load((ROOT / "data/personas/support/anchor.yaml").read_text())
    texts = [*written["exemplars"], *written["counter_exemplars"], *(reply["reply"] for reply in written["replies"])]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=window,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_base(folder: Path, seed: int = 0, window: int = 512) -> Base:
    """The tiny model as the stage `base` leaves it."""
    source = write_tiny_qwen3(folder / "source", seed, window)
    build_base(ModelReference(reference=f"path:{source}", sha256=folder_hash(source)), folder / "base")
    return load_base(folder / "base")
