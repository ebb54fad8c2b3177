"""The sample corpora, written for this project: YAML lists of contexts with their split."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from mascot.dialogue.types import Context, Split
from mascot.errors import DataError
from mascot.personas import Text, WrittenTurn, as_turns
from mascot.yamlfiles import Strict, load_yaml


class _Entry(Strict):
    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    label: Text
    split: Split
    situation: Text
    turns: list[WrittenTurn] = Field(min_length=1)


def load(source: Path, domain: str) -> list[Context]:
    """Read every `*.yaml` in the folder `source`, in order of file name and place.

    Raises:
        ConfigurationError: a malformed file, named with the key.
        DataError: no contexts, or one id used twice.
    """
    contexts: list[Context] = []
    seen: dict[str, Path] = {}
    if not source.is_dir():
        raise DataError(f"{source}: is not a folder; `source` names the folder of the corpus.")
    for path in sorted([*source.glob("*.yaml"), *source.glob("*.yml")]):
        for entry in load_yaml(path, list[_Entry]) if path.stat().st_size else []:
            if entry.id in seen:
                raise DataError(f"{path}: the id `{entry.id}` is used in {seen[entry.id]} already; give this context one of its own.")
            seen[entry.id] = path
            contexts.append(Context(entry.id, domain, entry.split, entry.label, entry.situation, as_turns(entry.turns)))
    if not contexts:
        raise DataError(
            f"{source}: the corpus is empty: no `*.yaml` file with contexts. "
            f"Restore it (`git checkout {source}`) or point `source` elsewhere."
        )
    return contexts
