"""What a base language model makes of a text: how likely it is, what its word order is worth, how it looks inside."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mascot.device import precision
from mascot.judges.scoring import shuffled
from mascot.models import load_language_model
from mascot.references import load_base

SHUFFLES = 2
SEQUENCES_A_PASS = 16


@dataclass(frozen=True)
class Reading:
    """Mean log-probability a token (nats) [n], and mean state of the middle layer [n, hidden], of n texts."""

    log_probability: NDArray[np.float64]
    state: NDArray[np.float32]


class Reader:
    """Reads texts with the base model in the folder `policy`; the model is loaded at the first text."""

    def __init__(self, policy: Path) -> None:
        self._base = load_base(policy)

    @property
    def identity(self) -> Any:
        return [self._base.identity, str(precision()), SHUFFLES, SEQUENCES_A_PASS]

    @cached_property
    def _model(self) -> Any:
        return load_language_model(self._base)

    @torch.inference_mode()
    def read(self, texts: Sequence[str], likelihood: bool = True) -> Reading:
        """Read each text on its own (no context), after one padding token that stands for the beginning.

        Without `likelihood` the log-probabilities stay 0, and the costly output layer is left out.
        """
        model, tokenizer = self._model
        layer, start = model.config.num_hidden_layers // 2, tokenizer.pad_token_id
        rows = [[start, *tokenizer(text, add_special_tokens=False)["input_ids"]] for text in texts]
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        log_probability, state = np.zeros(len(rows)), np.zeros((len(rows), model.config.hidden_size), dtype=np.float32)
        for first in range(0, len(order), SEQUENCES_A_PASS):
            chosen = order[first : first + SEQUENCES_A_PASS]
            width = max(2, *(len(rows[index]) for index in chosen))
            ids = torch.tensor([rows[index] + [start] * (width - len(rows[index])) for index in chosen], device=model.device)
            mask = torch.tensor([[1] * len(rows[index]) + [0] * (width - len(rows[index])) for index in chosen], device=model.device)
            output = model.base_model(ids, attention_mask=mask, output_hidden_states=True)
            real = mask[:, 1:]
            hidden = output.hidden_states[layer][:, 1:] * real[..., None]
            state[chosen] = (hidden.sum(1) / real.sum(1, keepdim=True).clamp(min=1)).float().cpu().numpy()
            if likelihood:
                spoken = real.bool()
                logits = model.get_output_embeddings()(output.last_hidden_state[:, :-1][spoken]).float()
                loss = torch.zeros(real.shape, device=model.device)
                loss[spoken] = torch.nn.functional.cross_entropy(logits, ids[:, 1:][spoken], reduction="none")
                log_probability[chosen] = (-loss.sum(1) / real.sum(1).clamp(min=1)).double().cpu().numpy()
        return Reading(log_probability, state)

    def order_gain(self, texts: Sequence[str], reading: Reading | None = None) -> list[float]:
        """What each text's word order gains: its log-probability a token (nats) less the mean of that of shuffled versions.

        Prose gains two nats and more; word salad, fragments and key mashing gain next to nothing, whatever their topic.
        `reading` is what `read` said of the same texts, if that is known.
        """
        plain = reading or self.read(texts)
        mixed = self.read([shuffled(text, seed) for seed in range(SHUFFLES) for text in texts])
        return (plain.log_probability - mixed.log_probability.reshape(SHUFFLES, len(texts)).mean(0)).tolist()
