"""Reading `params.yaml`, one section at a time.

Each stage has its own typed model of its own section, in its own file, so that a new knob of one stage makes no other stage stale.
What several stages share, the maps that DVC's `foreach` runs over, is here.
"""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from mascot.errors import ConfigurationError
from mascot.yamlfiles import Strict, check, read_yaml

PARAMS = Path("params.yaml")

T = TypeVar("T")


class Speaker(Strict):
    """One entry of `speakers`: an instance of every per-speaker stage. Its key is `<domain>-<persona>`.

    `card` is the persona's file; `examples` is the file whose written replies `sft` trains on, for a Speaker the same one.
    `reward` is the persona whose reward model trains the Speaker: its own, or another one's as a control.
    """

    domain: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    persona: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    card: Path
    examples: Path
    reward: str = Field(pattern=r"^[a-z][a-z0-9_]*$")

    def artifact(self, folder: str, suffix: str = "") -> Path:
        """Where a stage keeps what belongs to this speaker: `<folder>/<domain>/<persona><suffix>`."""
        return Path(folder) / self.domain / f"{self.persona}{suffix}"


class SamplingParams(Strict):
    """How replies are drawn: of at most `max_tokens`, at `temperature`, cut to the `top_k` likeliest tokens (0: not), to the likeliest
    of a total probability `top_p`, and to those of at least `min_p` times the likeliest one's.
    """

    max_tokens: int = Field(ge=1)
    temperature: float = Field(gt=0)
    top_k: int = Field(ge=0)
    top_p: float = Field(gt=0, le=1)
    min_p: float = Field(ge=0, lt=1)


def read_params() -> Any:
    """The whole of `params.yaml` as plain values. Raises `ConfigurationError` if it is not in the current folder."""
    if not PARAMS.exists():
        raise ConfigurationError(
            f"there is no {PARAMS} here: run this in the root of the repository, or restore it (`git checkout {PARAMS}`)."
        )
    return read_yaml(PARAMS)


def read_section(kind: type[T] | Any, *keys: str) -> T:
    """Read and check one section of `params.yaml`: `read_section(Params, "pairs")`, `read_section(Speaker, "speakers", key)`.

    Raises:
        ConfigurationError: the file, the section or a key in it is missing, unknown or of a wrong value.
    """
    value = read_params()
    for depth, key in enumerate(keys):
        if not isinstance(value, dict) or key not in value:
            where = ".".join(keys[:depth]) or "the file"
            there = f" It has: {', '.join(map(str, value))}." if isinstance(value, dict) else ""
            raise ConfigurationError(f"{PARAMS}: `{key}` is not in {where}.{there}")
        value = value[key]
    return check(value, kind, f"{PARAMS}: {'.'.join(keys)}")
