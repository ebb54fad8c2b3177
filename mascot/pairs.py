"""From judged candidates to preference pairs."""

from typing import Any

import polars as pl

from mascot.dialogue.types import CANDIDATE_SCHEMA
from mascot.errors import DataError

COLUMNS = pl.Schema({**CANDIDATE_SCHEMA, "score": pl.Float64()})
"""What `preference_pairs` reads of the judgments."""


def preference_pairs(judged: pl.DataFrame, margin: float) -> tuple[pl.DataFrame, dict[str, Any]]:
    """All pairs of one context's candidates whose scores differ by `margin` or more.

    A context with K candidates has K (K - 1) / 2 pairs. Candidates without a score (empty, a repeat of another one, not judged)
    are never paired; a missing score is not a low one.

    Args:
        judged: a row a candidate: `context_id`, `split`, `turns`, `sample`, `text`, `status`, `score` (1 to 5, or null).

    Raises:
        DataError: a row without context or sample, two of the same, or a score outside 1 to 5.

    Returns:
        Pairs (`context_id`, `split`, `turns`, `chosen`, `rejected`, `chosen_score`, `rejected_score`, `margin`), in order of context
        and samples; and counts as metrics: `possible` = `kept` + `tied` (below the margin) + `excluded` (a side has no score).
    """
    for column in ("context_id", "sample"):
        if judged[column].null_count():
            raise DataError(
                f"judgments: {judged[column].null_count()} rows have no `{column}`. Run `dvc repro judgments` to make the file anew."
            )
    if (repeated := judged.select("context_id", "sample").is_duplicated().sum()) > 0:
        raise DataError(
            f"judgments: {repeated} rows share their context and sample number. Run `dvc repro judgments` to make the file anew."
        )
    if (outside := judged.filter(pl.col("score").is_not_null() & ~pl.col("score").is_between(1, 5))).height:
        example = outside.row(0, named=True)
        raise DataError(
            f"judgments: {outside.height} scores lie outside 1 to 5, as {example['score']} of context {example['context_id']}, sample "
            f"{example['sample']}. A missing score must be null. Run `dvc repro judgments` to make the file anew."
        )
    # One chunk: polars gathers lists of structs from several chunks many times more slowly.
    judged = judged.select(list(COLUMNS)).rechunk()
    ranks = judged.select(pl.col("context_id").rank("dense").alias("context"), "sample", "score", "status").with_row_index("row")
    sizes = ranks["context"].unique_counts().cast(pl.Int64)
    possible = int((sizes * (sizes - 1) // 2).sum())
    scored = ranks.lazy().filter(pl.col("status") == "ok", pl.col("score").is_not_null()).drop("status")
    both = (
        scored.join(scored, on="context", suffix="_other", maintain_order="left_right")
        .filter(pl.col("sample") < pl.col("sample_other"))
        .select("context", "row", "row_other", gap=(pl.col("score") - pl.col("score_other")).round(6))
        .collect()
    )
    first = pl.col("gap") > 0
    kept = both.filter(pl.col("gap").abs() >= margin, pl.col("gap") != 0).select(
        "context",
        pl.col("gap").abs().alias("margin"),
        pl.when(first).then("row").otherwise("row_other").alias("chosen"),
        pl.when(first).then("row_other").otherwise("row").alias("rejected"),
    )
    chosen = judged.select(pl.col("context_id", "split", "turns", "text", "score").gather(kept["chosen"]))
    rejected = judged.select(pl.col("text", "score").gather(kept["rejected"]))
    pairs = pl.DataFrame(
        {
            "context_id": chosen["context_id"],
            "split": chosen["split"],
            "turns": chosen["turns"],
            "chosen": chosen["text"],
            "rejected": rejected["text"],
            "chosen_score": chosen["score"],
            "rejected_score": rejected["score"],
            "margin": kept["margin"],
        }
    )
    counts = {
        "possible": possible,
        "kept": pairs.height,
        "tied": both.height - pairs.height,
        "excluded": possible - both.height,
        "duplicates": int((judged["status"] == "duplicate").sum()),
        "contexts_with_pairs": kept["context"].n_unique(),
        "contexts": sizes.len(),
        "mean_margin": pairs["margin"].mean() if pairs.height else None,
        "kept_by_split": {split: count for split, count in pairs.group_by("split").len().sort("split").iter_rows()},
    }
    return pairs, counts
