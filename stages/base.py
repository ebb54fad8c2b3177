"""Resolve a model slot's reference into models/base/<slot>.

Weights become safetensors with tokenizer and chat template; a Hub model stays on the Hub and only its pinned reference is kept.
The paper names its bases and pins none; here every slot is pinned by hash or commit.

    python -m stages base policy
"""

from pathlib import Path

from mascot.params import read_section
from mascot.references import ModelReference, build_base


def run(slot: str) -> None:
    build_base(read_section(ModelReference, "base", slot), Path("models/base") / slot)
