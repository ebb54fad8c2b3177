"""A persona's reward model: TRL's `RewardTrainer` on preference pairs (Bradley-Terry), all weights or a LoRA adapter with its head."""

import itertools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from peft import LoraConfig
from safetensors import safe_open
from transformers import set_seed
from trl import RewardConfig, RewardTrainer

from mascot.adapters import save_adapter
from mascot.dialogue.types import Turn
from mascot.errors import DataError, ModelError
from mascot.files import write_json, writing
from mascot.progress import progress
from mascot.references import Base
from mascot.rewards.model import MANIFEST, RewardManifest, encode, load_scalar_model, renderer_hash, reward_tokenizer, scores
from mascot.statistics import bootstrap_mean, paired_difference
from mascot.training.curves import ShowProgress, write_curves
from mascot.training.launch import is_main_process, share
from mascot.training.lora import Lora
from mascot.training.trainer import finite, shared_arguments, silence

MARGIN_EDGES = (0.0, 0.75, 1.0, 1.5, 2.0, 4.0)
_HEADS = ("score", "classifier")


@dataclass(frozen=True)
class Pair:
    """Two replies to the dialogue `turns` of one context, the first of which was judged better by `margin` (1-5 scale)."""

    context_id: str
    turns: tuple[Turn, ...]
    chosen: str
    rejected: str
    margin: float


@dataclass(frozen=True)
class RewardSettings:
    """Optimisation: `epochs` over the pairs, `batch_size` pairs a step, AdamW at `learning_rate` with linear decay."""

    epochs: int
    batch_size: int
    learning_rate: float
    seed: int


def train_reward(
    base: Base, train: Sequence[Pair], validation: Sequence[Pair], lora: Lora | None, settings: RewardSettings, out: Path, curves: Path
) -> dict[str, Any] | None:
    """Train on `train`, save the model with its score head to `out`, and measure it on `validation`, which has other contexts.

    Returns metrics (None in a process that does not write): pair accuracy, the length-only null beside it, and their difference,
    each with n, contexts and an interval over contexts; accuracy by margin; the spread of scores; and what the folder holds.

    Raises:
        DataError: no pairs, a context in both parts, or a dialogue over the model's window.
        ModelError: the loss is not finite.
    """
    _check(train, validation, out)
    set_seed(settings.seed)
    tokenizer = reward_tokenizer(base)
    model = load_scalar_model(base, tokenizer)
    window = model.config.max_position_embeddings
    with progress("reward", _steps(len(train), settings), "steps") as shown, tempfile.TemporaryDirectory() as scratch:
        trainer = RewardTrainer(
            model,
            args=RewardConfig(
                output_dir=scratch,
                num_train_epochs=settings.epochs,
                per_device_train_batch_size=share(settings.batch_size, "reward.batch_size"),
                max_length=None,
                **shared_arguments(settings.seed, settings.learning_rate),
            ),
            train_dataset=Dataset.from_list([_row(pair, tokenizer, window) for pair in train]),
            processing_class=tokenizer,
            peft_config=LoraConfig(task_type="SEQ_CLS", **lora.arguments()) if lora else None,
            callbacks=[ShowProgress(shown)],
        )
        silence(trainer)
        result = trainer.train()
    if not finite(result.training_loss):
        raise ModelError(f"{out}: the loss is not finite ({result.training_loss}). Lower `reward.learning_rate` and run again.")
    if not is_main_process():
        return None
    write_curves(trainer.state.log_history, curves)
    trained: Any = trainer.model
    trained.eval()

    def score(pairs: Sequence[Pair], side: Callable[[Pair], str]) -> list[float]:
        return scores(trained, tokenizer, [encode(tokenizer, pair.turns, side(pair)) for pair in pairs])

    seen = {(pair.context_id, reply): pair for pair in train for reply in (pair.chosen, pair.rejected)}
    spread = scores(trained, tokenizer, [encode(tokenizer, pair.turns, reply) for (_, reply), pair in seen.items()])
    mean, deviation = float(np.mean(spread)), float(np.std(spread))
    if not deviation > 1e-6:
        raise ModelError(f"{out}: every candidate gets the same score; the model learned nothing. Raise `reward.epochs` or the rate.")
    with writing(out) as folder:
        _save(trained, base, lora, folder)
        with safe_open(next(folder.glob("*model.safetensors")), framework="pt") as file:
            head = tuple(name for name in sorted(file.keys()) if set(_HEADS) & set(name.split(".")))
        manifest = RewardManifest(
            base.reference, base.identity, "lora" if lora else "full", head, renderer_hash(tokenizer), round(mean, 6), round(deviation, 6)
        )
        write_json(asdict(manifest), folder / MANIFEST)
    trainable = sum(parameter.numel() for parameter in trained.parameters() if parameter.requires_grad)
    return {
        **measure(validation, score(validation, lambda pair: pair.chosen), score(validation, lambda pair: pair.rejected), train),
        "train_accuracy": float(np.mean(_right(score(train, lambda pair: pair.chosen), score(train, lambda pair: pair.rejected)))),
        "train_loss": result.training_loss,
        "pairs": {"train": len(train), "validation": len(validation)},
        "steps": trainer.state.global_step,
        "score_deviation": deviation,
        "weights": manifest.weights,
        "trainable_parameters": trainable,
    }


