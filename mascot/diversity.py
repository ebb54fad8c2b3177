"""How much the replies of one speaker differ from each other: in words, and in meaning across contexts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

from mascot.judges.text import words

if TYPE_CHECKING:
    from numpy.typing import NDArray


def distinct_n(texts: Sequence[str], n: int = 2) -> float | None:
    """Distinct word n-grams over all n-grams of all texts (Li et al. 2016, arXiv 1510.03055): 1 when none repeats; None without any.

    It falls with the amount of text, so only equal amounts compare.

    >>> distinct_n(["so it goes", "so it ends"])
    0.75
    """
    grams = [gram for said in map(words, texts) for gram in zip(*(said[start:] for start in range(n)), strict=False)]
    return len(set(grams)) / len(grams) if grams else None


def self_bleu(texts: Sequence[str], n: int = 4) -> list[float | None]:
    """The BLEU of each text with all others as references (Zhu et al. 2018, arXiv 1802.01886): towards 1, all say the same.

    BLEU weighs 1-grams to n-grams evenly, and counts 0.1 for an order without a match (method 1 of Chen and Cherry 2014), so a text of
    fewer than n words stays under 1 even beside its copy. A text without a word has none, nor has one without others. The time grows
    with the square of the number of texts.
    """
    said = [words(text) for text in texts]
    weights, smoothing = (1 / n,) * n, SmoothingFunction().method1
    scores: list[float | None] = []
    for place, one in enumerate(said):
        others = [other for index, other in enumerate(said) if other and index != place]
        scores.append(float(sentence_bleu(others, one, weights, smoothing)) if one and others else None)
    return scores


def similarity_across(vectors: "NDArray[Any]", groups: Sequence[str]) -> float | None:
    """The mean cosine over pairs of replies to different contexts; None when there is one context only.

    Dot products of all ordered pairs sum to |sum of all|^2; those within a group, to |sum of the group|^2.

    Args:
        vectors: unit vectors [n, d].
        groups: the context [n] of each row. A ValueError when there are more or fewer than rows.
    """
    sums: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    # Single precision would lose digits in the difference of large sums.
    for vector, group in zip(vectors.astype("float64"), groups, strict=True):
        sums[group] = sums.get(group, 0.0) + vector
        sizes[group] = sizes.get(group, 0) + 1
    pairs = len(vectors) ** 2 - sum(size**2 for size in sizes.values())
    if not pairs:
        return None
    total = sum(sums.values())
    return float((total @ total - sum(one @ one for one in sums.values())) / pairs)
