"""The evaluating judge: classifiers and counts over words, on lines that no training stage sees.

Its scores share neither lines nor model family with the exemplar judge, whose verdicts train the reward, so that what fools the
one need not fool the other. One thing is shared: whether a reply is word salad, a fault that sets all its scores to 1, is asked of
the base model, since counts over a few thousand words miss one salad in six.

persona
    A logistic classifier on TF-IDF of words and letter groups that tells this persona's evaluation lines from those of the rest
    of the roster and of a generic assistant (`data/evaluation/<domain>/*.yaml`; line k of every file is about the same matter,
    so that it learns manner). A persona without a file there gets no score on it.
relevance
    The summed rarity of the content words that the reply shares with its context (rarity: inverse document frequency over the
    evaluation lines and the pool, 0 to 1): words, where the exemplar judge goes by vectors.
novelty
    The share of the reply's content words that the context does not have.
wellformedness
    A logistic classifier that tells written lines from the same lines corrupted (words shuffled, words cut short, letters
    shuffled, words and symbols strewn in), on counts that need no language model: word order under a trigram model of word
    classes, neighbours and letter groups never seen, function words, symbols, repeated words.
anchors
    As `persona`, between the `high` and `low` lines of `rubric.yaml` in the same folder.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from nltk.lm import WittenBellInterpolated
from nltk.lm.preprocessing import padded_everygram_pipeline
from pydantic import Field
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import StandardScaler

from mascot.dialogue.types import Turn
from mascot.errors import ConfigurationError, DataError
from mascot.files import content_hash, file_hash
from mascot.judges.fluency import Reader
from mascot.judges.probe import Probe
from mascot.judges.scoring import Measured, Scale, novelty, shuffled, spoken, verdicts
from mascot.judges.text import FUNCTION_WORDS, rarity, shared_rarity, words
from mascot.judges.types import Item, Verdict
from mascot.personas import Persona, Text
from mascot.rubrics import Measure, Rubric
from mascot.yamlfiles import Strict, load_yaml

GENERIC = "generic"
"""The file of lines that belong to no persona: a generic assistant's."""

SLOGAN_SHARE = 0.3
"""Set on the contrast sets; see `mascot.judges.scoring.verdicts`."""

CALIBRATION_LINES = 16


class _Lines(Strict):
    lines: list[Text] = Field(min_length=10)


class _Anchors(Strict):
    high: list[Text] = Field(min_length=10)
    low: list[Text] = Field(min_length=10)


class EvaluationLines:
    """The evaluation lines of a domain: by persona (key = file name), a generic assistant's, and anchors by criterion."""

    def __init__(self, folder: Path) -> None:
        files = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
        if GENERIC not in files:
            raise ConfigurationError(
                f"{folder / GENERIC}.yaml: there is no such file; the evaluating judge needs a generic assistant's lines."
            )
        rubric = files.pop("rubric", None)
        self.anchors: dict[str, _Anchors] = load_yaml(rubric, dict[str, _Anchors]) if rubric else {}
        self.by_persona: dict[str, list[str]] = {key: load_yaml(path, _Lines).lines for key, path in files.items()}


def _word_classifier() -> Any:
    """A classifier of lines by TF-IDF of words and of letter groups."""
    return make_pipeline(
        make_union(
            TfidfVectorizer(token_pattern=r"[^\W_]+(?:'[^\W_]+)?|[?:;!]", ngram_range=(1, 2), sublinear_tf=True),
            TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True),
        ),
        LogisticRegression(C=10, class_weight="balanced", max_iter=2000),
    )