def measure(validation: Sequence[Pair], chosen: Sequence[float], rejected: Sequence[float], train: Sequence[Pair]) -> dict[str, Any]:
    """Pair accuracy of scores (a tie counts half) beside that of length alone.

    The null says that the longer reply is better, or the shorter one, whichever is right more often on `train` (in words).
    """
    groups = [pair.context_id for pair in validation]
    right = _right(chosen, rejected)
    longer = float(np.mean(_longer(train))) >= 0.5
    null = [value if longer else 1 - value for value in _longer(validation)]
    gain = paired_difference(null, right, groups)
    accuracy, by_length = bootstrap_mean(right, groups), bootstrap_mean(null, groups)
    by_margin = []
    for low, high in itertools.pairwise(MARGIN_EDGES):
        inside = [value for value, pair in zip(right, validation, strict=True) if low < pair.margin <= high]
        if inside:
            by_margin.append({"from": low, "to": high, "accuracy": float(np.mean(inside)), "n": len(inside)})
    return {
        "accuracy": accuracy.as_metrics() if accuracy else None,
        "length_null": {"rule": "longer" if longer else "shorter"} | (by_length.as_metrics() if by_length else {}),
        "above_length_null": gain.as_metrics() if gain else None,
        "accuracy_by_margin": by_margin,
    }


def _right(chosen: Sequence[float], rejected: Sequence[float]) -> list[float]:
    return [1.0 if high > low else 0.5 if high == low else 0.0 for high, low in zip(chosen, rejected, strict=True)]


def _longer(pairs: Sequence[Pair]) -> list[float]:
    """1 where the chosen reply has more words, 0 where it has fewer, 0.5 at a tie."""
    return _right([len(pair.chosen.split()) for pair in pairs], [len(pair.rejected.split()) for pair in pairs])


def _check(train: Sequence[Pair], validation: Sequence[Pair], out: Path) -> None:
    way_out = "Sample more contexts or candidates (`candidates.contexts`, `candidates.k`), or lower `pairs.margin`."
    for name, pairs in (("train", train), ("validation", validation)):
        if not pairs:
            raise DataError(f"{out}: there are no preference pairs of the split `{name}`, and a reward model needs them. {way_out}")
    if len({pair.context_id for pair in train}) < 2:
        raise DataError(f"{out}: all training pairs are of one context, {train[0].context_id}; a model would learn that context. {way_out}")
    if shared := {pair.context_id for pair in train} & {pair.context_id for pair in validation}:
        raise DataError(f"{out}: contexts are in the training and in the validation pairs: {', '.join(sorted(shared)[:5])}.")


def _row(pair: Pair, tokenizer: Any, window: int) -> dict[str, list[int]]:
    row = {"chosen_ids": encode(tokenizer, pair.turns, pair.chosen), "rejected_ids": encode(tokenizer, pair.turns, pair.rejected)}
    if (longest := max(map(len, row.values()))) > window:
        raise DataError(
            f"context {pair.context_id}: {longest} tokens with its reply, over the reward model's window of {window}. Shorten the context, "
            "or choose a base of a larger window (`reward.base`)."
        )
    return row


def _steps(pairs: int, settings: RewardSettings) -> int:
    return -(-pairs // settings.batch_size) * settings.epochs


def _save(model: Any, base: Base, lora: Lora | None, folder: Path) -> None:
    if lora:
        save_adapter(model, folder, base)
        return
    model.config._name_or_path = base.reference
    model.save_pretrained(folder)
