"""Contexts: splits that share no text, samples of them, and the sample corpora as they are shipped."""

from collections import Counter
from pathlib import Path

import pytest

from mascot.contexts import sample, separate
from mascot.corpora.sample import load
from mascot.dialogue.checks import same_text
from mascot.dialogue.types import Context, Turn, contexts_from_frame, contexts_to_frame
from mascot.errors import ConfigurationError, DataError

CORPORA = Path(__file__).parents[1] / "data/sample"
SPLITS = ("train", "validation", "test", "out_of_domain")


def context(id: str, split: str, *texts: str, label: str = "sad") -> Context:
    turns = tuple(Turn(("person", "listener")[place % 2], text) for place, text in enumerate(texts or (f"text of {id}",)))
    return Context(id, "support", split, label, "none", turns)


def entry(id: str = "one", split: str = "train", text: str = "Hello.", **more: str) -> str:
    fields = {"id": id, "label": "sad", "split": split, "situation": "None."} | more
    lines = [f"{key}: {value}" for key, value in fields.items()]
    return "- " + "\n  ".join([*lines, "turns:", f'  - person: "{text}"']) + "\n"


def test_repeats_in_one_split_are_dropped_and_counted():
    rest, counts = separate(
        [context("a", "train", "My cat ran off."), context("b", "train", "my CAT  ran off"), context("c", "train", "Another.")]
    )
    assert [one.id for one in rest] == ["a", "c"]
    assert (counts["duplicates_dropped"], counts["leaks_dropped"]) == (1, 0)
    assert counts["contexts"] == {"train": 2, "validation": 0, "test": 0, "out_of_domain": 0}


@pytest.mark.parametrize(
    ("kept", "dropped"),
    [("test", "train"), ("test", "validation"), ("test", "out_of_domain"), ("out_of_domain", "train"), ("validation", "train")],
)
def test_of_a_text_in_two_splits_the_tested_copy_stays(kept, dropped):
    """Pitfall 35, whichever copy comes first in the corpus."""
    one, other = context("a", kept, "My cat ran off."), context("b", dropped, "My cat ran off!")
    for contexts in ([one, other], [other, one]):
        rest, counts = separate(contexts)
        assert rest == [one]
        assert (counts["duplicates_dropped"], counts["leaks_dropped"]) == (0, 1)


def test_a_text_in_three_splits_leaks_twice():
    rest, counts = separate(
        [context("a", "train", "x"), context("b", "train", "x"), context("c", "validation", "x"), context("d", "test", "x")]
    )
    assert [one.id for one in rest] == ["d"]
    assert counts["leaks_dropped"] + counts["duplicates_dropped"] == 3
    assert counts["leaks_dropped"] == 3


def test_all_that_was_said_counts_and_order_is_kept():
    contexts = [
        context("z", "train", "Hi.", "Yes?", "Cat."),
        context("a", "test", "Hi.", "Yes?", "Dog."),
        context("m", "validation", "Hi."),
    ]
    rest, counts = separate(contexts)
    assert rest == contexts
    assert counts["duplicates_dropped"] == counts["leaks_dropped"] == 0


def test_labels_are_counted_over_what_is_left():
    _, counts = separate(
        [context("a", "test", "x", label="sad"), context("b", "train", "x", label="glad"), context("c", "train", "y", label="sad")]
    )
    assert counts["labels"] == 1


def test_a_larger_sample_only_adds_to_a_smaller_one():
    contexts = [context(f"{split}-{number}", split) for number in range(30) for split in SPLITS]
    before: set[str] = set()
    for size in (1, 5, 12, 30):
        ids = [one.id for one in sample(contexts, {"train": size, "test": 2}, seed=7)]
        train = {id for id in ids if id.startswith("train")}
        assert len(train) == size and len(ids) == size + 2
        assert before <= train
        before = train


def test_a_sample_depends_on_the_seed_alone():
    contexts = [context(f"c{number}", "train") for number in range(40)]
    drawn = sample(contexts, {"train": 10}, seed=1)
    assert sample(contexts[::-1], {"train": 10}, seed=1) == drawn
    assert sample(contexts, {"train": 10}, seed=2) != drawn
    with_others = [*contexts, *(context(f"t{number}", "test") for number in range(9))]
    assert sample(with_others, {"test": 3, "train": 10}, seed=1)[3:] == drawn


