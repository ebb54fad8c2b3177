"""Fixtures: a copy of the working tree as a repository of its own, and one whole run of the smoke profile."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
os.environ["HF_HUB_OFFLINE"] = "1"
for number, (key, value) in enumerate((("user.email", "tests@example.org"), ("user.name", "tests"), ("init.defaultBranch", "main"))):
    os.environ |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value, "GIT_CONFIG_COUNT": "3"}


@dataclass(frozen=True)
class Workspace:
    """A git and DVC repository with its own cache folder, in which commands are run as a user runs them."""

    root: Path
    cache: Path

    def run(self, *command: str, check: bool = True, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command in the workspace. `python`, `dvc` and `mascot` are those of the interpreter that runs the tests."""
        done = subprocess.run(command, cwd=self.root, env=self.environment | (env or {}), capture_output=True, text=True)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every command: this interpreter's programs first, this workspace's code, its own journal."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return os.environ | {"PATH": path, "PYTHONPATH": str(self.root), "MASCOT_CACHE": str(self.cache), "DVC_NO_ANALYTICS": "1"}

    def stage(self, *arguments: str, check: bool = True, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return self.run("python", "-m", "stages", *arguments, check=check, env=env)

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace `old`, which must be there, in a file."""
        file = self.root / path
        text = file.read_text()
        assert old in text, f"{path} has no {old!r}"
        file.write_text(text.replace(old, new, 1))

    def stale(self) -> set[str]:
        """The stages whose command, code, inputs or params are not those of dvc.lock. Inputs that were never pulled do not count."""

        def changed(entry: Any) -> bool:
            deps = entry.get("changed deps", {}) if isinstance(entry, dict) else {}
            return entry == "changed command" or any(state != "deleted" for state in deps.values())

        status = json.loads(self.run("dvc", "status", "--json").stdout)
        return {stage for stage, entries in status.items() if any(changed(entry) for entry in entries)}


def copy_tree(target: Path) -> Workspace:
    """Copy what git tracks or would track of this working tree, and commit it as a repository of its own."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    workspace = Workspace(target, target.with_name(f"{target.name}-cache"))
    workspace.run("git", "init", "-q")
    workspace.run("git", "add", "-A")
    workspace.run("git", "commit", "-q", "-m", "A copy of the working tree")
    return workspace


@pytest.fixture
def clone(tmp_path: Path) -> Workspace:
    """A fresh clone without any artifact."""
    return copy_tree(tmp_path / "clone")


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The smoke profile, run whole by `dvc repro` and committed. Tests that change it must work on a copy (`smoke_copy`)."""
    workspace = copy_tree(tmp_path_factory.mktemp("smoke") / "workspace")
    workspace.run("mascot", "profile", "smoke")
    workspace.run("dvc", "repro")
    workspace.run("git", "add", "-A")
    workspace.run("git", "commit", "-q", "-m", "The smoke profile, run")
    return workspace


@pytest.fixture
def smoke_copy(smoke: Workspace, tmp_path: Path) -> Workspace:
    """A copy of the run smoke workspace, with a journal of its own."""
    shutil.copytree(smoke.root, tmp_path / "copy", copy_function=os.link if os.name == "posix" else shutil.copy2)
    # Hard links are cheap for models, but a test may write into text files: give it its own copies of those.
    for path in (tmp_path / "copy").rglob("*"):
        if path.is_file() and path.stat().st_size < 5_000_000:
            content = path.read_bytes()
            mode = path.stat().st_mode
            path.unlink()
            path.write_bytes(content)
            path.chmod(mode | 0o200)
    shutil.copytree(smoke.cache, tmp_path / "copy-cache", dirs_exist_ok=True)
    return Workspace(tmp_path / "copy", tmp_path / "copy-cache")


@pytest.fixture(scope="session")
def base_models(smoke: Workspace) -> Path:
    """The folder with the real models: `policy` and `encoder`."""
    return smoke.root / "models" / "base"
