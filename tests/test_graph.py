"""The graph is exact: code and params that a stage uses are what it declares, and nothing else makes it stale."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import grimp
import pytest
import yaml
from conftest import ROOT, Workspace
from dvc.repo import Repo

from mascot.yamlfiles import load_yaml
from stages.__main__ import STAGES, AllParams

PARAMS: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text())
ALTERNATIVES = {
    "contexts": [f"mascot.corpora.{one['corpus']}" for one in PARAMS["contexts"].values()],
    "candidates": [f"mascot.engines.{PARAMS['candidates']['engine']}"],
    "judgments": [f"mascot.judges.{PARAMS['judgments']['judge']}"],
    "alignment": [f"mascot.engines.{PARAMS['alignment']['engine']}"],
}
PROMPTS = {"mascot/dialogue/render.py": "mascot/dialogue/prompts/speaker.txt"}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("mascot", "stages", cache_dir=None)


@pytest.fixture(scope="module")
def stages() -> dict[str, Any]:
    """Every instance as DVC resolves it, by name."""
    return {stage.addressing: stage for stage in Repo(str(ROOT)).index.stages}


def closure(graph: grimp.ImportGraph, module: str) -> set[str]:
    """The files that importing a module runs, as paths from the root; empty `__init__.py` left out."""
    found = graph.find_upstream_modules(module) | {module}
    return {path for name in found if (ROOT / (path := f"{name.replace('.', '/')}.py")).is_file()}


def declared(stage: Any) -> set[str]:
    return {str(Path(dep.fs_path).relative_to(ROOT)) for dep in stage.deps if dep.hash_name != "params" and not hasattr(dep, "params")}


@pytest.mark.parametrize("name", STAGES)
def test_declared_code_is_the_import_closure(name: str, graph: grimp.ImportGraph, stages: dict[str, Any]) -> None:
    wanted = closure(graph, f"stages.{name}").union(*(closure(graph, module) for module in ALTERNATIVES.get(name, [])))
    wanted |= {prompt for module, prompt in PROMPTS.items() if module in wanted}
    instances = [stage for address, stage in stages.items() if address.split("@")[0] == name]
    assert instances
    for stage in instances:
        code = {path for path in declared(stage) if path.startswith(("mascot/", "stages/"))}
        assert code == wanted, f"{stage.addressing}: not declared {sorted(wanted - code)}; declared but not used {sorted(code - wanted)}"


def test_every_engine_needs_no_more_than_candidates_declares(graph: grimp.ImportGraph, stages: dict[str, Any]) -> None:
    """Choosing another engine swaps one templated dependency; whatever it imports beside must be declared already."""
    stage = next(stage for address, stage in stages.items() if address.startswith("candidates@"))
    for engine in ("transformers", "http"):
        assert closure(graph, f"mascot.engines.{engine}") - {f"mascot/engines/{engine}.py"} <= declared(stage)


def read_sections(name: str) -> set[str]:
    """The sections of params.yaml that a stage's file reads, from its calls of `read_section`; a variable key becomes `*`."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / "stages" / f"{name}.py").read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "read_section":
            found.add(".".join(str(key.value) if isinstance(key, ast.Constant) else "*" for key in node.args[1:]))
    return found


@pytest.mark.parametrize("name", STAGES)
def test_declared_params_are_those_read(name: str, stages: dict[str, Any]) -> None:
    instances = {address.split("@")[1]: stage for address, stage in stages.items() if address.split("@")[0] == name}
    for key, stage in instances.items():
        params = {param for dep in stage.deps if hasattr(dep, "params") for param in dep.params}
        assert params == {section.replace("*", key) for section in read_sections(name)}, stage.addressing


def test_a_stage_has_one_name_everywhere(stages: dict[str, Any]) -> None:
    assert {address.split("@")[0] for address in stages} == set(STAGES) == {path.stem for path in (ROOT / "stages").glob("[!_]*.py")}


def test_no_stage_imports_another_and_training_imports_no_engine_and_no_journal(graph: grimp.ImportGraph) -> None:
    for name in STAGES:
        assert not {module for module in graph.find_upstream_modules(f"stages.{name}") if module.startswith("stages.")}
    for module in ("mascot.training.sft", "mascot.training.reward", "mascot.training.grpo", "stages.speaker"):
        training = closure(graph, module)
        assert not {path for path in training if path.startswith("mascot/engines/") or path == "mascot/journal.py"}


def test_every_package_file_is_empty() -> None:
    """Python runs it for every stage, and the import closure leaves it out."""
    assert [path for folder in ("mascot", "stages") for path in (ROOT / folder).rglob("__init__.py") if path.read_text().strip()] == []


def test_only_alignment_depends_on_evaluation_lines(stages: dict[str, Any]) -> None:
    readers = {name for name, stage in stages.items() if any(path.startswith("data/evaluation") for path in declared(stage))}
    assert {name.split("@")[0] for name in readers} == {"alignment"}


@pytest.mark.parametrize("path", sorted((ROOT / "mascot" / "profiles").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_profile_is_valid(path: Path) -> None:
    load_yaml(path, AllParams)


def test_the_committed_params_are_the_quick_profile() -> None:
    assert (ROOT / "params.yaml").read_bytes() == (ROOT / "mascot" / "profiles" / "quick.yaml").read_bytes()


def test_the_lock_is_true_for_the_committed_params(clone: Workspace) -> None:
    assert clone.run("python", ".ci/check_lock.py").returncode == 0


def test_the_lock_check_sees_a_missing_entry(clone: Workspace) -> None:
    lock = yaml.safe_load((clone.root / "dvc.lock").read_text())
    del lock["stages"]["contexts@support"]
    (clone.root / "dvc.lock").write_text(yaml.safe_dump(lock))
    done = clone.run("python", ".ci/check_lock.py", check=False)
    assert done.returncode == 1
    assert "contexts@support: has no entry in dvc.lock" in done.stderr


def test_the_lock_check_sees_a_stale_stage(clone: Workspace) -> None:
    clone.edit("params.yaml", "margin: 0.25", "margin: 0.6")
    done = clone.run("python", ".ci/check_lock.py", check=False)
    assert done.returncode == 1
    assert "pairs@support-anchor" in done.stderr


def test_editing_one_persona_makes_stale_only_its_own_stages(clone: Workspace) -> None:
    clone.edit("data/personas/support/anchor.yaml", "You are calm and warm.", "You are calm and kind.")
    per_speaker = {f"{stage}@support-anchor" for stage in ("sft", "candidates", "judgments", "speaker")}
    assert clone.stale() == per_speaker | {"alignment@support"}


def test_changing_the_margin_makes_stale_only_pairs(clone: Workspace) -> None:
    clone.edit("params.yaml", "margin: 0.25", "margin: 1.0")
    stale = clone.stale()
    assert len(stale) == len(PARAMS["speakers"]) and {name.split("@")[0] for name in stale} == {"pairs"}


@pytest.mark.parametrize("path", ["README.md", "mascot/engines/http.py", "launch/cpu2.yaml", "mascot/cli.py", "stages/__main__.py"])
def test_editing_what_no_stage_uses_makes_nothing_stale(clone: Workspace, path: str) -> None:
    with (clone.root / path).open("a") as file:
        file.write("\n# edited\n")
    assert clone.stale() == set()


def test_light_commands_stay_light() -> None:
    """Help, and the stages that need no model, import no torch."""
    script = (
        "import sys, runpy\n"
        "import stages.__main__\n"
        "heavy = {'torch', 'transformers', 'trl', 'peft', 'sklearn', 'sentence_transformers', 'nltk', 'openai'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
