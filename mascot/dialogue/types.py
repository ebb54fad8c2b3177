"""The nouns of a dialogue: turns and the contexts that a reply answers."""

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import polars as pl

PERSON = "person"
"""The human who is being supported."""

LISTENER = "listener"
"""Whoever answered the person so far in a corpus dialogue: the seat that a persona takes over."""

Split = Literal["train", "validation", "test", "out_of_domain"]


class Message(TypedDict):
    """One chat message as every chat template and endpoint takes it."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Turn:
    """What one participant said: `person`, `listener`, a meeting participant's name, or a persona's name."""

    speaker: str
    text: str


@dataclass(frozen=True)
class Context:
    """A dialogue so far; the last turn awaits an answer.

    `label` is the emotion, problem or kind of meeting; `situation` is background that no speaker sees.
    """

    id: str
    domain: str
    split: Split
    label: str
    situation: str
    turns: tuple[Turn, ...]


TURNS_DTYPE = pl.List(pl.Struct({"speaker": pl.String, "text": pl.String}))

CONTEXT_SCHEMA = pl.Schema(
    {
        "context_id": pl.String(),
        "domain": pl.String(),
        "split": pl.String(),
        "label": pl.String(),
        "situation": pl.String(),
        "turns": TURNS_DTYPE,
    }
)

CANDIDATE_SCHEMA = pl.Schema(
    {
        "context_id": pl.String(),
        "split": pl.String(),
        "turns": TURNS_DTYPE,
        "sample": pl.Int32(),
        "text": pl.String(),
        "status": pl.String(),
    }
)
"""A sampled reply to a context: what the tables of candidates and of judgments begin with."""


def turns_to_rows(turns: tuple[Turn, ...]) -> list[dict[str, str]]:
    return [{"speaker": turn.speaker, "text": turn.text} for turn in turns]


def turns_from_rows(rows: list[dict[str, str]]) -> tuple[Turn, ...]:
    return tuple(Turn(row["speaker"], row["text"]) for row in rows)


def contexts_to_frame(contexts: list[Context]) -> pl.DataFrame:
    """One row a context, by `CONTEXT_SCHEMA`."""
    rows: list[dict[str, Any]] = [
        {
            "context_id": context.id,
            "domain": context.domain,
            "split": context.split,
            "label": context.label,
            "situation": context.situation,
            "turns": turns_to_rows(context.turns),
        }
        for context in contexts
    ]
    return pl.DataFrame(rows, schema=CONTEXT_SCHEMA)


def contexts_from_frame(frame: pl.DataFrame) -> list[Context]:
    return [
        Context(row["context_id"], row["domain"], row["split"], row["label"], row["situation"], turns_from_rows(row["turns"]))
        for row in frame.iter_rows(named=True)
    ]
