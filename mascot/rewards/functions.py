"""Rewards as TRL calls them: plain functions of completions and of the columns of their rows, one value a completion.

Every function reads the reply that the pipeline would keep: the sampled tokens as the engines decode them (TRL's own text leaves out
template tokens), after `mascot.dialogue.checks`.

    persona      what the persona's reward model says, standardised on its candidates (0 on average, deviation 1)
    format       1 for a reply that is whole and needs no mending, else 0
    conciseness  0 inside the band of words, falling to -1 outside it
    relevance    closeness to the own context over other contexts: 0 as a reply to another context, 1 as a written reply (ours)
"""

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mascot.dialogue.checks import Reply, check_reply
from mascot.dialogue.types import Turn, turns_from_rows
from mascot.errors import DataError
from mascot.personas import Persona
from mascot.rewards.model import RewardModel

Reward = Callable[..., list[float]]
Read = Callable[[Sequence[Sequence[int]], Sequence[Any]], list[Reply]]
"""Token ids of completions, and the rows of the dialogue that each answers, to checked replies."""
Encode = Callable[[Sequence[str]], NDArray[Any]]
"""Texts to unit vectors, [texts, dimension]."""


def reader(tokenizer: Any, ends: Collection[int], name: str) -> Read:
    """How a completion of the speaker `name` is read: its tokens up to one of `ends`, decoded and checked."""

    def read(completion_ids: Sequence[Sequence[int]], turns: Sequence[Any]) -> list[Reply]:
        said = []
        for ids, rows in zip(completion_ids, turns, strict=True):
            kept = list(itertools.takewhile(lambda token: token not in ends, ids))
            text = str(tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))
            said.append(check_reply(text, name, sorted({turn["speaker"] for turn in rows})))
        return said

    return read


def persona_reward(read: Read, model: RewardModel) -> Reward:
    """The standardised score of the persona's reward model; an empty reply, which it never saw, gets -3 or the worst beside it."""

    def persona(completion_ids: Sequence[Sequence[int]], turns: Sequence[Any], **_: Any) -> list[float]:
        said = [reply.text for reply in read(completion_ids, turns)]
        scores = model.score([(turns_from_rows(rows), text) for rows, text in zip(turns, said, strict=True)])
        return [score if text else min(-3.0, *scores) for score, text in zip(scores, said, strict=True)]

    return persona


def format_reward(read: Read, ends: Collection[int]) -> Reward:
    """1 for a reply that ended by itself (with one of the tokens `ends`), says something and needed no mending by the checks, else 0."""

    def format(completion_ids: Sequence[Sequence[int]], turns: Sequence[Any], **_: Any) -> list[float]:
        return [
            float(bool(reply.text) and not reply.flags and ids[-1] in ends)
            for reply, ids in zip(read(completion_ids, turns), completion_ids, strict=True)
        ]

    return format


def conciseness_reward(read: Read, low: int, high: int) -> Reward:
    """0 for a reply of `low` to `high` words; outside, minus the words too few as a share of `low`, or too many of `high`, at most 1."""

    def conciseness(completion_ids: Sequence[Sequence[int]], turns: Sequence[Any], **_: Any) -> list[float]:
        lengths = [len(reply.text.split()) for reply in read(completion_ids, turns)]
        return [-min(1.0, max((low - length) / max(low, 1), (length - high) / high, 0.0)) for length in lengths]

    return conciseness


def relevance_reward(read: Read, persona: Persona, encode: Encode, pool: Sequence[tuple[Turn, ...]]) -> Reward:
    """How much closer (cosine) a reply is to its own context than, on average, to the other contexts of `pool`.

    The scale comes from the persona's written replies: 0 is their median closeness to each other's contexts, 1 to their own.
    """
    if len(pool) < 2:
        raise DataError(f"the relevance reward compares with other contexts, and there are {len(pool)}: the training split is too small.")
    others = [_spoken(turns) for turns in pool]
    other_vectors = encode(others)

    def closeness(said: Sequence[str], contexts: Sequence[str]) -> NDArray[Any]:
        vectors, own = encode(list(said)), encode(list(contexts))
        elsewhere = np.array([[text != context for text in others] for context in contexts])
        return (vectors * own).sum(1) - (vectors @ other_vectors.T).mean(1, where=elsewhere)

    written = [reply.reply for reply in persona.replies]
    contexts = [_spoken(reply.context) for reply in persona.replies]
    low = float(np.median(closeness(written, [*contexts[1:], contexts[0]])))
    high = float(np.median(closeness(written, contexts)))

    def relevance(completion_ids: Sequence[Sequence[int]], turns: Sequence[Any], **_: Any) -> list[float]:
        said = [reply.text for reply in read(completion_ids, turns)]
        values = closeness(said, [_spoken(turns_from_rows(rows)) for rows in turns])
        return ((values - low) / max(high - low, 1e-6)).tolist()

    return relevance


def _spoken(turns: Sequence[Turn]) -> str:
    return " ".join(turn.text for turn in turns)
