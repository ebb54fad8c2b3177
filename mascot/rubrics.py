"""A rubric: the criteria, 1 to 5, on which replies are judged; one YAML file in `data/rubrics`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from mascot.personas import Text
from mascot.yamlfiles import Strict, load_yaml

Measure = Literal["persona", "relevance", "novelty", "wellformedness", "anchors"]


class Criterion(Strict):
    """One thing that is scored.

    `question` and `scale` (what 1, 3 and 5 mean) are what a judge reads. `measure` is what the embedded judges compute for it;
    the measure `anchors` compares a reply with the `high` and `low` lines given here.
    """

    title: Text
    question: Text
    scale: dict[Literal[1, 3, 5], Text] = Field(min_length=3)
    measure: Measure
    high: tuple[Text, ...] = ()
    low: tuple[Text, ...] = ()

    def model_post_init(self, context: object) -> None:
        if self.measure == "anchors" and min(len(self.high), len(self.low)) < 3:
            raise ValueError("the measure `anchors` needs at least three `high` and three `low` lines")
        if self.measure != "anchors" and (self.high or self.low):
            raise ValueError("`high` and `low` lines belong to the measure `anchors` alone")


class Rubric(Strict):
    """Criteria by key. `source` says where they come from: published ones are named as such, ours are marked as ours."""

    name: Text
    source: Text
    criteria: dict[str, Criterion] = Field(min_length=1)


def load_rubric(path: Path) -> Rubric:
    return load_yaml(path, Rubric)
