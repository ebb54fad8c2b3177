"""What people write by hand (params, personas, rubrics, evaluation lines): each mistake is named with its file and key."""

import re
from pathlib import Path
from typing import Literal

import pytest
import yaml
from pydantic import Field

from mascot.errors import ConfigurationError
from mascot.params import Speaker, read_section
from mascot.personas import Text, as_turns, load_persona
from mascot.rubrics import load_rubric
from mascot.yamlfiles import Strict, load_yaml, read_yaml
from stages import candidates, pairs
from stages.__main__ import STAGES, AllParams, validate_params

ROOT = Path(__file__).parents[1]
PERSONAS = sorted((ROOT / "data/personas").glob("*/*.yaml"))
RUBRICS = sorted((ROOT / "data/rubrics").glob("*.yaml"))
EVALUATION = sorted((ROOT / "data/evaluation").glob("*/*.yaml"))


def name(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


class Inner(Strict):
    rate: float
    steps: int


class Outer(Strict):
    title: str
    inner: Inner
    several: dict[str, Inner] = Field(default_factory=dict)


def refused(path: Path, kind: object, text: str) -> str:
    """The message with which a file of that text is refused; it always names the file."""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_yaml(path, kind)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "some.yaml"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("title: t\ninner: {rate: 1, steps: 2, stepz: 3}\n", ["`inner.stepz`", "did you mean `steps`?"]),
        ("title: t\ninner: {rate: 1, steps: 2, colour: red}\n", ["`inner.colour`", "known keys: rate, steps"]),
        ("titel: t\ntitle: t\ninner: {rate: 1, steps: 2}\n", ["`titel`", "did you mean `title`?"]),
        ("title: t\ninner: {rate: 1, steps: 2}\nseveral: {a: {rate: 1, steps: 2, rat: 2}}\n", ["`several.a.rat`", "did you mean `rate`?"]),
        ("title: t\ninner: {rate: 1}\n", ["`inner.steps` is missing"]),
        ("title: t\n", ["`inner` is missing"]),
        ("title: t\ninner: {rate: 1, steps: many}\n", ["`inner.steps`", "integer", "'many'"]),
        ("title: t\ninner: {rate: 1, steps: 2.5}\n", ["`inner.steps`", "2.5"]),
        ("title: t\ninner: {rate: .nan, steps: 2}\n", ["`inner.rate`", "finite"]),
        ("title: t\ninner: {rate: .inf, steps: 2}\n", ["`inner.rate`", "finite"]),
        ("title: 42\ninner: {rate: 1, steps: 2}\n", ["`title`", "string", "42"]),
        ("title: t\ninner: [rate, steps]\n", ["`inner`"]),
        ("title: t\ninner:\n", ["`inner`", "None"]),
        ("just text\n", ["(whole file)"]),
        ("", ["(whole file)"]),
    ],
)
def test_a_wrong_value_is_named_with_its_key(file, text, parts):
    message = refused(file, Outer, text)
    for part in parts:
        assert part in message


def test_all_mistakes_of_a_file_are_told_at_once(file):
    lines = refused(file, Outer, "titel: t\ninner: {rate: x}\n").splitlines()
    assert len(lines) == 4
    assert all(line.startswith(f"{file}: ") for line in lines)
    assert {re.search(r"`([\w.]+)`", line).group(1) for line in lines} == {"titel", "title", "inner.rate", "inner.steps"}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("title: t\ninner: {rate: 1, steps: 2}\ntitle: u\n", "title"),
        ("title: t\ninner: {rate: 1, steps: 2, rate: 3}\n", "rate"),
        ("title: t\ninner: {rate: 1, steps: 2}\nseveral:\n  a: {rate: 1, steps: 2}\n  a: {rate: 1, steps: 2}\n", "a"),
    ],
)
def test_a_repeated_key_is_an_error_with_its_line(file, text, key):
    message = refused(file, Outer, text)
    assert f"'{key}' is there twice" in message and "line" in message


