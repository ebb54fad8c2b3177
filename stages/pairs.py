"""Turn judgments into preference pairs past the margin: data/pairs/<domain>/<persona>.parquet.

As in the paper: up to K (K - 1) / 2 pairs a context, kept where the mean scores differ by `margin` (0.5 on the 1-5 scale) or more.

    python -m stages pairs support-anchor
"""

from pydantic import Field

from mascot.errors import DataError
from mascot.files import read_parquet, write_json, write_parquet
from mascot.pairs import COLUMNS, preference_pairs
from mascot.params import Speaker, read_section
from mascot.yamlfiles import Strict


class Params(Strict):
    """`margin`: the least difference of the overall scores (1-5) of a pair."""

    margin: float = Field(ge=0, le=4)


def run(instance: str) -> None:
    params = read_section(Params, "pairs")
    speaker = read_section(Speaker, "speakers", instance)
    path = speaker.artifact("data/judgments", ".parquet")
    judged = read_parquet(path, f"judgments@{instance}", COLUMNS)
    if judged.is_empty():
        raise DataError(f"{path}: there are no judgments. Run `dvc repro judgments@{instance}`, and see its metrics.")
    pairs, metrics = preference_pairs(judged, params.margin)
    write_parquet(pairs, speaker.artifact("data/pairs", ".parquet"))
    write_json(metrics, speaker.artifact("metrics/pairs", ".json"))
