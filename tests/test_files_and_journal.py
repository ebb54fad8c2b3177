"""Files that are never seen half-written, and work that is never done twice."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from mascot.errors import DataError, OutputError
from mascot.files import content_hash, file_hash, folder_hash, read_parquet, write_json, write_parquet, writing
from mascot.journal import Journal, cache_folder, recorded

ROOT = Path(__file__).parents[1]


def start(code: str, *arguments: object) -> subprocess.Popen:
    """Start Python code that can import the project."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(code: str, *arguments: object) -> tuple[int, str, str]:
    process = start(code, *arguments)
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


# files


def test_a_file_is_written_with_its_folders(tmp_path):
    path = tmp_path / "a" / "b" / "c.json"
    write_json({"x": 1}, path)
    assert json.loads(path.read_text()) == {"x": 1}
    assert os.listdir(path.parent) == ["c.json"]


@pytest.mark.parametrize("before", [None, "old"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, ValueError])
def test_a_failure_leaves_what_was_there_and_nothing_partial(tmp_path, before, error):
    path = tmp_path / "file.txt"
    if before:
        path.write_text(before)
    with pytest.raises(error), writing(path) as temporary:
        temporary.write_text("half of the n")
        raise error("stopped")
    assert os.listdir(tmp_path) == (["file.txt"] if before else [])
    assert not before or path.read_text() == before


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with writing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_a_folder_replaces_the_old_one_whole_or_not_at_all(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old.txt").write_text("old")
    with pytest.raises(RuntimeError), writing(path) as temporary:
        temporary.mkdir()
        (temporary / "half.txt").write_text("half")
        raise RuntimeError("stopped")
    assert os.listdir(tmp_path) == ["folder"] and os.listdir(path) == ["old.txt"]
    with writing(path) as temporary:
        temporary.mkdir()
        (temporary / "new.txt").write_text("new")
    assert os.listdir(tmp_path) == ["folder"] and os.listdir(path) == ["new.txt"]


def test_an_operating_system_error_becomes_an_output_error_with_the_path(tmp_path):
    path = tmp_path / "file.txt"
    with pytest.raises(OutputError) as caught, writing(path) as temporary:
        temporary.write_text("half")
        raise OSError(28, "No space left on device")
    assert str(path) in str(caught.value) and "No space left" in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_an_output_error(tmp_path):
    """A path below a regular file fails for every user; a read-only folder would not for root."""
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file" / "a.json", tmp_path / "file" / "b" / "a.json"):
        with pytest.raises(OutputError, match="cannot be written") as caught:
            write_json({}, path)
        assert str(path) in str(caught.value)
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a folder that refuses root too")
@pytest.mark.parametrize("write", [lambda path: write_json({}, path), lambda path: write_parquet(pl.DataFrame({"a": [1]}), path)])
def test_a_folder_that_refuses_everybody_is_an_output_error(write):
    """polars raises its own PermissionError, without a number."""
    with pytest.raises(OutputError, match=r"/sys/kernel/mascot\.out: cannot be written"):
        write(Path("/sys/kernel/mascot.out"))


def test_a_folder_in_the_place_of_a_file_is_an_output_error(tmp_path):
    (tmp_path / "a.parquet").mkdir()
    with pytest.raises(OutputError, match=r"a\.parquet: cannot be written"):
        write_parquet(pl.DataFrame({"a": [1]}), tmp_path / "a.parquet")


def test_a_read_only_folder_is_an_output_error(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o500)
    try:
        if os.access(folder, os.W_OK):
            pytest.skip("this user may write into read-only folders (root); the test above covers the error")
        with pytest.raises(OutputError, match="cannot be written"):
            write_json({}, folder / "a.json")
    finally:
        folder.chmod(0o700)


FULL_DISK = """
import random, resource, sys
from pathlib import Path
import polars as pl
from mascot.errors import OutputError
from mascot.files import write_json, write_parquet

kind, path = sys.argv[1], Path(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
numbers = [random.random() for _ in range(50_000)]
try:
    write_json(numbers, path) if kind == "json" else write_parquet(pl.DataFrame({"x": numbers}), path)
except OutputError as error:
    print(error)
    sys.exit(3)
"""


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize("before", [None, "old"])
def test_a_full_disk_is_an_output_error_and_leaves_nothing_partial(tmp_path, kind, before):
    path = tmp_path / f"out.{kind}"
    if before:
        path.write_text(before)
    code, output, errors = run(FULL_DISK, kind, path)
    assert code == 3, errors
    assert str(path) in output and "disk space" in output
    assert os.listdir(tmp_path) == ([path.name] if before else [])
    assert not before or path.read_text() == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [1.0, float("nan")]}])