class ClassifierJudge:
    """See the module's docstring.

    Args:
        rubric: the criteria.
        lines: the domain's evaluation lines.
        names: the key (file name) of each persona that may be judged, by its name.
        policy: the folder of the base language model, for the fault of word salad alone.
        pool: other contexts of the domain; those of two turns and more also show what an answer typically shares with what it answers.
    """

    def __init__(
        self, rubric: Rubric, lines: EvaluationLines, names: Mapping[str, str], policy: Path, pool: Sequence[tuple[Turn, ...]]
    ) -> None:
        if len(pool) < 2 or not any(len(turns) > 1 for turns in pool):
            raise DataError(
                "the evaluating judge needs at least two contexts to compare with, one of them of two turns or more; "
                "the training split is too small."
            )
        self.rubric, self._lines, self._names = rubric, lines, dict(names)
        self._pool = [spoken(turns) for turns in pool]
        every_line = [line for group in lines.by_persona.values() for line in group]
        self._rarity = rarity([*every_line, *self._pool])
        answers = [shared_rarity(turns[-1].text, spoken(turns[:-1]), self._rarity) for turns in pool if len(turns) > 1]
        self._relevance_scale = Scale(0.0, max(float(np.quantile(answers, 0.75)), 2.5))
        self._grammar = _Grammar([*every_line, *self._pool])
        self._reader = Reader(policy)
        self._order_scales: dict[str, Scale] = {}
        self._classifiers: dict[str, Probe | None] = {}
        self._anchors = {key: Probe(_word_classifier(), one.high, one.low) for key, one in lines.anchors.items()}

    @property
    def identity(self) -> Any:
        code = [file_hash(Path(__file__).with_name(name)) for name in ("classifier.py", "fluency.py", "probe.py", "scoring.py", "text.py")]
        anchors = {key: one.model_dump() for key, one in self._lines.anchors.items()}
        return [
            "classifier",
            code,
            self.rubric.model_dump(),
            content_hash([self._lines.by_persona, anchors, self._names, self._pool]),
            self._reader.identity,
        ]

    def score(self, persona: Persona, items: Sequence[Item]) -> list[Verdict]:
        if not items:
            return []
        replies = [item.reply for item in items]
        measured: dict[Measure, Measured] = {
            "relevance": Measured([shared_rarity(item.reply, spoken(item.turns), self._rarity) for item in items], self._relevance_scale),
            "novelty": Measured([novelty(item) for item in items], Scale(0.0, 0.7)),
            "wellformedness": Measured(self._grammar.values(replies), self._grammar.scale),
        }
        if classifier := self._classifier(persona):
            measured["persona"] = Measured(classifier.values(replies), classifier.scale)
        anchors = {key: Measured(one.values(replies), one.scale) for key, one in self._anchors.items()}
        order = Measured(self._reader.order_gain(replies), self._order_scale(persona))
        return verdicts(self.rubric, persona, items, measured, anchors, order, SLOGAN_SHARE)

    def recognise(self, replies: Sequence[str], roster: Sequence[str]) -> list[str | None]:
        """Whose reply each of them sounds like: one of the `roster` (keys), by a classifier between their evaluation lines.

        None for all where fewer than two of the roster have lines: there is nothing to tell apart.
        """
        known = {key: self._lines.by_persona[key] for key in roster if key in self._lines.by_persona}
        if len(known) < 2:
            return [None] * len(replies)
        labels = [key for key, lines in known.items() for _ in lines]
        model = _word_classifier().fit([line for lines in known.values() for line in lines], labels)
        return [str(key) for key in model.predict(list(replies))]

    def _order_scale(self, persona: Persona) -> Scale:
        key = self._names.get(persona.name, "")
        if key not in self._order_scales:
            lines = self._lines.by_persona.get(key, self._lines.by_persona[GENERIC])[:CALIBRATION_LINES]
            self._order_scales[key] = Scale(0.0, float(np.median(self._reader.order_gain(lines))))
        return self._order_scales[key]

    def _classifier(self, persona: Persona) -> Probe | None:
        key = self._names.get(persona.name, "")
        if key not in self._classifiers:
            own = self._lines.by_persona.get(key)
            rest = [line for other, group in self._lines.by_persona.items() if other != key for line in group]
            self._classifiers[key] = Probe(_word_classifier(), own, rest) if own else None
        return self._classifiers[key]