def test_a_sample_takes_what_there_is():
    contexts = [context("a", "train"), context("b", "train"), context("c", "test")]
    assert {one.id for one in sample(contexts, {"train": 99}, seed=1)} == {"a", "b"}
    assert sample(contexts, {"validation": 5}, seed=1) == []
    assert sample(contexts, {"train": 0}, seed=1) == []


def test_contexts_survive_their_table():
    contexts = [context("a", "train", "Hi.", "Yes?"), context("b", "test")]
    assert contexts_from_frame(contexts_to_frame(contexts)) == contexts
    assert contexts_to_frame([]).schema == contexts_to_frame(contexts).schema


def test_files_are_read_in_order_of_name_and_place(tmp_path):
    (tmp_path / "b.yaml").write_text(entry("three"))
    (tmp_path / "a.yaml").write_text(entry("two") + entry("one"))
    (tmp_path / "c.yaml").write_text("")
    (tmp_path / "notes.txt").write_text("not a corpus")
    loaded = load(tmp_path, "support")
    assert [one.id for one in loaded] == ["two", "one", "three"]
    assert loaded[0] == Context("two", "support", "train", "sad", "None.", (Turn("person", "Hello."),))


@pytest.mark.parametrize("files", [{}, {"a.yaml": ""}, {"a.yaml": "[]\n"}, {"a.txt": entry()}])
def test_an_empty_corpus_is_an_error_that_names_the_folder(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match="empty") as caught:
        load(tmp_path, "support")
    assert str(tmp_path) in str(caught.value)


def test_a_missing_folder_is_an_empty_corpus(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        load(tmp_path / "nowhere", "support")


def test_an_id_used_twice_names_both_files(tmp_path):
    (tmp_path / "a.yaml").write_text(entry("one"))
    (tmp_path / "b.yaml").write_text(entry("one", text="Other."))
    with pytest.raises(DataError) as caught:
        load(tmp_path, "support")
    for part in ("a.yaml", "b.yaml", "`one`"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (entry(split="training"), "0.split"),
        (entry(id="Has Spaces"), "0.id"),
        (entry(lable="sad"), "did you mean `label`"),
        (entry().replace("  situation: None.\n", ""), "`0.situation` is missing"),
        (entry(text=""), "0.turns.0"),
        (entry().replace('- person: "Hello."', '- person: "Hello."\n      listener: "Hi."'), "0.turns.0"),
        (entry().replace('"Hello."', "42"), "0.turns.0.person"),
        ("one: two\n", "(whole file)"),
        ("- [unclosed\n", "not valid YAML"),
        ("# only a comment\n", "(whole file)"),
    ],
)
def test_a_malformed_file_is_named_with_its_key(tmp_path, text, expected):
    (tmp_path / "good.yaml").write_text(entry("good"))
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, "support")
    assert "bad.yaml" in str(caught.value)
    assert expected in str(caught.value)


@pytest.fixture(scope="module", params=["support", "meetings"])
def shipped(request):
    return load(CORPORA / request.param, request.param)


def test_shipped_support_has_what_the_readme_promises():
    contexts = load(CORPORA / "support", "support")
    assert Counter(one.split for one in contexts) == {"train": 48, "validation": 16, "test": 32, "out_of_domain": 16}
    labels = Counter(one.label for one in contexts if one.split != "out_of_domain")
    assert len(labels) == 32 and set(labels.values()) == {3}
    assert {one.label for one in contexts if one.split == "test"} == set(labels)
    assert not {one.label for one in contexts if one.split == "out_of_domain"} & set(labels)


def test_shipped_meetings_have_what_the_readme_promises():
    contexts = load(CORPORA / "meetings", "meetings")
    assert len(contexts) == 80
    assert Counter(one.split for one in contexts)["test"] == 32
    assert {one.id for one in contexts if not one.turns[-1].text.endswith("?")} == set()
    assert all(len({turn.speaker for turn in one.turns}) >= 2 for one in contexts)


def test_shipped_splits_share_no_text(shipped):
    rest, counts = separate(shipped)
    assert rest == shipped
    assert counts["duplicates_dropped"] == counts["leaks_dropped"] == 0


def test_no_shipped_turn_stands_in_two_splits(shipped):
    """Stricter than whole contexts: not even a single turn is shared."""
    where: dict[str, set[str]] = {}
    for one in shipped:
        for turn in one.turns:
            where.setdefault(same_text(turn.text), set()).add(one.split)
    assert {text for text, splits in where.items() if len(splits) > 1} == set()
