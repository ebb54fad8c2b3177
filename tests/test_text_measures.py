"""Measures of plain text, and how measured values become scores; with the doctests of the modules that have some."""

import doctest
import importlib
import math

import pytest

from mascot.dialogue.render import persona_prompt
from mascot.dialogue.types import PERSON, Turn
from mascot.judges.scoring import Measured, Scale, novelty, shuffled, spoken, verdicts
from mascot.judges.text import FUNCTION_WORDS, content_stems, copied_share, overlap, repeated_share, words
from mascot.judges.types import Item, Score, Verdict
from mascot.personas import Persona
from mascot.rubrics import Rubric

PERSONA = Persona.model_validate(
    {
        "name": "Skipper",
        "role": "harbour master",
        "voice": "You speak of ropes, tides and lanterns, and steer every sailor towards shelter.",
        "exemplars": ["Moor her before the ebb and mind the rusty ladder.", "Two lamps on the pier tonight.", "Reef early, Marta."],
        "counter_exemplars": ["Lovely.", "Done.", "Agreed."],
        "replies": [
            {"turns": [{"person": "My boat leaks."}], "reply": "Find the seam with a candle, then caulk it at low water."},
            {"turns": [{"person": "Fog again."}], "reply": "Ring the bell twice a minute and stay at anchor."},
        ],
    }
)

CRITERION = {"title": "T", "question": "Q?", "scale": {1: "bad", 3: "fair", 5: "good"}}
RUBRIC = Rubric.model_validate(
    {
        "name": "test",
        "source": "ours",
        "criteria": {
            "manner": CRITERION | {"title": "Manner", "measure": "persona"},
            "fit": CRITERION | {"title": "Fit", "measure": "relevance"},
            "warmth": CRITERION | {"title": "Warmth", "measure": "anchors", "high": ["warm"] * 3, "low": ["cold"] * 3},
        },
    }
)
SAID = "The harbour wall cracked last night and water ran into my shed."
GOOD = "A cracked wall wants wedges today; carry your tools out of the shed first."


