"""Items to verdicts, through the journal."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from mascot.journal import Journal, recorded
from mascot.judges.types import Item, Judge, Score, Verdict
from mascot.personas import Persona

ITEMS_A_BATCH = 32


def judge(judge: Judge, persona: Persona, items: Sequence[Item], journal: Journal, label: str) -> list[Verdict]:
    """Judge all items in batches of `ITEMS_A_BATCH`, in order; what the journal holds is not judged again."""
    batches = [items[start : start + ITEMS_A_BATCH] for start in range(0, len(items), ITEMS_A_BATCH)]

    def run(missing: Sequence[int]) -> Iterator[tuple[int, Any]]:
        for index in missing:
            yield index, [asdict(verdict) for verdict in judge.score(persona, batches[index])]

    values = recorded(
        journal,
        [[judge.identity, persona.model_dump(), [asdict(item) for item in batch]] for batch in batches],
        [len(batch) for batch in batches],
        run,
        label,
        "replies",
    )
    return [
        Verdict(value["status"], tuple(Score(**score) for score in value["scores"]), value["feedback"], value["fault"])
        for batch in values
        for value in batch
    ]
