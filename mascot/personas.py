"""A persona: one YAML file, `data/personas/<domain>/<persona>.yaml`, and nothing else knows it."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from mascot.dialogue.types import Turn
from mascot.errors import ConfigurationError
from mascot.yamlfiles import Strict, load_yaml

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def _one_speaker(turn: dict[str, str]) -> dict[str, str]:
    if len(turn) != 1:
        raise ValueError("a turn is one `speaker: text` pair")
    return turn


WrittenTurn = Annotated[dict[Text, Text], AfterValidator(_one_speaker)]


def as_turns(written: list[WrittenTurn]) -> tuple[Turn, ...]:
    """`[{speaker: text}, ...]`, as people write turns in YAML, to `Turn`s."""
    return tuple(Turn(speaker, text) for turn in written for speaker, text in turn.items())


class WrittenReply(Strict):
    """A reply written by hand, with the text that it answers, so that it serves any corpus."""

    turns: list[WrittenTurn] = Field(min_length=1)
    reply: Text

    @property
    def context(self) -> tuple[Turn, ...]:
        return as_turns(self.turns)


class Persona(Strict):
    """Who speaks and how.

    `name`, `role` and `voice` make the prompt; `exemplars` are lines typical of it; `counter_exemplars` are what it would never
    say (other roles' manner, a generic assistant, empty phrases); `replies` are the material of SFT and of few-shot prompts.
    """

    name: Text
    role: Text
    voice: Text
    exemplars: list[Text] = Field(min_length=3)
    counter_exemplars: list[Text] = Field(min_length=3)
    replies: list[WrittenReply] = Field(min_length=2)


def load_persona(path: Path) -> Persona:
    """Read and check a persona file. Raises `ConfigurationError` with file and key."""
    persona: Persona = load_yaml(path, Persona)
    for field in ("exemplars", "counter_exemplars"):
        lines: list[str] = getattr(persona, field)
        for number, line in enumerate(lines):
            if line in lines[:number]:
                raise ConfigurationError(f"{path}: `{field}.{number}` repeats an earlier line; write another one or remove it.")
    return persona
