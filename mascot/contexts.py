"""Contexts of a domain: splits that share no text, and samples of them."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from mascot.dialogue.checks import same_text
from mascot.dialogue.types import Context, Split

_TESTED_FIRST: tuple[Split, ...] = ("test", "out_of_domain", "validation", "train")


def separate(contexts: Sequence[Context]) -> tuple[list[Context], dict[str, Any]]:
    """Drop every context whose text is there already, keeping the copy in the split that is tested most; order is kept.

    The text is all that was said, without case, spacing and punctuation. Returns the rest, and counts as metrics.
    """
    kept: dict[str, Context] = {}
    duplicates = leaks = 0
    for context in sorted(contexts, key=lambda one: _TESTED_FIRST.index(one.split)):
        text = same_text(" ".join(turn.text for turn in context.turns))
        if text not in kept:
            kept[text] = context
        elif kept[text].split == context.split:
            duplicates += 1
        else:
            leaks += 1
    ids = {context.id for context in kept.values()}
    rest = [context for context in contexts if context.id in ids]
    counts: dict[str, Any] = {split: sum(context.split == split for context in rest) for split in get_args(Split)}
    return rest, {
        "contexts": counts,
        "labels": len({context.label for context in rest}),
        "duplicates_dropped": duplicates,
        "leaks_dropped": leaks,
    }


def sample(contexts: Sequence[Context], sizes: Mapping[Any, int], seed: int) -> list[Context]:
    """Up to `sizes[split]` contexts of each split, drawn once for a seed: a larger size only adds to what a smaller one had."""
    chosen: list[Context] = []
    for split, size in sizes.items():
        of_split = sorted((context for context in contexts if context.split == split), key=lambda context: context.id)
        chosen += random.Random(f"{seed} {split}").sample(of_split, len(of_split))[:size]
    return chosen
