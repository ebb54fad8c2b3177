"""The persona reward model: a scalar for a reply in its dialogue, by a language model or an encoder with a score head.

Training and scoring render and tokenise by `encode` alone; the hash of what it makes of a fixed dialogue lies beside the weights,
and a model whose hash differs is refused.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification

from mascot.device import device
from mascot.dialogue.render import reward_text
from mascot.dialogue.types import Turn
from mascot.errors import DataError, ModelError
from mascot.files import content_hash, file_hash
from mascot.models import load_tokenizer
from mascot.references import Base, loading

MANIFEST = "reward.json"
SEQUENCES_A_PASS = 32

_SAMPLE = (
    (Turn("person", "It's late.\n\u00c9t\u00e9 <|im_end|>"), Turn("listener", "Yes?"), Turn("Ana", "reply: no")),
    "I see: \u2018late\u2019.",
)


@dataclass(frozen=True)
class RewardManifest:
    """What lies in a reward model's folder.

    `weights` says whether it holds the full weights or a LoRA adapter; both hold the score head, whose tensors `head` names.
    `mean` and `deviation` are of the scores of the candidates that it was trained on: rewards are standardised by them.
    """

    base_reference: str
    base_identity: str
    weights: Literal["full", "lora"]
    head: tuple[str, ...]
    renderer: str
    mean: float
    deviation: float


def reward_tokenizer(base: Base) -> Any:
    """The tokenizer of a reward model: an encoder, which has no end token, ends its texts with its separator."""
    tokenizer: Any = load_tokenizer(base)
    if tokenizer.eos_token is None:
        tokenizer.eos_token = tokenizer.sep_token
    return tokenizer


def encode(tokenizer: Any, turns: Sequence[Turn], reply: str) -> list[int]:
    """The token ids of a dialogue and a reply, which end with the end token exactly once."""
    ids = tokenizer(reward_text(turns, reply))["input_ids"]
    return ids if ids[-1] == tokenizer.eos_token_id else [*ids, tokenizer.eos_token_id]


def renderer_hash(tokenizer: Any) -> str:
    """The hash of what `encode` makes of a fixed dialogue."""
    return content_hash([encode(tokenizer, *_SAMPLE), tokenizer.pad_token_id, tokenizer.eos_token_id])


def load_scalar_model(base: Base, tokenizer: Any) -> Any:
    """A base with a fresh score head (drawn from torch's seed), in fp32."""
    with loading(base):
        model = AutoModelForSequenceClassification.from_pretrained(**base.load_arguments, num_labels=1, dtype=torch.float32)
    model.config.pad_token_id = tokenizer.pad_token_id
    return model


@torch.inference_mode()
def scores(model: Any, tokenizer: Any, encoded: Sequence[Sequence[int]]) -> list[float]:
    """The raw score of each encoded text, in order.

    Texts of like length are read together, padded on the right; the padding token is never the end token, so that a model which
    looks for the last token that is no padding finds the end of the reply, whatever its neighbours.
    """
    found = [0.0] * len(encoded)
    order = sorted(range(len(encoded)), key=lambda index: len(encoded[index]))
    for first in range(0, len(order), SEQUENCES_A_PASS):
        chosen = order[first : first + SEQUENCES_A_PASS]
        width = max(len(encoded[index]) for index in chosen)
        ids = torch.full((len(chosen), width), tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, index in enumerate(chosen):
            ids[row, : len(encoded[index])] = torch.tensor(encoded[index])
            mask[row, : len(encoded[index])] = 1
        logits = model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device)).logits[:, 0]
        for index, score in zip(chosen, logits.float().tolist(), strict=True):
            found[index] = score
    return found


class RewardModel:
    """A trained reward model, in evaluation mode, on the device of this process, in fp32 as its scale was measured.

    Args:
        folder: what `mascot.training.reward` saved.
        base: the base that it must have been trained on.

    Raises:
        ModelError: nothing there that can be read, another base, another renderer, or weights without their score head.
    """

    def __init__(self, folder: Path, base: Base) -> None:
        self.folder, self.manifest = folder, read_manifest(folder, base)
        self.tokenizer = reward_tokenizer(base)
        if self.manifest.renderer != renderer_hash(self.tokenizer):
            raise ModelError(
                f"{folder}: this reward model was trained on texts that were rendered or tokenised in another way. Run `dvc repro` for "
                "the stage that makes it."
            )
        if self.manifest.weights == "lora":
            model = PeftModel.from_pretrained(load_scalar_model(base, self.tokenizer), str(folder)).merge_and_unload()
        else:
            model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
        self.model = model.to(device()).eval()

    def check_length(self, context_id: str, turns: Sequence[Turn], reply_tokens: int) -> None:
        """Raise `DataError` if a dialogue with a reply of so many tokens may not fit the model's window."""
        length, window = len(encode(self.tokenizer, turns, "")) + reply_tokens, self.model.config.max_position_embeddings
        if length > window:
            raise DataError(
                f"context {context_id}: {length} tokens with a reply of {reply_tokens}, over the window of {window} of the reward model "
                f"{self.folder}. Shorten this context, lower `speaker.sampling.max_tokens`, or choose another `reward.base`."
            )

    def score(self, dialogues: Sequence[tuple[Sequence[Turn], str]]) -> list[float]:
        """The standardised score of each (turns, reply): 0 is the mean of the candidates, 1 one standard deviation above it.

        Raises:
            DataError: a dialogue is longer than the model's window.
        """
        encoded = [encode(self.tokenizer, turns, reply) for turns, reply in dialogues]
        window = self.model.config.max_position_embeddings
        if (longest := max((len(ids) for ids in encoded), default=0)) > window:
            raise DataError(f"{self.folder}: a dialogue of {longest} tokens is over the reward model's window of {window}.")
        return [(score - self.manifest.mean) / self.manifest.deviation for score in scores(self.model, self.tokenizer, encoded)]


def read_manifest(folder: Path, base: Base) -> RewardManifest:
    """The manifest of the reward model in `folder`, after checking that it belongs to `base` and has its score head.

    Raises:
        ModelError: see `RewardModel`.
    """
    try:
        known = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        manifest = RewardManifest(**known | {"head": tuple(known["head"])})
        with safe_open(_weights(folder, manifest), framework="pt") as file:
            missing = sorted(set(manifest.head) - set(file.keys()))
    except Exception as error:  # safetensors raises errors of its own
        raise ModelError(
            f"{folder}: holds no reward model that can be read ({error}). Run `dvc repro` for the stage that makes it, or `dvc pull` it."
        ) from error
    if missing or not manifest.head:
        raise ModelError(
            f"{folder}: the score head is not among the weights ({', '.join(missing) or 'none is named'}); with a fresh one, scores would "
            "be random. Run `dvc repro` for the stage that makes it, or `dvc pull` it."
        )
    if manifest.base_identity != base.identity:
        raise ModelError(
            f"{folder}: this reward model belongs to another base: it was trained on {manifest.base_reference} "
            f"({manifest.base_identity[:12]}), and {base.slot} is {base.reference} ({base.identity[:12]}). "
            "Train it anew, or restore that base."
        )
    return manifest


def reward_hash(folder: Path, base: Base) -> str:
    """The content hash of the reward model in `folder`, after the checks of `read_manifest`."""
    manifest = read_manifest(folder, base)
    return content_hash([asdict(manifest), file_hash(_weights(folder, manifest))])


def _weights(folder: Path, manifest: RewardManifest) -> Path:
    return folder / ("model.safetensors" if manifest.weights == "full" else "adapter_model.safetensors")
