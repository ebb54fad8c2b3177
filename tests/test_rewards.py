"""The reward functions, as TRL calls them."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mascot.dialogue.types import Turn
from mascot.personas import Persona
from mascot.rewards.functions import conciseness_reward, format_reward, persona_reward, reader, relevance_reward

TURNS = [{"speaker": "person", "text": "I lost my keys."}]
END, OTHER_END = 2, 3


class Letters:
    """A tokenizer of single characters, whose end tokens are spelt out."""

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join({END: "<|im_end|>", OTHER_END: "<|endoftext|>"}.get(token, chr(token)) for token in ids)


READ = reader(Letters(), {END, OTHER_END}, "Anchor")


def called(reward: Any, texts: Sequence[str], end: int | None = END, turns: Any = None) -> list[float]:
    """What TRL passes: message lists without special tokens, token ids, and the columns of the rows."""
    return reward(
        prompts=[[{"role": "user", "content": "I lost my keys."}]] * len(texts),
        completions=[[{"role": "assistant", "content": "not what is read"}] for _ in texts],
        completion_ids=[[*map(ord, text), *([end] if end else [])] for text in texts],
        turns=turns or [TURNS] * len(texts),
        context_id=["c"] * len(texts),
        trainer_state=SimpleNamespace(global_step=0),
        log_metric=lambda name, value: None,
    )


@pytest.mark.parametrize(
    ("text", "end", "value"),
    [
        ("That hurts.", END, 1.0),
        ("That hurts.", OTHER_END, 1.0),
        ("That hurts, and", None, 0.0),  # cut off by the length limit
        ("", END, 0.0),
        ("Anchor: That hurts.", END, 0.0),  # its own name
        ("That hurts.\nperson: Yes.", END, 0.0),  # somebody else's line
        ("<think>hm</think>That hurts.", END, 0.0),
        ("That hurts.<|im_start|>user", END, 0.0),  # a template token, which TRL's text would not show
    ],
)
def test_format_is_for_a_whole_reply_that_needs_no_mending(text: str, end: int | None, value: float) -> None:
    assert called(format_reward(READ, {END, OTHER_END}), [text], end) == [value]


@pytest.mark.parametrize(("words", "value"), [(10, 0.0), (20, 0.0), (5, -0.5), (0, -1.0), (25, -0.25), (40, -1.0), (90, -1.0)])
def test_conciseness_is_a_band(words: int, value: float) -> None:
    assert called(conciseness_reward(READ, 10, 20), [" ".join(["word"] * words)]) == pytest.approx([value])


def test_without_a_lower_bound_conciseness_is_one_sided() -> None:
    assert called(conciseness_reward(READ, 0, 20), ["Yes.", "word " * 30]) == pytest.approx([0.0, -0.5])


def test_the_persona_reward_reads_the_checked_reply_in_its_dialogue() -> None:
    seen = []

    class Model:
        def score(self, dialogues: Sequence[tuple[Sequence[Turn], str]]) -> list[float]:
            seen.extend(dialogues)
            return [0.5] * len(dialogues)

    model: Any = Model()
    assert called(persona_reward(READ, model), ["Anchor: That hurts.", "person: Me too."]) == [0.5, -3.0]
    assert seen[0] == ((Turn("person", "I lost my keys."),), "That hurts.")


def test_relevance_is_scaled_by_the_written_replies() -> None:
    """On words as dimensions: a reply to its own context gets about what a written one gets, one to another context about 0."""
    matters = ["keys", "dog", "exam", "boat"]

    def encode(texts: Sequence[str]) -> np.ndarray:
        counts = np.array([[1e-3 + text.count(matter) for matter in matters] for text in texts])
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)

    written = [{"turns": [{"person": f"My {matter}!"}], "reply": f"Oh, the {matter}."} for matter in matters]
    lines = {"exemplars": ["One.", "Two.", "Three."], "counter_exemplars": ["Four.", "Five.", "Six."]}
    persona = Persona.model_validate({"name": "Anchor", "role": "listener", "voice": "Calm.", "replies": written, **lines})
    pool = [(Turn("person", f"My {matter}!"),) for matter in matters]
    reward = relevance_reward(READ, persona, encode, pool)
    own, other = called(reward, ["The keys, again.", "The boat, again."], turns=[[{"speaker": "person", "text": "My keys!"}]] * 2)
    assert own == pytest.approx(1.0, abs=0.05) and other == pytest.approx(0.0, abs=0.05)


def test_every_reward_has_the_name_that_its_weight_and_curve_have() -> None:
    model: Any = None
    made = [persona_reward(READ, model), format_reward(READ, {END}), conciseness_reward(READ, 1, 2)]
    assert [reward.__name__ for reward in made] == ["persona", "format", "conciseness"]


def test_a_launch_configuration_must_say_how_many_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mascot.errors import ConfigurationError
    from mascot.training.launch import launched

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"launch/nine\.yaml: there is no such file"):
        launched("nine", "speaker", "support-anchor")
    (tmp_path / "launch").mkdir()
    for text in ("num_processes: many\n", "- 2\n", "num_processes: 0\n"):
        (tmp_path / "launch/nine.yaml").write_text(text)
        with pytest.raises(ConfigurationError, match=r"launch/nine\.yaml: `num_processes` must be a number from 1 on"):
            launched("nine", "speaker", "support-anchor")
    (tmp_path / "launch/nine.yaml").write_text("num_processes: 1\n")
    assert launched("nine", "speaker", "support-anchor") is False