class _Grammar:
    """Tells written lines from corrupted ones.

    Counts come from one half of the lines and the classifier's examples from the other, both ways round; in use, from all.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        features, labels = [], []
        for counted, labelled in ((lines[::2], lines[1::2]), (lines[1::2], lines[::2])):
            counts = _Counts(counted)
            for number, line in enumerate(labelled):
                for text, label in ((line, 1), (shuffled(line, 1), 0), (_corrupt(line, number % 4), 0)):
                    features.append(counts.describe(text))
                    labels.append(label)
        self._model = make_pipeline(StandardScaler(), LogisticRegression(C=10, class_weight="balanced", max_iter=2000)).fit(
            features, labels
        )
        values, written = self._model.decision_function(features), np.array(labels) == 1
        self.scale = Scale(float(np.median(values[~written])), float(np.median(values[written])))
        self._counts = _Counts(lines)

    def values(self, texts: Sequence[str]) -> list[float]:
        return self._model.decision_function([self._counts.describe(text) for text in texts]).tolist()


class _Counts:
    """What a set of lines says of how English is put together."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._trigrams = WittenBellInterpolated(3)
        self._trigrams.fit(*padded_everygram_pipeline(3, [_classes(line) for line in lines]))
        self._neighbours = {pair for line in lines for pair in _neighbours(line)}
        self._letters = {group for line in lines for word in words(line) for group in _letter_groups(word)}
        self._scores: dict[tuple[str, str, str], float] = {}

    def describe(self, text: str) -> list[float]:
        """Word order (nats a word) and what it gains over three shuffles; unseen neighbours and their excess over shuffles;
        unseen letter groups; function words; symbols; repeated words."""
        said, mixed = words(text), [shuffled(text, seed) for seed in range(2, 5)]
        groups = [group for word in said for group in _letter_groups(word)]
        visible = [sign for sign in text if not sign.isspace()]
        order, unseen = self._order(text), self._unseen(text)
        return [
            order,
            order - float(np.mean([self._order(other) for other in mixed])),
            unseen,
            unseen - float(np.mean([self._unseen(other) for other in mixed])),
            sum(group not in self._letters for group in groups) / max(len(groups), 1),
            sum(word in FUNCTION_WORDS for word in said) / max(len(said), 1),
            sum(not (sign.isalnum() or sign in ".,;:!?'\"-") for sign in visible) / max(len(visible), 1),
            1 - len(set(said)) / max(len(said), 1),
        ]

    def _unseen(self, text: str) -> float:
        pairs = _neighbours(text)
        return sum(pair not in self._neighbours for pair in pairs) / max(len(pairs), 1)

    def _order(self, text: str) -> float:
        """Mean log-probability a word (nats) of the text's word classes, given the two before."""
        classes = ["<s>", "<s>", *_classes(text)]
        scores = [self._score((classes[place - 2], classes[place - 1], classes[place])) for place in range(2, len(classes))]
        return float(np.mean(np.log(np.maximum(scores, 1e-6)))) if scores else -10.0

    def _score(self, trigram: tuple[str, str, str]) -> float:
        if trigram not in self._scores:
            self._scores[trigram] = self._trigrams.score(trigram[2], list(trigram[:2]))
        return self._scores[trigram]


def _corrupt(line: str, how: int) -> str:
    if how == 3:
        return " ".join(f"{word} {sign}" for word, sign in zip(line.split(), itertools.cycle(("::", "{0}", "##", "||")), strict=False))
    if how == 0:
        return " ".join(word[:3] for word in line.split())
    if how == 1:
        return " ".join(shuffled(" ".join(word), 0).replace(" ", "") for word in line.split())
    kept = [word for word in words(line) if word not in FUNCTION_WORDS]
    return " ".join(f"{kept[place % len(kept)]} {word}" for place, word in enumerate(line.split())) if kept else line[::-1]


def _classes(text: str) -> list[str]:
    """Words and clause marks as a grammar sees them: function words as they are, other words by their ending."""
    return [
        word if word in FUNCTION_WORDS or not word[0].isalnum() else _ending(word)
        for word in re.findall(r"[.,;:!?]|[^\W_]+(?:'[^\W_]+)*", text.casefold())
    ]


def _ending(word: str) -> str:
    if word[0].isdigit():
        return "<number>"
    return next((f"-{ending}" for ending in ("ing", "ed", "ly", "ness", "tion", "er", "s", "y") if word.endswith(ending)), "-")


def _neighbours(text: str) -> list[tuple[str, str]]:
    """Neighbouring word classes of which at least one is a function word."""
    classes = _classes(text)
    return [pair for pair in itertools.pairwise(classes) if FUNCTION_WORDS.intersection(pair)]


def _letter_groups(word: str) -> list[str]:
    marked = f"^{word}$"
    return [marked[place : place + 3] for place in range(len(marked) - 2)]
