"""Preference pairs: which are made, which are not, and that every count adds up."""

import json
import random

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from mascot.dialogue.types import Context, Turn
from mascot.engines.types import Completion
from mascot.errors import DataError
from mascot.files import read_parquet
from mascot.pairs import COLUMNS, preference_pairs
from mascot.personas import Persona
from stages.candidates import _candidates


def row(context: str, sample: int, score: float | None, status: str = "ok", split: str = "train") -> dict:
    turns = [{"speaker": "person", "text": f"said in {context}"}]
    return {
        "context_id": context,
        "split": split,
        "turns": turns,
        "sample": sample,
        "text": f"{context} {sample}",
        "status": status,
        "score": score,
    }


def frame(rows: list[dict]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=COLUMNS)


def one_context(*scores: float | None) -> pl.DataFrame:
    return frame([row("c", sample, score) for sample, score in enumerate(scores)])


def add_up(counts: dict) -> bool:
    return counts["possible"] == counts["kept"] + counts["tied"] + counts["excluded"]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 8, 16])
def test_k_candidates_have_k_times_k_minus_1_over_2_pairs(k):
    pairs, counts = preference_pairs(one_context(*(1 + 0.25 * sample for sample in range(k))), 0.1)
    assert pairs.height == counts["kept"] == counts["possible"] == k * (k - 1) // 2
    assert counts["tied"] == counts["excluded"] == 0


def test_the_better_text_is_chosen_whichever_came_first():
    pairs, _ = preference_pairs(one_context(2.0, 4.0, 3.0), 1.0)
    chosen = pairs.select("chosen", "rejected", "chosen_score", "rejected_score", "margin").rows()
    assert chosen == [("c 1", "c 0", 4.0, 2.0, 2.0), ("c 2", "c 0", 3.0, 2.0, 1.0), ("c 1", "c 2", 4.0, 3.0, 1.0)]


@pytest.mark.parametrize(("one", "other"), [(3.5, 3.0), (4.1, 3.6), (1.7, 1.2), (2.3, 1.8)])
def test_the_margin_itself_is_enough_in_spite_of_rounding(one, other):
    pairs, counts = preference_pairs(one_context(one, other), 0.5)
    assert pairs["margin"].to_list() == [0.5]
    assert counts["kept"] == 1


def test_below_the_margin_is_a_tie():
    pairs, counts = preference_pairs(one_context(3.0, 3.49), 0.5)
    assert pairs.height == 0
    assert (counts["possible"], counts["tied"], counts["excluded"]) == (1, 1, 0)


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_equal_scores_are_a_tie_at_any_margin(margin):
    pairs, counts = preference_pairs(one_context(3.0, 3.0, 4.0), margin)
    assert pairs.height == counts["kept"] == 2
    assert counts["tied"] == 1


@pytest.mark.parametrize("missing", [None])
def test_a_missing_score_is_excluded_and_never_low(missing):
    pairs, counts = preference_pairs(one_context(5.0, missing, 1.0), 0.5)
    assert pairs.select("chosen", "rejected").rows() == [("c 0", "c 2")]
    assert (counts["possible"], counts["kept"], counts["tied"], counts["excluded"]) == (3, 1, 0, 2)


@pytest.mark.parametrize("status", ["duplicate", "empty", "unparsable", "refused", "truncated", "failed"])
def test_a_candidate_that_was_not_judged_is_excluded_even_with_a_score(status):
    pairs, counts = preference_pairs(frame([row("c", 0, 5.0), row("c", 1, 1.0, status), row("c", 2, 3.0)]), 0.5)
    assert pairs.select("chosen", "rejected").rows() == [("c 0", "c 2")]
    assert counts["excluded"] == 2
    assert counts["duplicates"] == (1 if status == "duplicate" else 0)


def test_eight_equal_texts_give_no_pair():
    """Pitfall 18: some servers return n identical samples; they are counted as duplicates by the stage that draws them."""
    lines = ["a", "b", "c"]
    replies = [{"turns": [{"person": "x"}], "reply": "y"}] * 2
    persona = Persona(name="Anchor", role="r", voice="v", exemplars=lines, counter_exemplars=lines, replies=replies)
    context = Context("c", "support", "train", "sad", "none", (Turn("person", "Hello."),))
    texts = ["Same words.", "same words", "Anchor: Same words!", *["Same words."] * 5]
    candidates = _candidates(context, persona, [("sft", Completion(text, "stop")) for text in texts])
    assert [one["status"] for one in candidates] == ["ok", *["duplicate"] * 7]
    scored = [{key: one[key] for key in COLUMNS if key != "score"} | {"score": 1.0 + number / 2} for number, one in enumerate(candidates)]
    pairs, counts = preference_pairs(frame(scored), 0.5)
    assert pairs.height == 0
    assert (counts["possible"], counts["kept"], counts["excluded"], counts["duplicates"]) == (28, 0, 28, 7)


