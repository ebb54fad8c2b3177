"""From judged candidates to preference pairs."""

from typing import Any

import polars as pl

from mascot.errors import DataError

NEEDED = {"context_id", "split", "turns", "sample", "text", "status", "score"}


def preference_pairs(judged: pl.DataFrame, margin: float) -> tuple[pl.DataFrame, dict[str, Any]]:
    """All pairs of one context's candidates whose scores differ by `margin` or more.

    A context with K candidates has K (K - 1) / 2 pairs. Candidates without a score (empty, a repeat of another one, not judged)
    are never paired; a missing score is not a low one.

    Args:
        judged: a row a candidate: `context_id`, `split`, `turns`, `sample`, `text`, `status`, `score` (1 to 5, or null).

    Returns:
        Pairs (`context_id`, `split`, `turns`, `chosen`, `rejected`, `chosen_score`, `rejected_score`, `margin`), in order of context
        and samples; and counts as metrics: `possible` = `kept` + `tied` (below the margin) + `excluded` (a side has no score).
    """
    if missing := NEEDED - set(judged.columns):
        raise DataError(
            f"judgments: the columns {', '.join(sorted(missing))} are missing. Run `dvc repro judgments` to make the file anew."
        )
    rows = judged.with_row_index("row")
    sizes = rows.group_by("context_id").len()["len"].cast(pl.Int64)
    possible = int((sizes * (sizes - 1) // 2).sum())
    scored = rows.filter(pl.col("status") == "ok", pl.col("score").is_not_null(), pl.col("score").is_not_nan())
    slim = scored.select(pl.col("context_id").rank("dense").alias("context"), "sample", "score", "row")
    both = (
        slim.lazy()
        .join(slim.lazy(), on="context", suffix="_other")
        .filter(pl.col("sample") < pl.col("sample_other"))
        .with_columns(gap=(pl.col("score") - pl.col("score_other")).round(6))
    )
    kept = (
        both.filter(pl.col("gap").abs() >= margin, pl.col("gap") != 0)
        .with_columns(
            chosen_row=pl.when(pl.col("gap") > 0).then("row").otherwise("row_other"),
            rejected_row=pl.when(pl.col("gap") > 0).then("row_other").otherwise("row"),
        )
        .sort("row", "row_other")
        .collect()
    )
    compared = int(both.select(pl.len()).collect().item())
    chosen, rejected = judged[kept["chosen_row"]], judged[kept["rejected_row"]]
    pairs = pl.DataFrame(
        {
            "context_id": chosen["context_id"],
            "split": chosen["split"],
            "turns": chosen["turns"],
            "chosen": chosen["text"],
            "rejected": rejected["text"],
            "chosen_score": chosen["score"],
            "rejected_score": rejected["score"],
            "margin": kept["gap"].abs(),
        }
    )
    counts = {
        "possible": possible,
        "kept": pairs.height,
        "tied": compared - pairs.height,
        "excluded": possible - compared,
        "duplicates": judged.filter(pl.col("status") == "duplicate").height,
        "contexts_with_pairs": pairs["context_id"].n_unique(),
        "contexts": sizes.len(),
        "mean_margin": pairs["margin"].mean() if pairs.height else None,
        "kept_by_split": {split: count for split, count in pairs.group_by("split").len().sort("split").iter_rows()},
    }
    return pairs, counts
