"""The labelled contrast sets: replies to one context that a judge must tell apart. Written for the tests, by persona."""

from dataclasses import dataclass
from pathlib import Path

from mascot.judges.types import Item
from mascot.personas import as_turns
from mascot.yamlfiles import read_yaml

FOLDER = Path(__file__).parent / "contrast"
SPEAKERS = sorted((path.parent.name, path.stem) for path in FOLDER.glob("*/*.yaml"))
GOOD = "in_persona"
BELOW_EVERY_GOOD = ("parrots_prompt", "parrots_person", "slogan", "gibberish")


@dataclass(frozen=True)
class Labelled:
    kind: str
    item: Item


def contrast_set(domain: str, persona: str) -> list[Labelled]:
    labelled = []
    for entry in read_yaml(FOLDER / domain / f"{persona}.yaml"):
        turns = as_turns(entry.pop("turns"))
        for kind, replies in entry.items():
            for reply in replies if isinstance(replies, list) else [replies]:
                labelled.append(Labelled(kind, Item(turns, reply)))
    return labelled