@pytest.mark.parametrize("text", ["title: {{name}}\n", "title: t\n? [a, b]\n: c\n", "[a]: b\n"])
def test_a_list_or_mapping_as_a_key_is_an_error_and_not_a_crash(file, text):
    """Unquoted text that begins with a bracket is read as one."""
    assert "line" in refused(file, Outer, text)


@pytest.mark.parametrize("text", ["title: 2024-13-45\n", "title: 2024-02-30 10:00:00\n", "title: 0x_\n"])
def test_text_that_yaml_takes_for_an_impossible_date_or_number_is_an_error_and_not_a_crash(file, text):
    assert "not valid YAML" in refused(file, Outer, text)


@pytest.mark.parametrize(
    "content", [b"title: [unclosed\n", b"a:\n\t- b\n", b"a: \x00\n", b"title: caf\xe9\n", b"%&!\n", b"!!python/object:os.system x\n"]
)
def test_what_is_no_yaml_or_no_utf8_is_named(file, content):
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=re.escape(str(file))):
        read_yaml(file)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    for path in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(ConfigurationError, match=re.escape(str(path))):
            read_yaml(path)


@pytest.mark.parametrize("written", ["1e-3", "1.0e-3", "0.001", "1E-3"])
def test_numbers_that_yaml_reads_as_text_are_numbers(file, written):
    file.write_text(f"rate: {written}\nsteps: 2\n")
    assert load_yaml(file, Inner).rate == 0.001


def test_text_that_is_no_number_is_refused(file):
    message = refused(file, Inner, "rate: 1e-3x\nsteps: 2\n")
    assert "`rate`" in message and "number" in message and "1e-3x" in message


# params.yaml


@pytest.fixture
def params(tmp_path, monkeypatch):
    """The committed `params.yaml` in a folder of its own: `params(change)` writes it with a change made to its values."""
    monkeypatch.chdir(tmp_path)
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))

    def write(change=lambda values: None) -> None:
        change(values)
        Path("params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")

    return write


def refused_params() -> str:
    with pytest.raises(ConfigurationError) as caught:
        validate_params()
    assert "params.yaml" in str(caught.value)
    return str(caught.value)


def test_the_committed_params_are_valid(params):
    params()
    valid = validate_params()
    assert {key for key in valid.speakers} >= {"support-anchor", "meetings-critic"}
    assert valid.candidates.k >= 2


def test_every_stage_has_its_section(params):
    """One name everywhere: a stage, its section of params, its model."""
    sections = set(AllParams.model_fields)
    assert set(STAGES) <= sections


def test_every_speaker_of_the_committed_params_has_its_files(monkeypatch):
    monkeypatch.chdir(ROOT)
    for speaker in validate_params().speakers.values():
        assert load_persona(speaker.card).name
        assert speaker.examples.is_file()


def set_key(*path: str, to: object):
    def change(values: dict) -> None:
        for key in path[:-1]:
            values = values[key]
        values[path[-1]] = to

    return change


