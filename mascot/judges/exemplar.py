"""The exemplar judge: the embedded default, which needs no large model.

It reads a persona's file and nothing else of the roster. Each criterion has one measure, named in the rubric:

persona
    A linear classifier on the base model's middle layer (mean over the reply's tokens) that tells the persona's exemplars and
    written replies from its counter-exemplars; the value is the distance from its boundary. The sentence encoder tells topics,
    not manners: on the contrast sets the middle layer separates personas far better.
relevance
    Closeness (cosine of the sentence encoder, which reads some 200 words at most) to this context less mean closeness to the other
    contexts of the pool, plus a tenth of the summed rarity of the content words shared with this context (rarity: inverse document
    frequency in the pool, 0 to 1).
novelty
    The share of the reply's content words that the context does not have.
wellformedness
    What the reply's word order gains under the base model, in nats a token (`mascot.judges.fluency`).
anchors
    As `persona`, between the criterion's `high` and `low` lines.

A value becomes a score by a logistic curve through two points taken from the persona's own file: what its written replies
typically reach gives 4, what counts as none of it gives 1.5.

Parroting (of the prompt, of somebody's line, of a written line), slogans that would fit any context, loops and word salad get 1
on every criterion, and the feedback says which of them it was.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mascot.dialogue.types import Turn
from mascot.errors import DataError
from mascot.files import content_hash, file_hash
from mascot.judges.fluency import Reader
from mascot.judges.probe import Probe
from mascot.judges.scoring import Measured, Scale, novelty, spoken, verdicts
from mascot.judges.text import rarity, shared_rarity
from mascot.judges.types import Item, Verdict
from mascot.models import load_encoder
from mascot.personas import Persona
from mascot.references import load_base
from mascot.rubrics import Criterion, Measure, Rubric

Floats = NDArray[np.floating[Any]]

SLOGAN_SHARE = 0.32
"""Below this share of the typical relevance, a reply would fit any context. Set on the contrast sets, where good replies reach 0.35."""
SHARED_WORD_WEIGHT = 0.1


def _probe(high: Floats, low: Floats) -> Probe:
    """A classifier between two sets of lines by their states, [lines, hidden] each."""
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, class_weight="balanced", max_iter=2000))
    return Probe(model, list(high), list(low))


@dataclass(frozen=True)
class Calibration:
    """What the judge learned from one persona's file."""

    persona: Probe
    relevance: Scale
    novelty: Scale
    order: Scale


class ExemplarJudge:
    """See the module's docstring.

    Args:
        rubric: the criteria.
        encoder, policy: the folders of the sentence encoder and of the base language model.
        pool: other contexts of the domain, against which relevance is measured; at least two.
    """

    def __init__(self, rubric: Rubric, encoder: Path, policy: Path, pool: Sequence[tuple[Turn, ...]]) -> None:
        if len(pool) < 2:
            raise DataError(
                f"the exemplar judge needs at least two contexts to compare with, and got {len(pool)}: the training split is too small."
            )
        self.rubric = rubric
        self._encoder, self._reader = load_base(encoder), Reader(policy)
        self._pool = [spoken(turns) for turns in pool]
        self._calibrations: dict[str, Calibration] = {}
        self._anchors: dict[str, Probe] = {}
        self._rarity = rarity(self._pool)

    @property
    def identity(self) -> Any:
        code = [file_hash(Path(__file__).with_name(name)) for name in ("exemplar.py", "fluency.py", "probe.py", "scoring.py", "text.py")]
        return ["exemplar", code, self.rubric.model_dump(), self._encoder.identity, self._reader.identity, content_hash(self._pool)]

    def score(self, persona: Persona, items: Sequence[Item]) -> list[Verdict]:
        if not items:
            return []
        known = self._calibration(persona)
        replies = [item.reply for item in items]
        reading = self._reader.read(replies)
        measured: dict[Measure, Measured] = {
            "persona": Measured(known.persona.values(list(reading.state)), known.persona.scale),
            "relevance": Measured(self._relevance(replies, [spoken(item.turns) for item in items]), known.relevance),
            "novelty": Measured([novelty(item) for item in items], known.novelty),
            "wellformedness": Measured(self._reader.order_gain(replies, reading), known.order),
        }
        anchors = {
            key: Measured(self._anchor(key, criterion).values(list(reading.state)), self._anchor(key, criterion).scale)
            for key, criterion in self.rubric.criteria.items()
            if criterion.measure == "anchors"
        }
        return verdicts(self.rubric, persona, items, measured, anchors, measured["wellformedness"], SLOGAN_SHARE)

    def _calibration(self, persona: Persona) -> Calibration:
        key = content_hash(persona.model_dump())
        if key not in self._calibrations:
            written = [Item(reply.context, reply.reply) for reply in persona.replies]
            replies = [item.reply for item in written]
            lines = [*replies, *persona.exemplars]
            state = self._reader.read([*lines, *persona.counter_exemplars], likelihood=False).state
            relevance = self._relevance(replies, [spoken(item.turns) for item in written])
            elsewhere = self._relevance(replies, [spoken(item.turns) for item in (*written[1:], written[0])])
            self._calibrations[key] = Calibration(
                persona=_probe(state[: len(lines)], state[len(lines) :]),
                relevance=Scale(float(np.median(elsewhere)), float(np.median(relevance))),
                novelty=Scale(0.0, float(np.median([novelty(item) for item in written]))),
                order=Scale(0.0, float(np.median(self._reader.order_gain(replies)))),
            )
        return self._calibrations[key]

    def _anchor(self, key: str, criterion: Criterion) -> Probe:
        if key not in self._anchors:
            state = self._reader.read([*criterion.high, *criterion.low], likelihood=False).state
            self._anchors[key] = _probe(state[: len(criterion.high)], state[len(criterion.high) :])
        return self._anchors[key]

    def _relevance(self, replies: Sequence[str], contexts: Sequence[str]) -> list[float]:
        said, own = self._encode(replies), self._encode(contexts)
        others = np.array([[text != context for text in self._pool] for context in contexts])
        closeness = (said * own).sum(1) - (said @ self._pool_vectors.T).mean(1, where=others)
        shared = [shared_rarity(reply, context, self._rarity) for reply, context in zip(replies, contexts, strict=True)]
        return (closeness + SHARED_WORD_WEIGHT * np.array(shared)).tolist()

    @cached_property
    def _encode(self) -> Callable[[Sequence[str]], Floats]:
        return load_encoder(self._encoder)

    @cached_property
    def _pool_vectors(self) -> Floats:
        return self._encode(self._pool)


def open_judge(rubric: Rubric, pool: Sequence[tuple[Turn, ...]]) -> ExemplarJudge:
    return ExemplarJudge(rubric, Path("models/base/encoder"), Path("models/base/policy"), pool)
