"""Fail unless dvc.lock is true for the committed params: every stage has an entry, and DVC would run none.

`dvc repro --dry --allow-missing` exits 0 even when something is stale, and passes over a stage without an entry; so this reads what
it prints, and compares the entries with the stages.
"""

import subprocess
import sys
from pathlib import Path

import yaml


def main() -> int:
    listed = subprocess.run(["dvc", "stage", "list", "--name-only"], capture_output=True, text=True, check=True).stdout.split()
    lock = Path("dvc.lock")
    locked = set(yaml.safe_load(lock.read_text())["stages"]) if lock.is_file() else set()
    problems = [f"{name}: has no entry in dvc.lock" for name in listed if name not in locked]
    problems += [f"{name}: is in dvc.lock, and dvc.yaml has no such stage" for name in sorted(locked - set(listed))]
    dry = subprocess.run(["dvc", "repro", "--dry", "--allow-missing"], capture_output=True, text=True)
    if dry.returncode != 0:
        problems.append(f"dvc repro --dry failed:\n{dry.stderr}")
    problems += [f"stale: {line}" for line in dry.stdout.splitlines() if line.startswith("Running stage")]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"dvc.lock: {len(listed)} stages, {len(problems)} problems" + (". Run `dvc repro` and commit dvc.lock." if problems else "."))
    return 1 if problems or not listed else 0


if __name__ == "__main__":
    sys.exit(main())
