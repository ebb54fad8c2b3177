"""What training did to Speakers: judged replies of several systems to the same contexts, compared pair by pair."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mascot.diversity import distinct_n, self_bleu, similarity_across
from mascot.judges.types import Verdict
from mascot.rubrics import Criterion, Rubric
from mascot.statistics import Difference, bootstrap_mean, holm, paired_difference, pseudo_values

SYSTEMS = ("base", "sft", "grpo")
"""The bare base, and the policies after SFT and after GRPO."""

COMPARED = (("sft", "base"), ("grpo", "sft"), ("grpo", "base"))

ADDED = Criterion(
    title="Well-formedness",
    question="Is it sound English?",
    scale={1: "It is word salad.", 3: "It has slips.", 5: "It is sound throughout."},
    measure="wellformedness",
)

ALPHA = 0.05

ENOUGH_CONTEXTS = 20
"""With fewer, intervals by resampling contexts are too narrow (see `mascot.statistics`), and no gain is claimed or denied."""


@dataclass(frozen=True)
class Answer:
    """One judged reply. `recognised` is the persona of the roster that it sounds most like, if there are lines to tell by."""

    persona: str
    system: str
    context_id: str
    text: str
    verdict: Verdict
    recognised: str | None


def with_wellformedness(rubric: Rubric) -> Rubric:
    """The rubric with a criterion for well-formedness, if no criterion of its own measures it."""
    if any(criterion.measure == "wellformedness" for criterion in rubric.criteria.values()):
        return rubric
    return rubric.model_copy(update={"criteria": {**rubric.criteria, "wellformedness": ADDED}})


def compare(
    answers: Sequence[Answer],
    rubric: Rubric,
    encode: Callable[[Sequence[str]], NDArray[Any]],
    family: int,
    margins: Mapping[str, float],
) -> dict[str, Any]:
    """Metrics of every persona.

    `systems`: each measure of each system with its n and interval; `differences`: each measure's paired difference with its interval
    over contexts and, under `holm`, corrected for `family` Speakers; `sane`: whether, by the mean difference, GRPO stays within
    `margins` of SFT (null where it is not known); `gains`: whether the corrected interval of its gain in the persona criterion lies
    above 0 (null with fewer than `ENOUGH_CONTEXTS` contexts).

    Measures: every criterion and the score of the rubric (1-5), `recognised` (share of replies told to be this persona's among the
    roster), `faults` (share), `words`, `self_bleu` (each reply against the rest); and of each system's replies together `distinct_2` and
    `similarity` (cosine across contexts), whose differences are of jackknife pseudo-values by context.
    """
    personas = list(dict.fromkeys(answer.persona for answer in answers))
    tables = {persona: _tables([answer for answer in answers if answer.persona == persona], rubric, encode) for persona in personas}
    differences: dict[str, dict[str, dict[str, Difference | None]]] = {
        persona: {f"{new}-{old}": _differences(table[old], table[new]) for new, old in COMPARED} for persona, table in tables.items()
    }
    found: dict[str, Any] = {}
    persona_key = _criterion(rubric, "persona")
    for persona, table in tables.items():
        found[persona] = {"systems": {system: _summary(one) for system, one in table.items()}, "differences": {}}
        for pair, by_measure in differences[persona].items():
            found[persona]["differences"][pair] = {
                measure: difference.as_metrics() if difference else None for measure, difference in by_measure.items()
            }
    for new, old in COMPARED:
        pair = f"{new}-{old}"
        for measure in differences[personas[0]][pair]:
            corrected = holm({persona: differences[persona][pair][measure] for persona in personas}, family)
            for persona, one in corrected.items():
                found[persona]["differences"][pair][measure]["holm"] = {"p": one.p, "low": one.low, "high": one.high}
    watched = {name: _criterion(rubric, name) or name for name in margins}
    for persona in personas:
        gained = found[persona]["differences"]["grpo-sft"]
        gain = gained.get(persona_key) if persona_key else None
        enough = gain is not None and gain["groups"] >= ENOUGH_CONTEXTS
        found[persona]["gains"] = gain["holm"]["low"] > 0 and gain["holm"]["p"] < ALPHA if gain and enough else None
        found[persona]["sane"] = {}
        for name, measure in watched.items():
            change = gained[measure]["mean"] if gained.get(measure) else None
            held = None if change is None else (abs(change) if name == "words" else -change) <= margins[name]
            found[persona]["sane"][name] = held
    return {"personas": found, "family": family, "margins": dict(margins)}


@dataclass(frozen=True)
class _Table:
    """One system's replies of one persona: by-reply measures, and by-context pseudo-values of measures of the whole."""

    contexts: list[str]
    by_reply: dict[str, list[float | None]]
    whole: dict[str, float | None]
    pseudo: dict[str, dict[str, float | None]]


def _tables(answers: Sequence[Answer], rubric: Rubric, encode: Callable[[Sequence[str]], NDArray[Any]]) -> dict[str, _Table]:
    tables = {}
    for system in SYSTEMS:
        mine = [answer for answer in answers if answer.system == system]
        contexts, texts = [answer.context_id for answer in mine], [answer.text for answer in mine]
        by_reply: dict[str, list[float | None]] = {
            key: [answer.verdict.scores[place].score for answer in mine] for place, key in enumerate(rubric.criteria)
        }
        by_reply["score"] = [overall(answer.verdict, rubric) for answer in mine]
        by_reply["recognised"] = [None if answer.recognised is None else float(answer.recognised == answer.persona) for answer in mine]
        by_reply["faults"] = [float(answer.verdict.fault is not None) for answer in mine]
        by_reply["self_bleu"] = self_bleu(texts)
        by_reply["words"] = [float(len(text.split())) for text in texts]
        vectors = encode(texts)
        statistics: dict[str, Callable[[Sequence[int]], float | None]] = {
            "distinct_2": lambda chosen, texts=texts: distinct_n([texts[index] for index in chosen]),
            "similarity": lambda chosen, vectors=vectors, contexts=contexts: similarity_across(
                vectors[np.asarray(chosen)], [contexts[index] for index in chosen]
            ),
        }
        everything = range(len(mine))
        tables[system] = _Table(
            contexts,
            by_reply,
            {name: statistic(everything) for name, statistic in statistics.items()},
            {name: pseudo_values(statistic, contexts) for name, statistic in statistics.items()},
        )
    return tables


def _differences(old: _Table, new: _Table) -> dict[str, Difference | None]:
    found = {name: paired_difference(values, new.by_reply[name], old.contexts) for name, values in old.by_reply.items()}
    for name, values in old.pseudo.items():
        groups, before, after = list(values), old.whole[name], new.whole[name]
        pairs = [values[group] for group in groups], [new.pseudo[name][group] for group in groups]
        known = before is not None and after is not None
        found[name] = paired_difference(*pairs, groups, observed=after - before) if known else None
    return found


def _summary(table: _Table) -> dict[str, Any]:
    estimates = {name: bootstrap_mean(values, table.contexts) for name, values in table.by_reply.items()}
    return {name: one.as_metrics() if one else None for name, one in estimates.items()} | table.whole


def overall(verdict: Verdict, rubric: Rubric) -> float | None:
    """The mean over the rubric's criteria, without the one that `with_wellformedness` added; missing if any is."""
    scores = [one.score for one in verdict.scores if rubric.criteria[one.criterion] is not ADDED]
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known and len(known) == len(scores) else None


def _criterion(rubric: Rubric, measure: str) -> str | None:
    return next((key for key, criterion in rubric.criteria.items() if criterion.measure == measure), None)
