"""The pipeline as its users run it, on the smoke profile with the real models."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import polars as pl
import pytest
import yaml
from conftest import Workspace

from mascot.adapters import adapter_hash
from mascot.errors import ModelError
from mascot.references import load_base

pytestmark = pytest.mark.slow

CANDIDATES = "data/candidates/support/anchor.parquet"
JUDGMENTS = "data/judgments/support/anchor.parquet"


def metrics(workspace: Workspace, path: str) -> dict:
    return json.loads((workspace.root / "metrics" / path).read_text())


def test_a_second_repro_has_nothing_to_do(smoke: Workspace) -> None:
    assert "up to date" in smoke.run("dvc", "repro").stdout
    assert smoke.run("dvc", "status").stdout.strip() == "Data and pipelines are up to date."
    assert smoke.run("git", "status", "--porcelain").stdout == ""


def test_every_speaker_has_candidates_judgments_and_pairs(smoke: Workspace) -> None:
    params = yaml.safe_load((smoke.root / "params.yaml").read_text())
    for speaker in params["speakers"].values():
        name = f"{speaker['domain']}/{speaker['persona']}"
        candidates = pl.read_parquet(smoke.root / f"data/candidates/{name}.parquet")
        judged = pl.read_parquet(smoke.root / f"data/judgments/{name}.parquet")
        assert candidates.height == sum(params["candidates"]["contexts"].values()) * params["candidates"]["k"]
        from_policy = params["candidates"]["k"] - params["candidates"]["from_base"]
        assert candidates.group_by("context_id", "policy").len().sort("policy")["len"].unique().sort().to_list() == [1, from_policy]
        assert candidates.select("context_id", "sample").equals(judged.select("context_id", "sample"))
        scores = judged.filter(pl.col("status") == "ok")["score"]
        assert scores.len() > 0 and scores.is_between(1, 5).all()
        counts = metrics(smoke, f"pairs/{name}.json")
        assert counts["possible"] == counts["kept"] + counts["tied"] + counts["excluded"]


def test_sft_learns_and_its_curve_is_plotted(smoke: Workspace) -> None:
    learned = metrics(smoke, "sft/support/anchor.json")
    assert learned["validation_loss"] < learned["validation_loss_base"]
    losses = pl.read_csv(smoke.root / "metrics/sft/support/anchor/train/loss.tsv", separator="\t")
    assert losses["step"].to_list() == list(range(1, learned["steps"] + 1))


def test_reward_models_beat_chance_and_say_what_they_are_measured_against(smoke: Workspace) -> None:
    for persona in ("anchor", "catalyst"):
        found = metrics(smoke, f"reward/support/{persona}.json")
        for part in ("accuracy", "length_null"):
            assert (
                0 <= found[part]["low"] <= found[part]["mean"] <= found[part]["high"] <= 1
                and found[part]["n"] == found["pairs"]["validation"]
            )
        assert found["train_accuracy"] > 0.5 and found["weights"] == "full"
        assert (smoke.root / f"models/reward/support/{persona}/reward.json").is_file()


def test_speakers_are_trained_from_sft_and_every_reward_has_its_curve(smoke: Workspace) -> None:
    params = yaml.safe_load((smoke.root / "params.yaml").read_text())["speaker"]
    found = metrics(smoke, "speaker/support/anchor.json")
    assert found["steps"] == params["rollouts"] * params["updates"]
    assert abs(found["kl"]["first"]) < 1e-4
    for reward in params["weights"]:
        values = pl.read_csv(smoke.root / f"metrics/speaker/support/anchor/train/rewards_{reward}_mean.tsv", separator="\t")
        assert values.height == params["rollouts"]
    base = load_base(smoke.root / "models/base/policy")
    trained, start = (adapter_hash(smoke.root / folder / "support/anchor", base) for folder in ("models/speaker", "models/sft"))
    assert trained != start


def test_alignment_compares_three_systems_on_the_same_contexts(smoke: Workspace) -> None:
    params = yaml.safe_load((smoke.root / "params.yaml").read_text())["alignment"]
    rows = pl.read_parquet(smoke.root / "data/alignment/support.parquet")
    replies = params["contexts"]["test"] * params["replies"]
    assert rows.group_by("persona", "system").len()["len"].to_list() == [replies] * 6
    assert rows["split"].unique().to_list() == ["test"]
    by_system = [set(group["context_id"]) for _, group in rows.group_by("persona", "system")]
    assert all(contexts == by_system[0] for contexts in by_system)
    found = metrics(smoke, "alignment/support.json")
    anchor = found["personas"]["anchor"]
    assert found["family"] == 2 and set(anchor["systems"]) == {"base", "sft", "grpo"}
    for measure in ("consistency", "response_relevance", "wellformedness", "recognised", "distinct_2", "words", "self_bleu", "similarity"):
        assert anchor["systems"]["sft"][measure] is not None
        gain = anchor["differences"]["grpo-sft"][measure]
        assert gain["low"] <= gain["mean"] <= gain["high"]
        assert gain["holm"]["p"] >= gain["p"] and gain["holm"]["low"] <= gain["low"]
    mean = rows.filter(pl.col("persona") == "anchor", pl.col("system") == "sft")["score"].mean()
    assert anchor["systems"]["sft"]["score"]["mean"] == pytest.approx(mean, abs=1e-5)


def test_a_reward_model_without_its_head_stops_the_speaker(smoke_copy: Workspace) -> None:
    manifest = smoke_copy.root / "models/reward/support/anchor/reward.json"
    manifest.chmod(0o644)
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"head": ["lost.weight"]}))
    done = smoke_copy.stage("speaker", "support-anchor", check=False)
    assert (
        done.returncode == 1 and "the score head is not among the weights (lost.weight)" in done.stderr and "Traceback" not in done.stderr
    )


def test_another_personas_reward_model_can_train_a_speaker_as_a_control(smoke: Workspace, smoke_copy: Workspace) -> None:
    smoke_copy.edit("params.yaml", "reward: anchor}", "reward: catalyst}")
    assert "Running stage 'speaker@support-anchor'" in smoke_copy.run("dvc", "repro", "--single-item", "speaker@support-anchor").stdout
    path = "metrics/speaker/support/anchor/train/rewards_persona_mean.tsv"
    own, control = ((workspace.root / path).read_text() for workspace in (smoke, smoke_copy))
    assert own != control


def test_outs_hold_no_time_and_no_machine(smoke: Workspace) -> None:
    for path in [*(smoke.root / "metrics").rglob("*.json"), *(smoke.root / "models" / "sft").rglob("*.json")]:
        text = path.read_text()
        assert str(smoke.root) not in text and "runtime" not in text and "per_second" not in text, path


def test_an_adapter_of_another_base_is_refused(smoke: Workspace, tmp_path: Path) -> None:
    adapter = shutil.copytree(smoke.root / "models/sft/support/anchor", tmp_path / "adapter")
    manifest = json.loads((adapter / "adapter.json").read_text())
    (adapter / "adapter.json").write_text(json.dumps(manifest | {"base_identity": "0" * 64}))
    base = load_base(smoke.root / "models/base/policy")
    assert adapter_hash(smoke.root / "models/sft/support/anchor", base)
    with pytest.raises(ModelError, match="belongs to another base"):
        adapter_hash(adapter, base)


def finished(cache: Path) -> int:
    """How many pieces of work the journal holds."""
    path = cache / "journal.sqlite"
    if not path.is_file():
        return 0
    try:
        with sqlite3.connect(path, timeout=30) as database:
            return database.execute("SELECT count(*) FROM finished").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


@pytest.mark.parametrize(("stage", "output"), [("candidates", CANDIDATES), ("judgments", JUDGMENTS)])
def test_a_killed_stage_goes_on_where_it_was_and_ends_the_same(smoke_copy: Workspace, stage: str, output: str) -> None:
    """Three runs with fresh journals: undisturbed, killed after its first batches, and killed at once; all bytes are the same."""
    if stage == "candidates":
        smoke_copy.edit("params.yaml", "batch_size: 64", "batch_size: 8")
    else:
        smoke_copy.edit("params.yaml", "k: 4", "k: 16")
        smoke_copy.stage("candidates", "support-anchor")
    undisturbed = smoke_copy.cache.with_name("undisturbed")
    smoke_copy.stage(stage, "support-anchor", env={"MASCOT_CACHE": str(undisturbed)})
    wanted, total = (smoke_copy.root / output).read_bytes(), finished(undisturbed)
    assert total > 1

    killed = smoke_copy.cache.with_name("killed")
    for batches in (0, 1):
        (smoke_copy.root / output).unlink(missing_ok=True)
        process = subprocess.Popen(
            ["python", "-m", "stages", stage, "support-anchor"],
            cwd=smoke_copy.root,
            env=smoke_copy.environment | {"MASCOT_CACHE": str(killed)},
            stderr=subprocess.DEVNULL,
        )
        while finished(killed) < batches or not killed.exists():
            assert process.poll() is None, "the stage ended before it could be killed"
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (smoke_copy.root / output).exists()
        assert batches <= finished(killed) < total

    kept = finished(killed)
    done = smoke_copy.stage(stage, "support-anchor", env={"MASCOT_CACHE": str(killed)})
    assert kept > 0 and "from the journal" in done.stderr
    assert finished(killed) == total
    assert (smoke_copy.root / output).read_bytes() == wanted
    leftovers = [path.name for path in (smoke_copy.root / output).parent.iterdir() if path.name.endswith(".partial")]
    assert leftovers == []


def test_editing_a_persona_reruns_only_its_stages(smoke_copy: Workspace) -> None:
    smoke_copy.edit("data/personas/support/anchor.yaml", "You are calm and warm.", "You are calm and kind.")
    printed = smoke_copy.run("dvc", "repro").stdout
    ran = [line.split("'")[1] for line in printed.splitlines() if line.startswith("Running stage")]
    stages = ("sft", "candidates", "judgments", "pairs", "reward", "speaker")
    assert ran == [*(f"{stage}@support-anchor" for stage in stages), "alignment@support"]


def test_an_experiment_with_another_margin_reruns_only_pairs_and_can_be_compared(smoke_copy: Workspace) -> None:
    printed = smoke_copy.run("dvc", "exp", "run", "-S", "pairs.margin=2.0", "pairs@support-anchor", "pairs@support-catalyst").stdout
    ran = {line.split("'")[1].split("@")[0] for line in printed.splitlines() if line.startswith("Running stage")}
    assert ran == {"pairs"}
    assert "pairs.margin" in smoke_copy.run("dvc", "params", "diff").stdout
    compared = json.loads(smoke_copy.run("dvc", "metrics", "diff", "--json").stdout)
    kept = compared["metrics/pairs/support/anchor.json"]["kept"]
    assert kept["new"] < kept["old"]


@pytest.mark.parametrize("command", [["dvc", "dag"], ["dvc", "metrics", "show"], ["dvc", "exp", "show", "--csv"]])
def test_dvc_commands_read_the_workspace(smoke: Workspace, command: list[str]) -> None:
    assert "support" in smoke.run(*command).stdout


def test_plots_are_drawn(smoke_copy: Workspace) -> None:
    smoke_copy.run("dvc", "plots", "show", "--out", "dvc_plots")
    page = (smoke_copy.root / "dvc_plots" / "index.html").read_text()
    assert "metrics/sft/support/anchor" in page and "loss" in page


def test_a_second_clone_pulls_everything_and_has_nothing_to_rerun(smoke_copy: Workspace, tmp_path: Path) -> None:
    smoke_copy.run("dvc", "remote", "add", "-d", "storage", str(tmp_path / "storage"))
    smoke_copy.run("git", "commit", "-aqm", "A remote")
    smoke_copy.run("dvc", "push")
    smoke_copy.run("git", "clone", "-q", str(smoke_copy.root), str(tmp_path / "second"))
    second = Workspace(tmp_path / "second", tmp_path / "second-cache")
    second.run("dvc", "pull")
    assert second.run("dvc", "status").stdout.strip() == "Data and pipelines are up to date."
    assert second.stale() == set()
    assert (second.root / CANDIDATES).read_bytes() == (smoke_copy.root / CANDIDATES).read_bytes()


@pytest.mark.parametrize(
    ("edit", "stage", "expected"),
    [
        (("params.yaml", "k: 4", "k: 1"), "candidates", "`candidates.k`"),
        (("params.yaml", "max_tokens: 40", "max_tokens: 9000"), "candidates", "the window of"),
        (("params.yaml", "examples: 8", "examples: 80"), "sft", "`replies` has 24 written replies"),
        (("params.yaml", "margin: 0.25", "margn: 0.25"), "pairs", "did you mean `margin`"),
        (("data/personas/support/anchor.yaml", "exemplars:", "examplars:"), "candidates", "did you mean `exemplars`"),
        (("data/rubrics/support.yaml", "measure: persona", "measure: person"), "judgments", "data/rubrics/support.yaml"),
    ],
)
def test_a_users_mistake_is_an_error_without_traceback_and_leaves_the_output(
    smoke_copy: Workspace, edit: tuple[str, str, str], stage: str, expected: str
) -> None:
    before = {path: path.read_bytes() for path in (smoke_copy.root / "data").rglob("*.parquet")}
    smoke_copy.edit(*edit)
    done = smoke_copy.stage(stage, "support-anchor", check=False)
    assert done.returncode == 1
    assert expected in done.stderr and "Traceback" not in done.stderr and done.stderr.count("error: ") == 1
    assert {path: path.read_bytes() for path in (smoke_copy.root / "data").rglob("*.parquet")} == before


def test_a_missing_or_broken_input_names_the_stage_that_makes_it(smoke_copy: Workspace) -> None:
    (smoke_copy.root / CANDIDATES).write_bytes(b"PAR1 torn")
    done = smoke_copy.stage("judgments", "support-anchor", check=False)
    assert done.returncode == 1 and "dvc repro candidates@support-anchor" in done.stderr and "Traceback" not in done.stderr


def test_no_room_for_the_output_is_an_error_and_leaves_nothing(smoke_copy: Workspace) -> None:
    """A file-size limit stands for a full disk: the write fails half way."""
    (smoke_copy.root / CANDIDATES).unlink()
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); "
        "sys.argv[1:] = {}; runpy.run_module('stages', run_name='__main__')"
    )
    done = smoke_copy.run(
        "python", "-c", limited.format(["candidates", "support-anchor"]), check=False, env={"MASCOT_CACHE": str(smoke_copy.cache)}
    )
    assert done.returncode == 1 and "cannot be" in done.stderr and "Traceback" not in done.stderr
    assert not (smoke_copy.root / CANDIDATES).exists()
    assert not list((smoke_copy.root / CANDIDATES).parent.glob(".*.partial"))


def test_an_empty_table_of_judgments_stops_pairs(smoke_copy: Workspace) -> None:
    path = smoke_copy.root / JUDGMENTS
    empty = pl.read_parquet(path).clear()
    path.unlink()
    empty.write_parquet(path)
    done = smoke_copy.stage("pairs", "support-anchor", check=False)
    assert done.returncode == 1 and f"{JUDGMENTS}: there are no judgments" in done.stderr and "Traceback" not in done.stderr
