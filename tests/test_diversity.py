"""Measures of diversity, against brute force and values by hand."""

import doctest
import itertools

import numpy as np
import pytest

import mascot.diversity
from mascot.diversity import distinct_n, self_bleu, similarity_across

LINES = [
    "Find the seam with a candle, then caulk it at low water.",
    "Ring the bell twice a minute and stay at anchor!",
    "My grandmother baked seven loaves every Thursday morning.",
]


def test_examples_in_docstrings_hold():
    found = doctest.testmod(mascot.diversity)
    assert found.attempted > 0
    assert found.failed == 0


def test_distinct_2_against_brute_force():
    rng = np.random.default_rng(4)
    for _ in range(50):
        texts = [" ".join(rng.choice(["ebb", "tide", "rope", "lamp"], size=rng.integers(0, 6))) for _ in range(5)]
        pairs = [(row[place], row[place + 1]) for row in map(str.split, texts) for place in range(len(row) - 1)]
        seen = [pair for place, pair in enumerate(pairs) if pair not in pairs[:place]]
        assert distinct_n(texts) == (len(seen) / len(pairs) if pairs else None)


def test_distinct_n_by_hand():
    assert distinct_n(["Tide and tide", "and TIDE!"]) == 2 / 3
    assert distinct_n(["Tide and tide", "and TIDE!"], n=1) == 2 / 5
    assert distinct_n(["a b", "c d"]) == 1.0, "no bigram joins two texts"
    assert distinct_n(["one", "", "?!"]) is None
    assert distinct_n([]) is None


def mean(scores: list[float | None]) -> float:
    known = [score for score in scores if score is not None]
    assert len(known) == len(scores)
    return sum(known) / len(known)


def test_self_bleu_is_1_when_all_say_the_same_and_small_when_none_does():
    assert self_bleu([LINES[0]] * 3) == pytest.approx([1.0] * 3)
    assert self_bleu([LINES[0], LINES[0].upper() + " ..."]) == pytest.approx([1.0, 1.0])
    unrelated, mixed = self_bleu(LINES), self_bleu([*LINES, LINES[0]])
    assert mean(unrelated) < 0.1
    assert mixed[0] == mixed[-1] == pytest.approx(1.0)
    assert mixed[1:-1] == unrelated[1:]
    assert self_bleu(["one two three", "four five six"]) == [0.0, 0.0]


def test_self_bleu_by_hand():
    """Each of "a b c" and "a b d": 2 of 3 words and 1 of 2 bigrams are in the other, of the same length."""
    assert self_bleu(["a b c", "a b d"], n=1) == pytest.approx([2 / 3] * 2)
    assert self_bleu(["a b c", "a b d"], n=2) == pytest.approx([(2 / 3 * 1 / 2) ** 0.5] * 2)
    assert self_bleu(["a b c", "a b d"], n=3) == pytest.approx([(2 / 3 * 1 / 2 * 0.1) ** (1 / 3)] * 2)


def test_self_bleu_needs_two_texts_with_words():
    assert self_bleu([LINES[0]]) == [None]
    assert self_bleu([LINES[0], "", "..."]) == [None] * 3
    one, other = self_bleu(LINES[:2])
    assert self_bleu([LINES[0], "", LINES[1]]) == [one, None, other]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_similarity_against_brute_force(dtype):
    rng = np.random.default_rng(8)
    vectors = rng.normal(size=(40, 16)) + 0.5
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(dtype)
    groups = [str(place) for place in rng.integers(0, 7, size=40)]
    across = [
        float(vectors[one].astype("float64") @ vectors[other].astype("float64"))
        for one, other in itertools.combinations(range(40), 2)
        if groups[one] != groups[other]
    ]
    assert similarity_across(vectors, groups) == pytest.approx(sum(across) / len(across), rel=1e-12)


def test_similarity_looks_only_across_contexts():
    """Within a context all are the same, across contexts nothing is; and the other way round."""
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert similarity_across(vectors, ["a", "a", "b", "b"]) == 0.0
    assert similarity_across(vectors, ["a", "b", "a", "b"]) == 0.5
    assert similarity_across(np.ones((3, 1)), ["a", "b", "c"]) == 1.0
    assert isinstance(similarity_across(vectors.astype("float32"), ["a", "a", "b", "b"]), float)


def test_similarity_needs_two_contexts_and_a_context_a_row():
    vectors = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert similarity_across(vectors, ["a", "a"]) is None
    assert similarity_across(vectors[:0], []) is None
    with pytest.raises(ValueError):
        similarity_across(vectors, ["a"])