def rename_speaker(key: str, other: str, **fields: str):
    def change(values: dict) -> None:
        values["speakers"][other] = values["speakers"].pop(key) | fields

    return change


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (set_key("candidates", "k", to=1), ["candidates.k", "greater than or equal to 2", "got 1"]),
        (set_key("candidates", "from_base", to=4), ["candidates", "`from_base` 4 must be under `k` 4"]),
        (set_key("candidates", "init", to="base"), ["candidates", "`from_base` must be 0 with `init: base`"]),
        (set_key("speaker", "words", "low", to=99), ["speaker.words", "`low` 99 is above `high`"]),
        (set_key("speaker", "weights", "persna", to=1.0), ["speaker.weights.persna", "did you mean `persona`?"]),
        (set_key("speaker", "group", to=1), ["speaker.group"]),
        (set_key("reward", "launch", to="../one"), ["reward.launch", "../one"]),
        (set_key("speakers", "support-anchor", "reward", to="critic"), ["`speakers.support-anchor.reward`", "no `support-critic`"]),
        (set_key("reward", "base", to="reward"), ["`base.reward` is missing"]),
        (set_key("alignment", "contexts", to={"train": 3}), ["alignment.contexts.train"]),
        (set_key("candidates", "k", to="four"), ["candidates.k", "four"]),
        (set_key("candidates", "engine", to="vllm2"), ["candidates.engine", "'transformers'"]),
        (set_key("candidates", "contexts", to={"train": -1}), ["candidates.contexts.train"]),
        (set_key("candidates", "contexts", to={"test": 8}), ["candidates.contexts.test"]),
        (set_key("candidates", "sampling", "temperature", to=0), ["candidates.sampling.temperature"]),
        (set_key("sft", "lora", "target_modules", to=[]), ["sft.lora.target_modules"]),
        (set_key("speakers", to={}), ["`speakers`"]),
        (set_key("base", to={"policy": {"reference": "path:x"}}), ["`base.encoder` is missing"]),
        (set_key("candidates", "sampling", "temprature", to=1.0), ["candidates.sampling.temprature", "did you mean `temperature`?"]),
        (set_key("candidates", "sampling", "top_p", to=0.0), ["candidates.sampling.top_p"]),
        (set_key("candidates", "contexts", to={}), ["candidates.contexts"]),
        (set_key("candidates", "contexts", to={"dev": 3}), ["candidates.contexts.dev"]),
        (set_key("pairs", "margin", to=-0.5), ["pairs.margin"]),
        (set_key("pairs", "margin", to="half"), ["pairs.margin", "half"]),
        (set_key("pairs", "margn", to=0.5), ["pairs.margn", "did you mean `margin`?"]),
        (set_key("pair", to={"margin": 0.5}), ["`pair`", "did you mean `pairs`?"]),
        (set_key("speakers", "support-anchor", "person", to="anchor"), ["speakers.support-anchor.person", "did you mean `persona`?"]),
        (set_key("speakers", "support-anchor", "persona", to="../anchor"), ["speakers.support-anchor.persona"]),
        (rename_speaker("support-anchor", "anchor"), ["`speakers.anchor`", "`support-anchor`"]),
        (
            rename_speaker("support-anchor", "clinic-anchor", domain="clinic"),
            ["`speakers.clinic-anchor`", "`clinic`", "contexts"],
        ),
        (set_key("sft", "learning_rate", to="fast"), ["sft.learning_rate", "fast"]),
        (set_key("contexts", "support", "corpus", to="empathetic"), ["contexts.support.corpus"]),
        (lambda values: values.pop("pairs"), ["`pairs` is missing"]),
        (lambda values: values["candidates"].pop("seed"), ["`candidates.seed` is missing"]),
    ],
)
def test_a_mistake_in_params_is_named_with_its_key(params, change, parts):
    params(change)
    message = refused_params()
    for part in parts:
        assert part in message


def test_a_repeated_section_of_params_is_an_error(params):
    params()
    with Path("params.yaml").open("a") as file:
        file.write("pairs: {margin: 1.0}\n")
    assert "'pairs' is there twice" in refused_params()


def test_a_rate_written_the_pyyaml_way_is_read_as_a_number(params):
    params(set_key("sft", "learning_rate", to="1e-3"))
    assert "learning_rate: 1e-3\n" in Path("params.yaml").read_text()
    assert validate_params().sft.learning_rate == 0.001


def test_params_that_are_not_there_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "there is no params.yaml here" in refused_params()


def test_read_section_names_what_there_is(params):
    params()
    with pytest.raises(ConfigurationError, match=r"params\.yaml: `support-ancor` is not in speakers.*support-anchor"):
        read_section(Speaker, "speakers", "support-ancor")
    with pytest.raises(ConfigurationError, match=r"params\.yaml: `pears` is not in the file.*pairs"):
        read_section(pairs.Params, "pears")
    with pytest.raises(ConfigurationError, match=r"`x` is not in pairs\.margin"):
        read_section(pairs.Params, "pairs", "margin", "x")