@pytest.mark.parametrize("name", ["mascot.judges.text", "mascot.judges.scoring", "mascot.dialogue.render", "mascot.dialogue.checks"])
def test_examples_in_docstrings_hold(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


def test_words_keep_apostrophes_and_drop_case_and_signs():
    assert words("Don\u2019t  stop_now: 3.5 caf\u00c9s!") == ["don't", "stop", "now", "3", "5", "caf\u00e9s"]
    assert words("... ?!") == []


def test_content_stems_join_forms_of_one_word_and_leave_grammar_out():
    assert content_stems("I lost the keys") == content_stems("You were losing a key")
    assert content_stems("Ana's children swam") == content_stems("Ana child swim")
    assert content_stems("It is not that they would have been there") == []
    assert content_stems("boat bell boat") == ["boat", "bell", "boat"]


def test_function_words_are_written_as_words_are_read():
    """A word that `words` would cut or change could never be left out."""
    assert {word for word in FUNCTION_WORDS if words(word) != [word]} == set()


def test_copied_share_goes_by_order_and_not_by_person():
    assert copied_share("You lost your keys", "Yesterday I lost my keys.") == 1.0
    assert copied_share("keys lost", "lost keys") == 0.5
    assert copied_share("red green blue grey", "red or blue") == 0.5
    assert copied_share("sea", "land") == 0.0


@pytest.mark.parametrize(("reply", "source"), [("", "words"), ("words", ""), ("", ""), ("?!", "words")])
def test_copied_share_of_nothing_is_zero(reply, source):
    assert copied_share(reply, source) == 0.0


def test_copied_share_is_of_the_reply_and_not_of_the_source():
    assert copied_share("bell", "a bell rang in the fog") == 1.0
    assert copied_share("a bell rang in the fog", "bell") == pytest.approx(1 / 6)


def test_overlap_counts_items_of_the_reply():
    assert overlap(["a", "a", "b", "c"], ["a", "c", "z"]) == 0.75
    assert overlap([], ["a"]) == 0.0
    assert overlap(["a"], []) == 0.0
    assert overlap((letter for letter in "ab"), iter("b")) == 0.5


def test_repeated_share_finds_loops():
    assert repeated_share("one two three four") == 0.0
    assert repeated_share("go on go on go on") == pytest.approx(3 / 5)
    assert repeated_share("word") == repeated_share("") == 0.0
    assert repeated_share("no no no no", n=1) == 0.75
    assert repeated_share("Go on. GO ON!") == pytest.approx(1 / 3)


def test_scale_goes_through_its_two_points_and_rises_between():
    scale = Scale(-0.5, 1.5)
    assert scale.score(-0.5) == pytest.approx(1.5)
    assert scale.score(1.5) == pytest.approx(4.0)
    scores = [scale.score(value / 10) for value in range(-20, 40)]
    assert scores == sorted(scores) and len(set(scores)) == len(scores)


@pytest.mark.parametrize("value", [-1e9, -1.0, 0.0, 1.0, 1e9])
@pytest.mark.parametrize("scale", [Scale(0.0, 1.0), Scale(0.3, 0.3), Scale(1.0, 0.0)])
def test_a_score_stays_between_1_and_5_whatever_the_value_and_scale(value, scale):
    assert 1.0 <= scale.score(value) <= 5.0
    assert math.isfinite(scale.score(value))


def test_novelty_is_the_share_of_new_content_words():
    assert novelty(item("cracked wall", SAID)) == 0.0
    assert novelty(item("cracked lantern", SAID)) == 0.5
    assert novelty(item("lantern, oars", SAID)) == 1.0
    assert novelty(item("of the and", SAID)) == 0.0


def test_spoken_leaves_out_who_spoke():
    assert spoken([Turn("Anna", "One."), Turn("Ben", "Two.")]) == "One. Two."


def test_shuffled_is_another_order_of_the_same_words_and_the_same_every_time():
    text = "one two three four five six seven eight"
    assert sorted(shuffled(text, 1).split()) == sorted(text.split())
    assert shuffled(text, 1) == shuffled(text, 1) != text
    assert shuffled(text, 1) != shuffled(text, 2)


def item(reply: str, *said: str) -> Item:
    return Item(tuple(Turn(PERSON, text) for text in said), reply)


def judged(reply: str, *said: str, relevance: float = 1.0, order: float = 1.0, persona: float | None = 1.0) -> Verdict:
    scale = Scale(0.0, 1.0)
    measured = {"relevance": Measured([relevance], scale)}
    if persona is not None:
        measured["persona"] = Measured([persona], scale)
    [verdict] = verdicts(RUBRIC, PERSONA, [item(reply, *said)], measured, {"warmth": Measured([0.5], scale)}, Measured([order], scale), 0.3)
    return verdict


def test_a_good_reply_is_scored_by_its_measures():
    verdict = judged(GOOD, SAID)
    assert verdict.fault is None and verdict.status == "ok"
    assert {score.criterion: score.score for score in verdict.scores} == {"manner": 4.0, "fit": 4.0, "warmth": 2.5826}
    assert verdict.overall == pytest.approx((4.0 + 4.0 + 2.5826) / 3)
    assert "Warmth" in verdict.feedback


@pytest.mark.parametrize(
    ("fault", "reply", "given"),
    [
        ("empty", "It is what it is.", {}),
        ("empty", "", {}),
        ("loop", "Carry wedges, carry wedges, carry wedges, carry wedges.", {}),
        ("parrots_prompt", persona_prompt(PERSONA), {}),
        ("parrots_prompt", "I speak of ropes, tides and lanterns.", {}),
        ("parrots_person", "The harbour wall cracked last night and water ran into your shed.", {}),
        ("parrots_lines", "Moor her before the ebb and mind the rusty ladder.", {}),
        ("parrots_lines", "Ring the bell twice a minute, and stay at anchor!", {}),
        ("salad", GOOD, {"order": 0.2}),
        ("slogan", GOOD, {"relevance": 0.1}),
    ],
)
def test_a_reply_with_a_fault_gets_1_on_every_criterion(fault, reply, given):
    verdict = judged(reply, SAID, **given)
    assert verdict.fault == fault
    assert [score.score for score in verdict.scores] == [1.0, 1.0, 1.0]
    assert verdict.overall == 1.0
    assert verdict.feedback and all(score.feedback == verdict.feedback for score in verdict.scores)


def test_parroting_is_found_across_several_turns():
    assert judged("My shed is flooded. Tools float about.", "My shed is flooded.", "Tools float about.").fault == "parrots_person"


def test_a_criterion_without_a_measure_is_missing_and_not_zero():
    verdict = judged(GOOD, SAID, persona=None)
    manner, fit, _ = verdict.scores
    assert manner.score is None and manner.value is None and manner.feedback
    assert fit.score == 4.0
    assert verdict.overall is None
    assert "Manner" not in verdict.feedback


def test_a_criterion_without_a_measure_is_missing_beside_a_fault_too():
    verdict = judged(SAID, SAID, persona=None)
    assert verdict.fault == "parrots_person"
    assert [score.score for score in verdict.scores] == [None, 1.0, 1.0]
    assert verdict.overall is None


def test_every_item_gets_its_own_verdict_in_order():
    scale = Scale(0.0, 1.0)
    items = [item(GOOD, SAID), item("", SAID), item("Wedge the wall with oak and clear the shed.", SAID)]
    measured = {"relevance": Measured([1.0, 0.0, 0.5], scale), "persona": Measured([0.0, 0.0, 1.0], scale)}
    anchors = {"warmth": Measured([1.0, 0.0, 0.0], scale)}
    found = verdicts(RUBRIC, PERSONA, items, measured, anchors, Measured([1.0, 0.0, 1.0], scale), 0.3)
    assert [verdict.fault for verdict in found] == [None, "empty", None]
    assert [score.score for score in found[0].scores] == [1.5, 4.0, 4.0]
    assert [score.score for score in found[2].scores] == [4.0, 2.5826, 1.5]


@pytest.mark.parametrize(("scores", "overall"), [([1.0, 2.0], 1.5), ([1.0, None], None), ([None, None], None), ([], None)])
def test_overall_is_missing_if_any_score_is(scores, overall):
    given = tuple(Score(str(place), score, None, "") for place, score in enumerate(scores))
    assert Verdict("ok", given, "").overall == overall