def test_json_refuses_what_is_no_number(tmp_path, value):
    with pytest.raises(ValueError, match="JSON"):
        write_json(value, tmp_path / "a.json")
    assert os.listdir(tmp_path) == []


def test_json_is_the_same_for_the_same_value(tmp_path):
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    write_json({"b": [0.1 + 0.2, None], "a": {"y": 1, "x": (2.0, True)}}, one)
    write_json({"a": {"x": [2.0, True], "y": 1}, "b": [0.3, None]}, other)
    assert one.read_bytes() == other.read_bytes()
    assert one.read_text().endswith("}\n")
    assert json.loads(one.read_text()) == {"a": {"x": [2.0, True], "y": 1}, "b": [0.3, None]}


def test_content_hash_goes_by_value_and_not_by_order_of_keys():
    assert content_hash({"a": 1, "b": [1, 2]}) == content_hash({"b": [1, 2], "a": 1})
    different = [{"a": 1}, {"a": "1"}, {"a": [1]}, {"a": None}, {"b": 1}, ["a", 1], "a1", 1]
    assert len({content_hash(value) for value in different}) == len(different)
    assert content_hash([1, 2]) != content_hash([2, 1])
    with pytest.raises(ValueError, match="JSON"):
        content_hash(float("nan"))


def test_folder_hash_goes_by_names_and_contents(tmp_path):
    def folder(name: str, **files: str) -> Path:
        for file, text in files.items():
            path = tmp_path / name / "below" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / name

    first = folder_hash(folder("one", a="x", b="y"))
    assert folder_hash(folder("two", b="y", a="x")) == first
    assert folder_hash(folder("three", a="y", b="x")) != first
    assert folder_hash(folder("four", a="x")) != first
    assert file_hash(tmp_path / "one/below/a") == file_hash(tmp_path / "two/below/a") != file_hash(tmp_path / "one/below/b")


def test_parquet_survives_and_a_missing_or_broken_one_names_the_stage(tmp_path):
    path, table = tmp_path / "a.parquet", pl.DataFrame({"x": [1, None], "y": ["a", "b"]})
    write_parquet(table, path)
    assert read_parquet(path, "pairs", {}).equals(table)
    path.write_bytes(path.read_bytes()[:40])
    for wrong in (path, tmp_path / "absent.parquet"):
        with pytest.raises(DataError, match=r"dvc repro pairs@support-anchor") as caught:
            read_parquet(wrong, "pairs@support-anchor", {})
        assert str(wrong) in str(caught.value)


# journal


@pytest.fixture
def journal(tmp_path):
    opened = Journal(tmp_path / "cache" / "journal.sqlite")
    yield opened
    opened.close()


def test_what_was_put_is_found_and_nothing_else(journal):
    values = {"a": None, "b": [1, "zwei", {"x": 0.1}], "c": "\u00fc\u2028" * 1000}
    for key, value in values.items():
        journal.put(key, value)
    assert journal.get(["a", "b", "c", "d"]) == values
    assert journal.get([]) == {}


