"""Read a domain's corpus into contexts with disjoint splits: data/contexts/<domain>.parquet.

The paper publishes neither the number of its contexts nor its splits.

    python -m stages contexts support
"""

from importlib import import_module
from pathlib import Path
from typing import Literal

from mascot.contexts import separate
from mascot.dialogue.types import contexts_to_frame
from mascot.files import write_json, write_parquet
from mascot.params import read_section
from mascot.yamlfiles import Strict


class Params(Strict):
    """One domain's corpus: `corpus` names the loader (`mascot/corpora/<corpus>.py`), `source` the folder that it reads."""

    corpus: Literal["sample"]
    source: str


def run(domain: str) -> None:
    params = read_section(Params, "contexts", domain)
    loader = import_module(f"mascot.corpora.{params.corpus}")
    contexts, metrics = separate(loader.load(Path(params.source), domain))
    write_parquet(contexts_to_frame(contexts), Path("data/contexts") / f"{domain}.parquet")
    write_json(metrics, Path("metrics/contexts") / f"{domain}.json")
