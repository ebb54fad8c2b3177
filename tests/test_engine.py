"""The engine in process, with the real language model."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import Workspace

from mascot.adapters import adapter_hash
from mascot.dialogue.checks import check_reply
from mascot.dialogue.render import speaker_messages
from mascot.dialogue.types import PERSON, Turn
from mascot.engines.generate import generate
from mascot.engines.transformers import TransformersEngine
from mascot.engines.types import Adapter, Request, Sampling
from mascot.errors import DataError
from mascot.journal import Journal
from mascot.personas import load_persona

pytestmark = pytest.mark.slow

SAID = (
    "The dog came home!",
    "I dropped the tray at the wedding, and everybody clapped while I picked up the glasses.",
    "My sister moved to Lisbon last week and the flat is so quiet that I leave the radio on all night now.",
)
GREEDY = Sampling(max_tokens=12, temperature=0)
DRAWN = Sampling(max_tokens=12, temperature=0.9, min_p=0.05)


@pytest.fixture(scope="module")
def engine(base_models: Path) -> TransformersEngine:
    return TransformersEngine(base_models / "policy", batch_size=16)


@pytest.fixture(scope="module")
def adapters(smoke: Workspace) -> list[Adapter]:
    base = TransformersEngine(smoke.root / "models/base/policy", 1).base
    folders = [smoke.root / "models/sft/support" / name for name in ("anchor", "catalyst")]
    return [Adapter(folder.name, folder, adapter_hash(folder, base)) for folder in folders]


@pytest.fixture(scope="module")
def requests(smoke: Workspace) -> list[Request]:
    persona = load_persona(smoke.root / "data/personas/support/anchor.yaml")
    return [
        Request(str(number), tuple(speaker_messages(persona, [Turn(PERSON, text)])), GREEDY, seed=1) for number, text in enumerate(SAID)
    ]


def answers(engine: TransformersEngine, requests: list[Request]) -> dict[str, list[str]]:
    batches = engine.plan(requests)
    found = {}
    for position, batch in engine.run(batches):
        for request, completions in zip(batches[position], batch, strict=True):
            found[request.id] = [completion.text for completion in completions]
    return found


def test_reading_prompts_once_gives_what_plain_generate_gives(engine: TransformersEngine, requests: list[Request]) -> None:
    """Shared beginnings, padding in the middle and repeated rows change nothing: greedy answers equal one `generate` a prompt."""
    together = answers(engine, [replace(request, n=2) for request in requests])
    for request in requests:
        ids = torch.tensor([engine.prompt_ids(request)])
        plain = engine.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, pad_token_id=0)
        text = engine.tokenizer.decode([token for token in plain[0, ids.shape[1] :].tolist() if token != engine.tokenizer.eos_token_id])
        assert together[request.id] == [text, text]


def test_a_message_order_does_not_change_the_batches(engine: TransformersEngine, requests: list[Request]) -> None:
    planned = engine.plan(requests)
    assert [sorted(one.id for one in batch) for batch in planned] == [["0", "1", "2"]]
    assert [one.id for one in engine.plan(requests[::-1])[0]] == [one.id for one in planned[0]]


def test_batches_hold_no_more_sequences_than_asked(engine: TransformersEngine, requests: list[Request]) -> None:
    batches = engine.plan([replace(request, n=8) for request in requests])
    assert [sum(one.n for one in batch) for batch in batches] == [16, 8]


def test_systems_with_different_adapters_get_the_same_draws(requests: list[Request], adapters: list[Adapter]) -> None:
    """Else their differences would hold the luck of the draw. What the journal keeps them under differs."""
    one, other = (replace(requests[0], adapter=adapter) for adapter in (None, adapters[0]))
    assert one.draw() == other.draw() and one.determinants() != other.determinants()
    assert replace(one, seed=one.seed + 1).draw() != one.draw()


def test_adapters_leave_no_trace(engine: TransformersEngine, requests: list[Request], adapters: list[Adapter]) -> None:
    """Bare, anchor, catalyst, anchor, bare again: the same adapter gives the same answers, and the bare model is bare again."""
    order: list[Adapter | None] = [None, adapters[0], adapters[1], adapters[0], None]
    said = [answers(engine, [replace(request, adapter=adapter) for request in requests]) for adapter in order]
    assert said[0] == said[4] and said[1] == said[3]
    assert len({json.dumps(one, sort_keys=True) for one in said[:3]}) == 3


def test_generation_stops_at_the_end_token_and_padding_is_another_one(
    engine: TransformersEngine, requests: list[Request], adapters: list[Adapter]
) -> None:
    tokenizer = engine.tokenizer
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert (engine.model.generation_config.eos_token_id, engine.model.generation_config.pad_token_id) == (2, 0)
    long = Sampling(max_tokens=120, temperature=0.7)
    batches = engine.plan([replace(request, sampling=long, n=4, adapter=adapters[0]) for request in requests])
    completions = [one for _, batch in engine.run(batches) for answer in batch for one in answer]
    stopped = [one for one in completions if one.finish_reason == "stop"]
    assert stopped
    for one in stopped:
        assert one.token_ids is not None and one.token_ids[-1] == 2 and 0 not in one.token_ids
        assert "<|" not in one.text


def test_training_meets_the_same_tokens_as_generation(engine: TransformersEngine, requests: list[Request]) -> None:
    """The prompt of a request is a prefix of the rendering that SFT trains on."""
    prompt = engine.prompt_ids(requests[1])
    whole = engine.tokenizer.apply_chat_template([*requests[1].messages, {"role": "assistant", "content": "Oh."}], tokenize=False)
    assert engine.tokenizer(whole, add_special_tokens=False)["input_ids"][: len(prompt)] == prompt


def test_a_prompt_over_the_window_names_its_context(engine: TransformersEngine, requests: list[Request]) -> None:
    long = replace(requests[0], id="too-long", messages=({"role": "user", "content": "word " * 9000},))
    with pytest.raises(DataError, match="too-long: the prompt has"):
        engine.plan([requests[1], long])


def test_constraints_hold(engine: TransformersEngine, requests: list[Request]) -> None:
    """With left-out and repeated rows in one batch, every sample matches the grammar."""
    regex = [replace(request, regex="(yes|no), [0-9]{3}", n=3, sampling=DRAWN) for request in requests]
    schema = json.dumps({"type": "object", "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 5}}, "required": ["score"]})
    typed = [replace(request, id=f"{request.id}s", json_schema=schema, n=2, sampling=replace(DRAWN, max_tokens=24)) for request in requests]
    for texts in answers(engine, regex).values():
        for text in texts:
            answer, number = text.split(", ")
            assert answer in ("yes", "no") and len(number) == 3 and number.isdigit()
    for texts in answers(engine, typed).values():
        assert all(json.loads(text)["score"] in range(1, 6) for text in texts)


def test_samples_are_many_and_the_seed_makes_them_again(engine: TransformersEngine, requests: list[Request], tmp_path: Path) -> None:
    asked = [replace(request, n=4, sampling=DRAWN) for request in requests]
    first = generate(engine, asked, Journal(tmp_path / "a"), "first")
    again = generate(engine, asked, Journal(tmp_path / "b"), "again")
    other = generate(engine, [replace(request, seed=2) for request in asked], Journal(tmp_path / "c"), "other")
    assert first == again != other
    assert len({one.text for one in first["2"]}) > 1


def test_the_journal_answers_for_the_model(engine: TransformersEngine, requests: list[Request], base_models: Path, tmp_path: Path) -> None:
    """A second run needs no model at all: it is not even loaded."""
    first = generate(engine, requests, Journal(tmp_path / "journal"), "first")
    fresh = TransformersEngine(base_models / "policy", batch_size=16)
    assert generate(fresh, requests, Journal(tmp_path / "journal"), "second") == first
    assert "model" not in vars(fresh)


def test_each_turn_of_a_chat_only_adds_to_what_was_rendered_before(engine: TransformersEngine, smoke: Workspace) -> None:
    """Three turns, the first reply with a thinking block (pitfall 12): each rendering, in tokens, is a prefix of the next."""
    persona = load_persona(smoke.root / "data/personas/support/anchor.yaml")
    turns: list[Turn] = []
    rendered: list[list[int]] = []
    for said, raw in zip(SAID, ("<think>who is that?</think>What a relief.", "It must have stung.", "So quiet."), strict=True):
        turns.append(Turn(PERSON, said))
        messages = tuple(speaker_messages(persona, turns))
        rendered.append(engine.prompt_ids(Request("r", messages, GREEDY, seed=1)))
        turns.append(Turn(persona.name, check_reply(raw, persona.name).text))
    assert "who is that" not in engine.tokenizer.decode(rendered[2])
    for shorter, longer in itertools.pairwise(rendered):
        assert longer[: len(shorter)] == shorter