def test_many_keys_are_found_at_once(journal):
    keys = [f"key {number}" for number in range(1201)]
    for number, key in enumerate(keys):
        journal.put(key, number)
    assert journal.get(keys) == {key: number for number, key in enumerate(keys)}


def test_the_first_record_of_a_key_stays(journal):
    journal.put("a", "first")
    journal.put("a", "second")
    assert journal.get(["a"]) == {"a": "first"}


def test_records_are_there_for_the_next_process(journal):
    journal.put("a", [1, 2])
    journal.close()
    reader = Journal(journal.path)
    assert reader.get(["a"]) == {"a": [1, 2]}
    reader.close()


def test_a_value_that_is_no_json_is_not_recorded(journal):
    with pytest.raises(ValueError, match="JSON"):
        journal.put("a", float("nan"))
    assert journal.get(["a"]) == {}


def test_the_journal_lies_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("MASCOT_CACHE", str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere"
    opened = Journal()
    opened.put("a", 1)
    opened.close()
    assert (tmp_path / "elsewhere" / "journal.sqlite").is_file()


TWO_WRITERS = """
import json, sys
from pathlib import Path
from mascot.journal import Journal

path, me = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
journal = Journal(path)
seen = {}
for number in range(200):
    journal.put(f"shared {number}", me)
    journal.put(f"{me} {number}", number)
    seen |= journal.get([f"shared {number}"])
print(json.dumps(seen))
"""


def test_two_processes_write_at_once_and_agree(tmp_path):
    path = tmp_path / "journal.sqlite"
    command = [sys.executable, "-c", TWO_WRITERS, str(path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([*command, me], env=environment, **pipes) for me in ("one", "two")]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n", writer.stderr.read()
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    results = [writer.communicate(timeout=120) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], results
    first, second = (json.loads(output) for output, _ in results)
    journal = Journal(path)
    shared = journal.get([f"shared {number}" for number in range(200)])
    assert len(shared) == 200 and first == second == shared
    assert journal.get(["one 199", "two 199", "one 0", "two 0"]) == {"one 199": 199, "two 199": 199, "one 0": 0, "two 0": 0}
    journal.close()


def assert_says_delete(error: OutputError, path: Path) -> None:
    assert str(path) in str(error)
    assert "delete the file" in str(error) and "only time is lost" in str(error)


@pytest.mark.parametrize("content", [b"this is not a database, and long enough to look at" * 50, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_corrupted_journal_says_to_delete_it(tmp_path, content):
    path = tmp_path / "journal.sqlite"
    path.write_bytes(content)
    with pytest.raises(OutputError) as caught:
        Journal(path)
    assert_says_delete(caught.value, path)


def test_a_corrupted_record_says_to_delete_the_journal(journal):
    journal.put("a", "fine")
    database = sqlite3.connect(journal.path)
    database.execute("INSERT INTO finished VALUES ('b', ?)", (b"not compressed",))
    database.commit()
    database.close()
    with pytest.raises(OutputError) as caught:
        journal.get(["a", "b"])
    assert_says_delete(caught.value, journal.path)


def test_a_journal_that_cannot_be_made_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file" / "journal.sqlite", tmp_path):
        with pytest.raises(OutputError, match="MASCOT_CACHE"):
            Journal(path)


FULL_JOURNAL = """
import random, resource, sys
from pathlib import Path
from mascot.errors import OutputError
from mascot.journal import Journal

journal = Journal(Path(sys.argv[1]))
journal.put("before", "kept")
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    journal.put("big", [random.random() for _ in range(100_000)])
except OutputError as error:
    print(error)
    sys.exit(3)
"""


def test_a_journal_on_a_full_disk_keeps_what_it_had(tmp_path):
    path = tmp_path / "journal.sqlite"
    code, output, errors = run(FULL_JOURNAL, path)
    assert code == 3, errors
    assert "Free disk space" in output
    journal = Journal(path)
    assert journal.get(["before", "big"]) == {"before": "kept"}
    journal.close()


# recorded


class Worker:
    """Does pieces of work and remembers which; `stop_after` raises when so many are finished."""

    def __init__(self, stop_after: int | None = None, backwards: bool = False) -> None:
        self.calls: list[int] = []
        self.asked: list[list[int]] = []
        self.stop_after, self.backwards = stop_after, backwards

    def __call__(self, missing):
        self.asked.append(list(missing))
        for index in reversed(missing) if self.backwards else missing:
            if self.stop_after is not None and len(self.calls) >= self.stop_after:
                raise RuntimeError("interrupted")
            self.calls.append(index)
            yield index, f"value {index}"


def work(journal: Journal, determinants: list, worker: Worker) -> list:
    return recorded(journal, determinants, [1] * len(determinants), worker, "test", "pieces")


def test_finished_work_is_not_done_again(journal):
    first, second = Worker(), Worker()
    values = work(journal, ["a", "b", "c"], first)
    assert values == ["value 0", "value 1", "value 2"]
    assert work(journal, ["a", "b", "c"], second) == values
    assert first.asked == [[0, 1, 2]] and second.asked == []


def test_only_what_is_new_is_done(journal):
    work(journal, ["a", "b"], Worker())
    worker = Worker()
    assert work(journal, ["x", "b", "y", "a"], worker) == ["value 0", "value 1", "value 2", "value 0"]
    assert worker.asked == [[0, 2]]


def test_identical_work_is_done_once(journal):
    worker = Worker()
    assert work(journal, [{"p": 1, "q": 2}, "b", {"q": 2, "p": 1}, "b"], worker) == ["value 0", "value 1", "value 0", "value 1"]
    assert worker.asked == [[0, 1]]


def test_values_come_in_order_however_they_were_finished(journal):
    worker = Worker(backwards=True)
    assert work(journal, ["a", "b", "c"], worker) == ["value 0", "value 1", "value 2"]
    assert worker.calls == [2, 1, 0]


def test_no_work_is_no_work(journal):
    worker = Worker()
    assert work(journal, [], worker) == []
    assert worker.asked == []


@pytest.mark.parametrize("finished", [0, 1, 3])
def test_after_an_exception_only_the_rest_is_done(journal, finished):
    determinants = ["a", "b", "c", "d"]
    stopped, resumed, fresh = Worker(stop_after=finished), Worker(), Worker()
    with pytest.raises(RuntimeError, match="interrupted"):
        work(journal, determinants, stopped)
    values = work(journal, determinants, resumed)
    assert resumed.asked == [[0, 1, 2, 3][finished:]]
    assert sorted(stopped.calls + resumed.calls) == [0, 1, 2, 3]
    whole = Journal(journal.path.with_name("whole.sqlite"))
    assert work(whole, determinants, fresh) == values
    whole.close()


KILLED = """
import json, os, signal, sys
from pathlib import Path
from mascot.journal import Journal, recorded

folder, die_at = Path(sys.argv[1]), int(sys.argv[2])

def run(missing):
    for index in missing:
        if index == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        with (folder / "calls").open("a") as calls:
            calls.write(f"{index}\\n")
        yield index, index * 10

print(json.dumps(recorded(Journal(folder / "journal.sqlite"), list("abcdef"), [1] * 6, run, "test", "pieces")))
"""


def test_a_killed_process_repeats_nothing_that_was_finished(tmp_path):
    for die_at, finished in ((2, "01"), (4, "0123")):
        code, output, _ = run(KILLED, tmp_path, die_at)
        assert code == -signal.SIGKILL and output == ""
        assert (tmp_path / "calls").read_text().split() == list(finished)
    code, output, errors = run(KILLED, tmp_path, -1)
    assert code == 0, errors
    assert json.loads(output) == [0, 10, 20, 30, 40, 50]
    assert (tmp_path / "calls").read_text().split() == list("012345")
