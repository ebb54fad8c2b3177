"""What a judge is: something that scores replies on a rubric's criteria, from 1 to 5."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from mascot.dialogue.types import Turn
from mascot.personas import Persona

Status = Literal["ok", "unparsable", "refused", "truncated", "failed"]

Fault = Literal["empty", "loop", "salad", "parrots_prompt", "parrots_person", "parrots_lines", "slogan"]


@dataclass(frozen=True)
class Item:
    """A reply to judge, and what it answers."""

    turns: tuple[Turn, ...]
    reply: str


@dataclass(frozen=True)
class Score:
    """The score on one criterion, 1 to 5, or None where the judge could not give one (missing is never 0).

    `value` is the raw measure behind the score, where there is one; `feedback` says in a sentence what moved it.
    """

    criterion: str
    score: float | None
    value: float | None
    feedback: str


@dataclass(frozen=True)
class Verdict:
    """All scores of one reply.

    `status` says whether the judge answered, `feedback` is about the whole, and `fault` names what made every score 1, if anything did.
    """

    status: Status
    scores: tuple[Score, ...]
    feedback: str
    fault: Fault | None = None

    @property
    def overall(self) -> float | None:
        """The unweighted mean over the criteria; missing if any criterion is."""
        scores = [score.score for score in self.scores if score.score is not None]
        return sum(scores) / len(scores) if scores and len(scores) == len(self.scores) else None


class Judge(Protocol):
    """A judge of replies."""

    @property
    def identity(self) -> Any:
        """JSON-like: the judge, its models, rubric and settings. With the persona and the items, all that determines a verdict."""

    def score(self, persona: Persona, items: Sequence[Item]) -> list[Verdict]:
        """Judge the items, in order. Neighbours in one call may move a score in its last decimals, no more."""