def test_pairs_are_made_within_a_context_only_and_keep_what_it_was():
    rows = [
        row("b", 0, 1.0),
        row("b", 1, 5.0),
        row("a", 0, 2.0, split="validation"),
        row("a", 1, 4.0, split="validation"),
        row("d", 0, 3.0),
    ]
    pairs, counts = preference_pairs(frame(rows), 0.5)
    assert pairs.select("context_id", "split", "chosen", "rejected").rows() == [
        ("b", "train", "b 1", "b 0"),
        ("a", "validation", "a 1", "a 0"),
    ]
    assert pairs["turns"].to_list() == [rows[0]["turns"], rows[2]["turns"]]
    assert (counts["contexts"], counts["contexts_with_pairs"], counts["possible"]) == (3, 2, 2)
    assert counts["kept_by_split"] == {"train": 1, "validation": 1}


@pytest.mark.parametrize("column", sorted(COLUMNS))
def test_a_missing_column_and_one_of_another_type_are_named(column, tmp_path):
    path = tmp_path / "judgments.parquet"
    for broken in (one_context(1.0, 5.0).drop(column), one_context(1.0, 5.0).with_columns(pl.lit(None).alias(column))):
        broken.write_parquet(path)
        with pytest.raises(DataError, match=rf"judgments.parquet: the column `{column}`.*dvc repro judgments@x"):
            read_parquet(path, "judgments@x", COLUMNS)


@pytest.mark.parametrize("score", [0.5, 9.0, -4.0, float("inf"), float("nan")])
def test_a_score_that_no_rubric_gives_is_refused(score):
    with pytest.raises(DataError, match="outside 1 to 5"):
        preference_pairs(one_context(score, 3.0), 0.5)


def test_rows_without_a_key_or_with_the_same_one_are_refused():
    rows = one_context(1.0, 5.0)
    for column in ("context_id", "sample"):
        with pytest.raises(DataError, match=f"have no `{column}`"):
            preference_pairs(rows.with_columns(pl.lit(None, dtype=rows.schema[column]).alias(column)), 0.5)
    with pytest.raises(DataError, match="share their context and sample"):
        preference_pairs(pl.concat([rows, rows]), 0.5)


@pytest.mark.parametrize("rows", [[], [row("c", 0, None)], [row("c", 0, None), row("c", 1, None)], [row("c", 0, 3.0), row("c", 1, 3.0)]])
def test_without_pairs_the_counts_are_zero_and_the_mean_is_missing(rows):
    pairs, counts = preference_pairs(frame(rows), 0.5)
    full, _ = preference_pairs(one_context(1.0, 5.0), 0.5)
    assert pairs.height == counts["kept"] == 0 and pairs.schema == full.schema
    assert counts["mean_margin"] is None and counts["kept_by_split"] == {}
    assert add_up(counts)


def naive(rows: list[dict], margin: float) -> tuple[list[tuple[str, str, str]], dict]:
    """The definition, as two loops."""
    kept, counts = [], {"possible": 0, "kept": 0, "tied": 0, "excluded": 0}
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            if one["context_id"] != other["context_id"] or one["sample"] >= other["sample"]:
                continue
            counts["possible"] += 1
            if any(side["status"] != "ok" or side["score"] is None or side["score"] != side["score"] for side in (one, other)):
                counts["excluded"] += 1
                continue
            gap = one["score"] - other["score"]
            if gap == 0 or abs(gap) < margin:
                counts["tied"] += 1
                continue
            better, worse = (one, other) if gap > 0 else (other, one)
            counts["kept"] += 1
            kept.append((i, j, one["context_id"], better["text"], worse["text"]))
    return [pair[2:] for pair in sorted(kept)], counts


@pytest.mark.parametrize("seed", range(60))
def test_random_judgments_give_the_pairs_of_a_plain_loop(seed):
    """Scores are quarters, so that a plain loop needs no rounding."""
    choose = random.Random(seed)
    scores = [None, *(1 + quarter / 4 for quarter in range(17))]
    rows = [
        row(f"c{context}", sample, choose.choice(scores), choose.choice(["ok", "ok", "ok", "duplicate", "empty", "failed"]))
        for context in choose.sample(range(20), choose.randint(1, 6))
        for sample in range(choose.randint(1, 8))
    ]
    if seed % 2:
        choose.shuffle(rows)
    margin = choose.choice([0.0, 0.25, 0.5, 1.0, 4.0])
    pairs, counts = preference_pairs(frame(rows), margin)
    expected, expected_counts = naive(rows, margin)
    assert pairs.select("context_id", "chosen", "rejected").rows() == expected
    assert {key: counts[key] for key in expected_counts} == expected_counts
    assert add_up(counts)
    assert sum(counts["kept_by_split"].values()) == counts["kept"]
    assert (pairs["margin"] >= margin).all()
    json.dumps(counts, allow_nan=False)
    assert_frame_equal(preference_pairs(frame(rows), margin)[0], pairs)
