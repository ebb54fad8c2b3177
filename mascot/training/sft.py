"""Supervised fine-tuning of a LoRA adapter on written replies: TRL's `SFTTrainer`, with the loss on the reply alone."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

from mascot.adapters import save_adapter
from mascot.dialogue.types import Message
from mascot.errors import DataError, ModelError
from mascot.files import writing
from mascot.progress import progress
from mascot.references import Base, loading
from mascot.training.curves import ShowProgress, write_curves
from mascot.training.launch import is_main_process, share
from mascot.training.lora import Lora
from mascot.training.trainer import finite, shared_arguments, silence


@dataclass(frozen=True)
class Example:
    """A prompt and the reply that was written for it."""

    messages: tuple[Message, ...]
    reply: str


@dataclass(frozen=True)
class SftSettings:
    """Optimisation: `epochs` over the examples, `batch_size` examples a step, AdamW at `learning_rate` with linear decay."""

    epochs: int
    batch_size: int
    learning_rate: float
    max_tokens: int
    seed: int


def train_sft(
    base: Base, train: Sequence[Example], validation: Sequence[Example], lora: Lora, settings: SftSettings, out: Path, curves: Path
) -> dict[str, Any] | None:
    """Train an adapter on `train` and save it to `out`; write its curves to `curves`.

    Returns metrics (None in a process that does not write): mean token loss (nats) on the validation replies before (the bare base) and
    after, their n, and sizes.

    Raises:
        DataError: an example is longer than `max_tokens`; TRL would cut its end silently.
        ModelError: the loss is not finite.
    """
    with loading(base):
        tokenizer = AutoTokenizer.from_pretrained(**base.load_arguments)
        model = AutoModelForCausalLM.from_pretrained(**base.load_arguments, dtype=torch.float32)
    rows = {"train": _rows(train, tokenizer, settings), "validation": _rows(validation, tokenizer, settings)}
    steps = math.ceil(len(train) / settings.batch_size) * settings.epochs
    with progress("sft", steps, "steps") as shown, tempfile.TemporaryDirectory() as scratch:
        trainer = SFTTrainer(
            model,
            args=SFTConfig(
                output_dir=scratch,
                num_train_epochs=settings.epochs,
                per_device_train_batch_size=1,
                gradient_accumulation_steps=share(settings.batch_size, "sft.batch_size"),
                per_device_eval_batch_size=1,
                max_length=settings.max_tokens,
                completion_only_loss=True,
                **shared_arguments(settings.seed, settings.learning_rate),
            ),
            train_dataset=rows["train"],
            eval_dataset=rows["validation"],
            processing_class=tokenizer,
            peft_config=LoraConfig(task_type="CAUSAL_LM", **lora.arguments()),
            callbacks=[ShowProgress(shown)],
        )
        silence(trainer)
        before = trainer.evaluate()["eval_loss"]
        result = trainer.train()
        after = trainer.evaluate()["eval_loss"]
    if not finite(before, after, result.training_loss):
        raise ModelError(
            f"{out}: the loss is not finite (validation {before} before, {after} after). Lower the learning rate and run again."
        )
    if not is_main_process():
        return None
    write_curves(trainer.state.log_history, curves)
    with writing(out) as adapter:
        save_adapter(trainer.model, adapter, base)
    adapted: Any = trainer.model
    trainable, total = adapted.get_nb_trainable_parameters()
    return {
        "validation_loss": after,
        "validation_loss_base": before,
        "validation_n": len(validation),
        "train_loss": result.training_loss,
        "train_n": len(train),
        "steps": trainer.state.global_step,
        "trainable_parameters": trainable,
        "trainable_share": trainable / total,
    }


def _rows(examples: Sequence[Example], tokenizer: Any, settings: SftSettings) -> Dataset:
    rows = []
    for number, example in enumerate(examples):
        completion: list[Message] = [{"role": "assistant", "content": example.reply}]
        text = tokenizer.apply_chat_template([*example.messages, *completion], tokenize=False)
        if (length := len(tokenizer(text, add_special_tokens=False)["input_ids"])) > settings.max_tokens:
            raise DataError(
                f"written reply {number} ({example.reply[:40]!r}...): {length} tokens with its prompt, "
                f"over `sft.max_tokens` {settings.max_tokens}. Shorten it or raise the limit."
            )
        rows.append({"prompt": list(example.messages), "completion": completion})
    return Dataset.from_list(rows)