def test_read_section_names_file_section_and_key(params):
    params(set_key("candidates", "k", to=1))
    with pytest.raises(ConfigurationError, match=r"params\.yaml: candidates: `k`"):
        read_section(candidates.Params, "candidates")


def test_a_speaker_knows_where_its_artifacts_are(params):
    params()
    speaker = validate_params().speakers["support-anchor"]
    assert speaker.artifact("data/pairs", ".parquet") == Path("data/pairs/support/anchor.parquet")
    assert speaker.artifact("models/sft") == Path("models/sft/support/anchor")


# personas and rubrics

PERSONA = {
    "name": "Anchor",
    "role": "listener",
    "voice": "Calm.",
    "exemplars": ["One.", "Two.", "Three."],
    "counter_exemplars": ["Four.", "Five.", "Six."],
    "replies": [{"turns": [{"person": "Hi."}], "reply": "Hello."}, {"turns": [{"person": "Bye."}], "reply": "So long."}],
}


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda p: p.pop("exemplars"), ["`exemplars` is missing"]),
        (set_key("exemplars", to=[]), ["`exemplars`", "at least 3"]),
        (set_key("exemplars", to=["One.", "Two.", "  "]), ["`exemplars.2`"]),
        (set_key("exemplars", to=["One.", "Two.", "One."]), ["`exemplars.2`", "repeats"]),
        (set_key("counter_exemplars", to=["One.", "One.", "Two."]), ["`counter_exemplars.1`", "repeats"]),
        (set_key("replies", to=PERSONA["replies"][:1]), ["`replies`", "at least 2"]),
        (
            set_key("replies", to=[{"turns": [{"person": "Hi.", "listener": "Yes?"}], "reply": "Hello."}] * 2),
            ["`replies.0.turns.0`", "one `speaker: text` pair"],
        ),
        (set_key("replies", to=[{"turns": [{}], "reply": "Hello."}] * 2), ["`replies.0.turns.0`", "one `speaker: text` pair"]),
        (set_key("replies", to=[{"turns": [], "reply": "Hello."}] * 2), ["`replies.0.turns`"]),
        (set_key("replies", to=[{"turns": [{"person": "Hi."}], "replay": "Hello."}] * 2), ["`replies.0.replay`", "did you mean `reply`?"]),
        (set_key("replies", to=[{"turns": [{"person": 42}], "reply": "Hello."}] * 2), ["`replies.0.turns.0.person`", "42"]),
        (set_key("counter_examples", to=["x"]), ["`counter_examples`", "did you mean `counter_exemplars`?"]),
        (set_key("voice", to=""), ["`voice`"]),
    ],
)
def test_a_mistake_in_a_persona_is_named_with_file_and_key(file, change, parts):
    persona = yaml.safe_load(yaml.safe_dump(PERSONA))
    change(persona)
    file.write_text(yaml.safe_dump(persona))
    with pytest.raises(ConfigurationError) as caught:
        load_persona(file)
    for part in (str(file), *parts):
        assert part in str(caught.value)


