"""Score every candidate on the domain's rubric, with feedback: data/judgments/<domain>/<persona>.parquet.

The paper asks a large model; the embedded default is the exemplar judge (`mascot/judges/exemplar.py`), a stand-in that documents
one measure a criterion. Judged batches are kept in the journal.

    python -m stages judgments support-anchor
"""

from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import polars as pl

from mascot.dialogue.types import CANDIDATE_SCHEMA, CONTEXT_SCHEMA, contexts_from_frame, turns_from_rows
from mascot.errors import DataError
from mascot.files import read_parquet, write_json, write_parquet
from mascot.journal import Journal
from mascot.judges.judge import judge
from mascot.judges.types import Item, Verdict
from mascot.params import Speaker, read_section
from mascot.personas import load_persona
from mascot.rubrics import load_rubric
from mascot.yamlfiles import Strict

CRITERIA_DTYPE = pl.List(pl.Struct({"criterion": pl.String, "score": pl.Float64, "value": pl.Float64, "feedback": pl.String}))

SCHEMA = pl.Schema(
    {
        **CANDIDATE_SCHEMA,
        "score": pl.Float64(),
        "criteria": CRITERIA_DTYPE,
        "fault": pl.String(),
        "feedback": pl.String(),
        "judge": pl.String(),
    }
)


class Params(Strict):
    """`judge` names the module in `mascot/judges` that scores."""

    judge: Literal["exemplar"]


def run(instance: str) -> None:
    params = read_section(Params, "judgments")
    speaker = read_section(Speaker, "speakers", instance)
    persona, rubric = load_persona(speaker.card), load_rubric(Path("data/rubrics") / f"{speaker.domain}.yaml")
    contexts = contexts_from_frame(
        read_parquet(Path("data/contexts") / f"{speaker.domain}.parquet", f"contexts@{speaker.domain}", CONTEXT_SCHEMA)
    )
    path = speaker.artifact("data/candidates", ".parquet")
    candidates = read_parquet(path, f"candidates@{instance}", CANDIDATE_SCHEMA)
    usable = candidates.filter(pl.col("status") == "ok")
    if usable.is_empty():
        raise DataError(
            f"{path}: no candidate is usable ({candidates.height} rows). "
            "See its columns `status` and `raw`; is `candidates.sampling.max_tokens` too low?"
        )

    pool = [context.turns for context in contexts if context.split == "train"]
    opened = import_module(f"mascot.judges.{params.judge}").open_judge(rubric, pool)
    items = [Item(turns_from_rows(row["turns"]), row["text"]) for row in usable.iter_rows(named=True)]
    verdicts = judge(opened, persona, items, Journal(), f"judgments {instance}")
    by_candidate = dict(zip(usable.select("context_id", "sample").iter_rows(), verdicts, strict=True))
    rows = [_judgment(row, by_candidate.get((row["context_id"], row["sample"])), params.judge) for row in candidates.iter_rows(named=True)]
    write_parquet(pl.DataFrame(rows, schema=SCHEMA), speaker.artifact("data/judgments", ".parquet"))
    write_json(_metrics(list(rubric.criteria), verdicts, candidates.height), speaker.artifact("metrics/judgments", ".json"))


def _judgment(candidate: dict[str, Any], verdict: Verdict | None, judge_name: str) -> dict[str, Any]:
    """One row a candidate; one that was not judged (empty, duplicate) keeps its status and has no scores."""
    row = {key: candidate[key] for key in CANDIDATE_SCHEMA} | {"judge": judge_name}
    if verdict is None:
        return row | {"score": None, "criteria": [], "fault": None, "feedback": None}
    criteria = [{"criterion": one.criterion, "score": one.score, "value": one.value, "feedback": one.feedback} for one in verdict.scores]
    return row | {
        "status": verdict.status,
        "score": verdict.overall,
        "criteria": criteria,
        "fault": verdict.fault,
        "feedback": verdict.feedback,
    }


def _metrics(criteria: list[str], verdicts: list[Verdict], candidates: int) -> dict[str, Any]:
    """Means over judged replies, each with the n that it is a mean of."""
    overall = [verdict.overall for verdict in verdicts if verdict.overall is not None]
    by_criterion = {}
    for place, key in enumerate(criteria):
        scores = [score for verdict in verdicts if (score := verdict.scores[place].score) is not None]
        by_criterion[key] = {"mean": sum(scores) / len(scores) if scores else None, "n": len(scores)}
    faults = Counter(verdict.fault for verdict in verdicts if verdict.fault)
    return {
        "candidates": candidates,
        "judged": len(verdicts),
        "status": dict(Counter(verdict.status for verdict in verdicts)),
        "score": {"mean": sum(overall) / len(overall) if overall else None, "n": len(overall)},
        "criteria": by_criterion,
        "faults": dict(faults) | {"total": faults.total()},
    }
