"""Comparing systems: what goes into the differences, what a correction does, and what counts as a gain and as sane."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

from mascot.alignment import SYSTEMS, Answer, compare, with_wellformedness
from mascot.judges.types import Score, Verdict
from mascot.rubrics import Rubric, load_rubric

MARGINS = {"relevance": 0.3, "wellformedness": 0.3, "distinct_2": 0.5, "words": 3.0}


@pytest.fixture(scope="module")
def rubric() -> Rubric:
    return with_wellformedness(load_rubric(ROOT / "data/rubrics/support.yaml"))


def encode(texts: Sequence[str]) -> np.ndarray:
    counts = np.array([[1e-6 + text.count(chr(97 + place)) for place in range(26)] for text in texts])
    return counts / np.linalg.norm(counts, axis=1, keepdims=True)


def answers(rubric: Rubric, scores: dict[str, dict[str, float]], contexts: int = 24, words: dict[str, int] | None = None) -> list[Answer]:
    """Two replies a context and system; `scores` by system and criterion, 3 where none is given, varied a little by context."""
    found = []
    for system in SYSTEMS:
        for number in range(contexts):
            for sample in range(2):
                given = {key: scores.get(system, {}).get(key, 3.0) + 0.01 * (number % 3) for key in rubric.criteria}
                verdict = Verdict("ok", tuple(Score(key, value, None, "") for key, value in given.items()), "")
                text = " ".join(f"word{number}{sample}{place}" for place in range((words or {}).get(system, 10)))
                found.append(Answer("anchor", system, f"c{number}", text, verdict, "anchor" if system == "grpo" else "beacon"))
    return found


def test_a_clear_gain_is_one_and_stays_sane(rubric: Rubric) -> None:
    found = compare(answers(rubric, {"grpo": {"consistency": 4.0}}), rubric, encode, 7, MARGINS)["personas"]["anchor"]
    gain = found["differences"]["grpo-sft"]["consistency"]
    assert gain["mean"] == pytest.approx(1.0) and gain["n"] == 48 and gain["groups"] == 24
    assert gain["holm"]["p"] == pytest.approx(7 * gain["p"]) and gain["holm"]["low"] > 0
    assert found["gains"] is True and found["sane"] == {"relevance": True, "wellformedness": True, "distinct_2": True, "words": True}
    assert found["differences"]["sft-base"]["consistency"]["p"] == 1.0
    assert found["systems"]["grpo"]["recognised"]["mean"] == 1.0 and found["systems"]["sft"]["recognised"]["mean"] == 0.0


def test_with_few_contexts_no_gain_is_claimed_or_denied(rubric: Rubric) -> None:
    found = compare(answers(rubric, {"grpo": {"consistency": 4.0}}, contexts=6), rubric, encode, 7, MARGINS)["personas"]["anchor"]
    assert found["gains"] is None and found["differences"]["grpo-sft"]["consistency"]["holm"]["low"] > 0


@pytest.mark.parametrize("low", ["response_relevance", "wellformedness"])
def test_what_fell_past_its_margin_is_not_sane(rubric: Rubric, low: str) -> None:
    found = compare(answers(rubric, {"grpo": {"consistency": 4.0, low: 2.5}}), rubric, encode, 7, MARGINS)["personas"]["anchor"]
    assert [name for name, held in found["sane"].items() if not held] == [low.removeprefix("response_")]


@pytest.mark.parametrize(("length", "held"), [(12, True), (14, False), (6, False)])
def test_the_length_may_move_neither_way_past_its_margin(rubric: Rubric, length: int, held: bool) -> None:
    found = compare(answers(rubric, {}, words={"grpo": length}), rubric, encode, 7, MARGINS)["personas"]["anchor"]
    assert found["sane"]["words"] is held and found["gains"] is False


def test_the_overall_score_is_of_the_rubrics_own_criteria(rubric: Rubric) -> None:
    found = compare(answers(rubric, {"grpo": {"wellformedness": 5.0}}), rubric, encode, 7, MARGINS)["personas"]["anchor"]
    assert found["differences"]["grpo-sft"]["score"]["mean"] == pytest.approx(0.0)
    assert found["differences"]["grpo-sft"]["wellformedness"]["mean"] == pytest.approx(2.0)


def test_a_criterion_without_a_score_is_missing_and_not_zero(rubric: Rubric) -> None:
    """A persona without evaluation lines has no consistency."""
    given: list[Answer] = []
    for answer in answers(rubric, {}):
        scores = tuple(
            Score(one.criterion, None if one.criterion == "consistency" else one.score, None, "") for one in answer.verdict.scores
        )
        given.append(Answer(answer.persona, answer.system, answer.context_id, answer.text, Verdict("ok", scores, ""), None))
    found: Any = compare(given, rubric, encode, 7, MARGINS)["personas"]["anchor"]
    assert found["systems"]["grpo"]["consistency"] is None and found["systems"]["grpo"]["recognised"] is None
    assert found["differences"]["grpo-sft"]["consistency"] is None and found["gains"] is None


def test_similarity_of_what_is_the_same_everywhere_is_1(rubric: Rubric) -> None:
    same = [Answer(one.persona, one.system, one.context_id, "abc", one.verdict, None) for one in answers(rubric, {})]
    found = compare(same, rubric, encode, 7, MARGINS)["personas"]["anchor"]
    assert found["systems"]["sft"]["similarity"] == pytest.approx(1.0)
    assert found["differences"]["grpo-sft"]["similarity"]["mean"] == pytest.approx(0.0, abs=1e-9)


def test_the_difference_of_distinct_2_is_that_of_the_systems(rubric: Rubric) -> None:
    """Its words come back in other contexts, which pseudo-values alone would count otherwise."""
    given = [
        Answer(
            one.persona, one.system, one.context_id, f"so it goes {one.text if one.system == 'sft' else 'so it goes'}", one.verdict, None
        )
        for one in answers(rubric, {})
    ]
    found = compare(given, rubric, encode, 7, MARGINS)["personas"]["anchor"]
    gain = found["differences"]["grpo-sft"]["distinct_2"]
    assert gain["mean"] == pytest.approx(found["systems"]["grpo"]["distinct_2"] - found["systems"]["sft"]["distinct_2"])
    assert gain["low"] <= gain["mean"] <= gain["high"] < 0