def test_a_persona_is_read_as_written(file):
    file.write_text(yaml.safe_dump(PERSONA))
    persona = load_persona(file)
    assert persona.model_dump() == PERSONA
    assert [turn.text for turn in persona.replies[0].context] == ["Hi."]
    assert as_turns([{"a": "b"}, {"c": "d"}])[1].speaker == "c"


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (set_key("measure", to="vibes"), ["`criteria.warmth.measure`", "vibes"]),
        (set_key("measure", to="anchors"), ["`criteria.warmth`", "three `high` and three `low`"]),
        (set_key("high", to=["Warm."]), []),
        (set_key("scale", to={1: "bad", 5: "good"}), ["`criteria.warmth.scale`"]),
        (set_key("scale", to={1: "bad", 2: "poor", 3: "fair", 5: "good"}), ["`criteria.warmth.scale.2`"]),
        (set_key("qestion", to="Q?"), ["`criteria.warmth.qestion`", "did you mean `question`?"]),
    ],
)
def test_a_mistake_in_a_rubric_is_named_with_file_and_key(file, change, parts):
    criterion = {"title": "Warmth", "question": "Is it warm?", "scale": {1: "no", 3: "some", 5: "yes"}, "measure": "persona"}
    rubric = {"name": "r", "source": "ours", "criteria": {"warmth": criterion}}
    file.write_text(yaml.safe_dump(rubric))
    assert load_rubric(file).criteria["warmth"].title == "Warmth"
    change(criterion)
    if not parts:  # `high` lines alone, with a measure that has no use for them: as good as a `low` that was forgotten
        criterion["low"] = ["Cold."]
        parts = ["`criteria.warmth`", "alone"]
    file.write_text(yaml.safe_dump(rubric))
    with pytest.raises(ConfigurationError) as caught:
        load_rubric(file)
    for part in (str(file), *parts):
        assert part in str(caught.value)


# what is shipped


def test_all_seven_personas_are_shipped():
    assert {name(path) for path in PERSONAS} >= {
        *("meetings-captain", "meetings-critic", "meetings-logger", "meetings-scribe"),
        *("support-anchor", "support-beacon", "support-catalyst"),
    }


@pytest.mark.parametrize("path", PERSONAS, ids=name)
def test_every_shipped_persona_loads_and_has_24_replies(path):
    persona = load_persona(path)
    assert len(persona.replies) == 24
    assert len({reply.reply for reply in persona.replies}) == 24


@pytest.mark.parametrize("path", RUBRICS, ids=lambda path: path.stem)
def test_every_shipped_rubric_loads(path):
    rubric = load_rubric(path)
    assert rubric.name == path.stem
    assert {criterion.measure for criterion in rubric.criteria.values()} >= {"persona", "relevance"}


def test_every_domain_with_personas_has_a_rubric():
    assert {path.parent.name for path in PERSONAS} == {path.stem for path in RUBRICS}


@pytest.mark.parametrize("path", EVALUATION, ids=name)
def test_every_shipped_evaluation_file_loads_and_is_long_enough(path):
    """By the shape that `EvaluationLines` expects, without importing it and PyTorch. A criterion's two lists count together."""
    if path.stem == "rubric":
        anchors = load_yaml(path, dict[str, dict[Literal["high", "low"], list[Text]]])
        assert set(anchors) == {
            key for key, one in load_rubric(ROOT / "data/rubrics" / f"{path.parent.name}.yaml").criteria.items() if one.measure == "anchors"
        }
        groups = [one["high"] + one["low"] for one in anchors.values()]
    else:
        groups = [load_yaml(path, dict[Literal["lines"], list[Text]])["lines"]]
    for lines in groups:
        assert len(lines) >= 60
        assert len(set(lines)) == len(lines)


def test_evaluation_lines_belong_to_a_persona_or_to_the_generic_assistant():
    """They are optional for a persona; a file of no persona's is a misspelt one."""
    lines = {name(path) for path in EVALUATION if path.stem != "rubric"}
    generic = {"support-generic", "meetings-generic"}
    assert generic <= lines <= {name(path) for path in PERSONAS} | generic


@pytest.mark.parametrize("path", PERSONAS, ids=name)
def test_a_persona_shares_no_line_with_its_evaluation(path):
    """The evaluating judge shares no lines with what trained the reward."""
    persona = load_persona(path)
    written = {*persona.exemplars, *persona.counter_exemplars, *(reply.reply for reply in persona.replies)}
    evaluation = ROOT / "data/evaluation" / path.parent.name / path.name
    lines = load_yaml(evaluation, dict[Literal["lines"], list[Text]])["lines"] if evaluation.exists() else []
    assert written & set(lines) == set()
