"""Requests to completions, through the journal."""

from collections.abc import Iterator, Sequence
from typing import Any

from mascot.engines.types import Completion, Engine, Request
from mascot.errors import DataError
from mascot.journal import Journal, recorded


def generate(engine: Engine, requests: Sequence[Request], journal: Journal, label: str) -> dict[str, list[Completion]]:
    """Answer all requests; what the journal holds is not generated again.

    Returns: `n` completions for each request id. Batches are planned from the full list and committed whole, so a resumed run
    equals an uninterrupted one byte for byte (in process; a batching server promises no such thing).

    Raises:
        DataError: two requests of one id, or one that cannot fit the model's window.
    """
    if len({request.id for request in requests}) != len(requests):
        raise DataError(f"{label}: two requests have the same id; ids join answers to questions and must be unique.")
    batches = engine.plan(requests)

    def run(missing: Sequence[int]) -> Iterator[tuple[int, Any]]:
        for position, answers in engine.run([batches[index] for index in missing]):
            yield missing[position], [[[one.text, one.finish_reason, one.token_ids] for one in answer] for answer in answers]

    values = recorded(
        journal,
        [[engine.identity, [request.determinants() for request in batch]] for batch in batches],
        [sum(request.n for request in batch) for batch in batches],
        run,
        label,
        "replies",
    )
    return {
        request.id: [Completion(text, reason, ids and tuple(ids)) for text, reason, ids in answer]
        for batch, answers in zip(batches, values, strict=True)
        for request, answer in zip(batch, answers, strict=True)
    }
