"""The two embedded judges against the labelled contrast sets, with the real models."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from contrast_sets import BELOW_EVERY_GOOD, GOOD, SPEAKERS, Labelled, contrast_set
from sklearn.metrics import roc_auc_score

from mascot.corpora import sample
from mascot.dialogue.types import PERSON, Turn
from mascot.errors import DataError
from mascot.journal import Journal
from mascot.judges.classifier import ClassifierJudge, EvaluationLines
from mascot.judges.exemplar import ExemplarJudge
from mascot.judges.judge import judge
from mascot.judges.types import Item, Judge, Verdict
from mascot.personas import load_persona
from mascot.rubrics import load_rubric

pytestmark = pytest.mark.slow

LEAST_AUC = 0.9
# What the evaluating judge may get wrong: pairs of a good reply and a parrot, slogan or gibberish in the wrong order. Its counts of
# words take two of 140 good replies, which share no rare word with what they answer, for slogans or salad.
MOST_WRONG_PAIRS = {"exemplar": 0.0, "classifier": 0.05}


def pool(domain: str) -> list[tuple[Turn, ...]]:
    return [context.turns for context in sample.load(ROOT / "data/sample" / domain, domain) if context.split == "train"]


@pytest.fixture(scope="module")
def judges(base_models: Path) -> dict[tuple[str, str], Judge]:
    opened: dict[tuple[str, str], Judge] = {}
    for domain in ("support", "meetings"):
        rubric = load_rubric(ROOT / "data/rubrics" / f"{domain}.yaml")
        names = {load_persona(path).name: path.stem for path in (ROOT / "data/personas" / domain).glob("*.yaml")}
        lines = EvaluationLines(ROOT / "data/evaluation" / domain)
        opened[domain, "exemplar"] = ExemplarJudge(rubric, base_models / "encoder", base_models / "policy", pool(domain))
        opened[domain, "classifier"] = ClassifierJudge(rubric, lines, names, base_models / "policy", pool(domain))
    return opened


def overall(verdicts: Sequence[Verdict]) -> np.ndarray:
    return np.array([verdict.overall for verdict in verdicts], dtype=float)


def report(title: str, labelled: Sequence[Labelled], verdicts: Sequence[Verdict]) -> None:
    """Print AUC a criterion and the correlations between criteria, for whoever runs pytest with -s or reads a failure."""
    good = np.array([one.kind == GOOD for one in labelled])
    table = np.array([[score.score for score in verdict.scores] for verdict in verdicts], dtype=float)
    names = [score.criterion for score in verdicts[0].scores]
    print(f"\n{title}: AUC overall {roc_auc_score(good, overall(verdicts)):.3f}")
    for place, name in enumerate(names):
        print(f"  {name}: AUC {roc_auc_score(good, table[:, place]):.3f}")
    unflagged = table[[verdict.fault is None for verdict in verdicts]]
    print("  correlations between criteria (replies without a fault):")
    print(np.array2string(np.corrcoef(unflagged.T), precision=2, prefix="  "))


@pytest.mark.parametrize(("domain", "persona"), SPEAKERS)
@pytest.mark.parametrize("name", ["exemplar", "classifier"])
def test_a_judge_tells_good_replies_from_the_rest(judges: dict[tuple[str, str], Judge], domain: str, persona: str, name: str) -> None:
    labelled = contrast_set(domain, persona)
    verdicts = judges[domain, name].score(load_persona(ROOT / "data/personas" / domain / f"{persona}.yaml"), [one.item for one in labelled])
    report(f"{name} {domain}/{persona}", labelled, verdicts)
    kinds, scores = np.array([one.kind for one in labelled]), overall(verdicts)
    assert roc_auc_score(kinds == GOOD, scores) >= LEAST_AUC
    good, bad = scores[kinds == GOOD], scores[np.isin(kinds, BELOW_EVERY_GOOD)]
    wrong = [one.item.reply for one, score in zip(labelled, scores, strict=True) if one.kind in BELOW_EVERY_GOOD and score >= good.min()]
    assert (bad[None, :] >= good[:, None]).mean() <= MOST_WRONG_PAIRS[name], wrong


def test_a_score_does_not_depend_on_its_neighbours(judges: dict[tuple[str, str], Judge]) -> None:
    """Alone, and beside a long neighbour: equal but for the last decimals (pitfall 2)."""
    persona = load_persona(ROOT / "data/personas/support/anchor.yaml")
    items = [one.item for one in contrast_set("support", "anchor")[:6]]
    long = Item(items[0].turns, "The ferry was late again, " * 30)
    for name in ("exemplar", "classifier"):
        opened = judges["support", name]
        alone = [opened.score(persona, [item])[0].overall for item in items]
        beside = [verdict.overall for verdict in opened.score(persona, [long, *items])[1:]]
        assert alone == pytest.approx(beside, abs=2e-3)


def test_feedback_says_what_moved_the_score(judges: dict[tuple[str, str], Judge]) -> None:
    persona = load_persona(ROOT / "data/personas/support/anchor.yaml")
    turns = (Turn(PERSON, "My allotment shed burned down on Sunday, with forty years of tools in it."),)
    replies = [
        "Forty years of tools gone in one Sunday; no wonder the sight of that shed leaves you hollow.",
        turns[0].text,
        "so sad so sad so sad so sad",
    ]
    verdicts = judges["support", "exemplar"].score(persona, [Item(turns, reply) for reply in replies])
    assert [verdict.fault for verdict in verdicts] == [None, "parrots_person", "loop"]
    assert all(score.feedback for verdict in verdicts for score in verdict.scores)
    relevance = next(score for score in verdicts[0].scores if score.criterion == "response_relevance")
    assert "shed" in relevance.feedback and relevance.score is not None and relevance.score > 3
    assert verdicts[1].overall == verdicts[2].overall == 1.0


def test_a_persona_without_evaluation_lines_misses_the_criterion_and_is_not_scored_zero(judges: dict[tuple[str, str], Judge]) -> None:
    persona = load_persona(ROOT / "data/personas/support/anchor.yaml").model_copy(update={"name": "The Newcomer"})
    verdict = judges["support", "classifier"].score(persona, [contrast_set("support", "anchor")[0].item])[0]
    scores = {score.criterion: score.score for score in verdict.scores}
    assert scores["consistency"] is None and verdict.overall is None
    assert all(score is not None for criterion, score in scores.items() if criterion != "consistency")


def test_judgments_come_from_the_journal_the_second_time(base_models: Path, tmp_path: Path) -> None:
    rubric = load_rubric(ROOT / "data/rubrics/support.yaml")
    persona = load_persona(ROOT / "data/personas/support/anchor.yaml")
    items = [one.item for one in contrast_set("support", "anchor")[:5]]
    folders = base_models / "encoder", base_models / "policy"
    first = judge(ExemplarJudge(rubric, *folders, pool("support")), persona, items, Journal(tmp_path / "journal"), "first")
    fresh = ExemplarJudge(rubric, *folders, pool("support"))
    assert judge(fresh, persona, items, Journal(tmp_path / "journal"), "second") == first
    assert "_sentence_encoder" not in vars(fresh)


def test_too_small_a_pool_is_refused(base_models: Path) -> None:
    rubric = load_rubric(ROOT / "data/rubrics/support.yaml")
    with pytest.raises(DataError, match="at least two contexts"):
        ExemplarJudge(rubric, base_models / "encoder", base_models / "policy", pool("support")[:1])


@pytest.mark.parametrize("domain", ["support", "meetings"])
def test_no_two_sample_contexts_resemble_each_other(base_models: Path, domain: str) -> None:
    from sentence_transformers import SentenceTransformer

    contexts = sample.load(ROOT / "data/sample" / domain, domain)
    encoder = SentenceTransformer(str(base_models / "encoder"), device="cpu")
    vectors = encoder.encode([" ".join(turn.text for turn in context.turns) for context in contexts], normalize_embeddings=True)
    closeness = vectors @ vectors.T - np.eye(len(contexts))
    first, second = np.unravel_index(closeness.argmax(), closeness.shape)
    assert closeness.max() <= 0.8, (contexts[first].id, contexts[second].id)
