"""From measured values to verdicts: what the two embedded judges have in common.

A value becomes a score by a logistic curve through two points of a `Scale`. A reply with a fault gets 1 on every criterion:
parroting (of the prompt, of somebody's line, of a written line), loops, word salad, and slogans that would fit any context.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mascot.dialogue.render import persona_prompt
from mascot.dialogue.types import Turn
from mascot.files import content_hash
from mascot.judges.text import content_stems, copied_share, overlap, repeated_share
from mascot.judges.types import Fault, Item, Score, Verdict
from mascot.personas import Persona
from mascot.rubrics import Measure, Rubric

PROMPT_SHARE = 0.5
"""From this share of content words out of the persona's prompt on, a reply parrots the prompt (good replies: 0.25 at most)."""
COPIED_SHARE = 0.8
"""From this share of words copied in order on, a reply parrots a line (good replies: 0.7 at most)."""
LOOP_SHARE = 0.25
"""From this share of repeated word pairs on, a reply is a loop (good replies: 0.05 at most)."""
ORDER_SHARE = 0.54
"""Below this share of the typical gain from word order, a reply is word salad. Set on the contrast sets, where good replies reach 0.55."""


@dataclass(frozen=True)
class Scale:
    """The curve from a value to a score: 1.5 at `low` (what counts as none of it), 4 at `high` (what is typical of good replies).

    4 and not 5, so that replies about as good as written ones still differ enough to make pairs.
    """

    low: float
    high: float

    def score(self, value: float) -> float:
        """A score between 1 and 5.

        >>> Scale(0.0, 2.0).score(0.0), Scale(0.0, 2.0).score(2.0)
        (1.5, 4.0)
        """
        share = (value - self.low) / max(self.high - self.low, 1e-6)
        exponent = min(max(math.log(7) - math.log(21) * share, -30.0), 30.0)
        return round(1 + 4 / (1 + math.exp(exponent)), 4)


@dataclass(frozen=True)
class Measured:
    """One measure of several replies, in their order, with its scale."""

    values: Sequence[float]
    scale: Scale


def verdicts(
    rubric: Rubric,
    persona: Persona,
    items: Sequence[Item],
    measured: Mapping[Measure, Measured],
    anchors: Mapping[str, Measured],
    order: Measured,
    slogan_share: float,
) -> list[Verdict]:
    """Scores and feedback for every item.

    Args:
        measured: the measures by name; `relevance` is needed for the faults. A measure that is not there leaves its criterion
            without a score.
        anchors: the measure `anchors` by criterion.
        order: what the replies' word order gains under a language model, for the fault of word salad.
        slogan_share: below this share of the typical relevance, a reply would fit any context.
    """
    instructions = set(content_stems(persona_prompt(persona)))
    lines = [*(reply.reply for reply in persona.replies), *persona.exemplars]
    found = []
    for number, item in enumerate(items):
        fault = _copying_fault(item, instructions, lines)
        if not fault and _share(order, number) < ORDER_SHARE:
            fault = "salad", "Word salad: its words would do as well in any other order."
        if not fault and _share(measured["relevance"], number) < slogan_share:
            fault = "slogan", "Would fit any context: nothing in it belongs to this one more than to others."
        scores = []
        for key, criterion in rubric.criteria.items():
            measure = anchors.get(key) if criterion.measure == "anchors" else measured.get(criterion.measure)
            if measure is None:
                scores.append(Score(key, None, None, "Not scored: this judge has no lines for it."))
                continue
            value = measure.values[number]
            score = 1.0 if fault else measure.scale.score(value)
            scores.append(
                Score(key, score, round(value, 4), fault[1] if fault else _explain(criterion.measure, item, value, measure.scale))
            )
        found.append(Verdict("ok", tuple(scores), fault[1] if fault else _summary(rubric, scores), fault[0] if fault else None))
    return found


def spoken(turns: Sequence[Turn]) -> str:
    """What was said, without who said it."""
    return " ".join(turn.text for turn in turns)


def novelty(item: Item) -> float:
    """The share of the reply's content words that what it answers does not have."""
    stems = content_stems(item.reply)
    return 1 - overlap(stems, content_stems(spoken(item.turns))) if stems else 0.0


def shuffled(text: str, seed: int) -> str:
    """The words of a text in another order, the same one for the same text and seed."""
    words = text.split()
    random.Random(content_hash([text, seed])).shuffle(words)
    return " ".join(words)


def _share(measure: Measured, number: int) -> float:
    return measure.values[number] / max(measure.scale.high, 1e-6)


def _copying_fault(item: Item, instructions: set[str], written: Sequence[str]) -> tuple[Fault, str] | None:
    stems = content_stems(item.reply)
    if not stems:
        return "empty", "Says nothing: it has no content words."
    if (share := repeated_share(item.reply)) >= LOOP_SHARE:
        return "loop", f"A loop: {share:.0%} of its word pairs repeat earlier ones."
    if (share := overlap(stems, instructions)) >= PROMPT_SHARE:
        return "parrots_prompt", f"Parrots the prompt: {share:.0%} of its content words are the persona's instructions."
    said = [turn.text for turn in item.turns]
    if (share := max(copied_share(item.reply, line) for line in (*said, " ".join(said)))) >= COPIED_SHARE:
        return "parrots_person", f"Parrots what was said: {share:.0%} of its words stand there in the same order."
    if (share := max(copied_share(item.reply, line) for line in written)) >= COPIED_SHARE:
        return "parrots_lines", f"Parrots a written line: {share:.0%} of its words stand there in the same order."
    return None


def _explain(measure: Measure, item: Item, value: float, scale: Scale) -> str:
    typical = f"{value:.2f}, typically {scale.high:.2f}"
    if measure == "relevance":
        shared = sorted(set(content_stems(item.reply)) & set(content_stems(spoken(item.turns))))
        return f"It takes up {', '.join(shared[:4]) if shared else 'no word of what was said'} ({typical})."
    if measure == "novelty":
        return f"{value:.0%} of its content words are new here (typically {scale.high:.0%})."
    if measure == "wellformedness":
        return f"Its word order carries its sense ({typical})."
    yes, no = ("this persona's own lines", "what it would never say") if measure == "persona" else ("the high lines", "the low lines")
    nearer = yes if value >= (scale.low + scale.high) / 2 else no
    return f"Nearer to {nearer} ({value:+.2f}; {no} {scale.low:+.2f}, {yes} {scale.high:+.2f})."


def _summary(rubric: Rubric, scores: Sequence[Score]) -> str:
    ranked = sorted((score for score in scores if score.score is not None), key=lambda score: score.score or 0.0)
    if not ranked:
        return "Nothing could be scored."
    worst, best = ranked[0], ranked[-1]
    return (
        f"Strongest on {rubric.criteria[best.criterion].title} ({best.score:.1f}); weakest on "
        f"{rubric.criteria[worst.criterion].title} ({worst.score:.1f}): {worst.feedback}"
    )
