import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtune.engine.ledger import Entry, FileLedger, read_entries, read_header
from cloudtune.errors import CloudtuneError
from tests.bench import called
from tests.builders import Setting, play
from tests.builders.ledgers import drop_checksums, without_checksum

ENTRIES = play(Setting()).entries


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    ledger = FileLedger(path, {"run": "r1"})
    for entry in ENTRIES:
        ledger.append(entry.event, entry.commands)
    ledger.close()
    return path


def entries(path: Path) -> list[Entry]:
    return list(read_entries(path))


def test_a_run_reads_back_as_it_was(path: Path) -> None:
    assert read_header(path) == {"cloudtune_ledger": 3, "run": "r1"}
    assert tuple(entries(path)) == ENTRIES


def test_every_entry_is_in_the_file_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = FileLedger(path, {})
    for count, entry in enumerate(ENTRIES[:5]):
        assert len(entries(path)) == count
        ledger.append(entry.event, entry.commands)
        assert entries(path)[-1] == entry
    ledger.close()


def test_a_ledger_is_never_written_over(path: Path) -> None:
    with pytest.raises(FileExistsError):
        FileLedger(path, {})
    assert tuple(entries(path)) == ENTRIES


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_last_line_cut_by_a_crash_is_dropped(path: Path, cut: int) -> None:
    text = path.read_text().rstrip("\n")
    path.write_text(text[:-cut])
    assert tuple(entries(path)) == ENTRIES[:-1]


def test_a_damaged_middle_line_is_refused_by_its_number(path: Path) -> None:
    lines = path.read_text().splitlines()
    lines[3] = lines[3][:-10]
    path.write_text("\n".join(lines))
    with pytest.raises(CloudtuneError, match=r"ledger.jsonl:4: not a ledger entry"):
        entries(path)


def flipped(line: str) -> str:
    """Return a line with one bit of a digit flipped: 0.5 becomes 0.4, say."""
    at = next(number for number, letter in enumerate(line) if letter.isdigit())
    return f"{line[:at]}{chr(ord(line[at]) ^ 1)}{line[at + 1 :]}"


@pytest.mark.parametrize("change", ["bit", "gone", "twice", "swapped", "bare"])
def test_a_changed_line_is_refused_by_its_number(path: Path, change: str) -> None:
    lines = path.read_text().splitlines()
    changed = {
        "bit": [*lines[:3], flipped(lines[3]), *lines[4:]],
        "gone": [*lines[:3], *lines[4:]],
        "twice": [*lines[:3], lines[2], *lines[3:]],
        "swapped": [*lines[:3], lines[4], lines[3], *lines[5:]],
        "bare": [*lines[:3], without_checksum(lines[3]), *lines[4:]],
    }
    path.write_text("".join(f"{line}\n" for line in changed[change]))
    with pytest.raises(CloudtuneError, match=r"ledger.jsonl:4: not a ledger entry as it was"):
        entries(path)


def test_a_ledger_without_checksums_is_continued_with_them(path: Path) -> None:
    drop_checksums(path)
    assert tuple(entries(path)) == ENTRIES
    ledger = FileLedger(path, None)
    ledger.append(ENTRIES[0].event, ENTRIES[0].commands)
    ledger.close()
    assert entries(path)[-1] == ENTRIES[0]
    last = path.read_text().splitlines()[-1]
    path.write_text(path.read_text().replace(last, flipped(last)))
    with pytest.raises(CloudtuneError, match=f":{len(ENTRIES) + 2}: not a ledger entry as it was"):
        entries(path)


@pytest.mark.parametrize(
    ("first_line", "complaint"),
    [
        ("", "not a ledger"),
        ('{"cloudtune_led', "not a ledger"),
        ("[1]", "not a ledger"),
        ('{"run": "r1"}', "not a ledger"),
        (
            json.dumps({"cloudtune_ledger": 4}),
            r"a later cloudtune \(ledger version 4; .* reads 3\)",
        ),
        (json.dumps({"cloudtune_ledger": None}), r"another cloudtune \(ledger version None; "),
    ],
)
def test_another_file_is_refused(tmp_path: Path, first_line: str, complaint: str) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(first_line)
    with pytest.raises(CloudtuneError, match=complaint):
        read_header(path)
    with pytest.raises(CloudtuneError, match=complaint):
        entries(path)
    with pytest.raises(CloudtuneError, match=complaint):
        FileLedger(path, None)
    assert path.read_text() == first_line


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        '{"event": {"type": "RunStarted", "at": 0.0}}',
        '{"event": {"type": "RunPaused", "at": 0.0}, "commands": []}',
        '{"event": {"type": "RunStarted", "at": 0.0, "why": "x"}, "commands": []}',
        '{"event": {"type": "RunStarted"}, "commands": []}',
        '{"event": {"type": "RunStarted", "at": 0.0}, "commands": [{"type": "Wait"}]}',
    ],
)
def test_an_unknown_kind_or_field_is_refused(path: Path, line: str) -> None:
    lines = drop_checksums(path).splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[2:]]) + "\n")
    with pytest.raises(CloudtuneError, match=r"ledger.jsonl:3: not a ledger entry"):
        entries(path)


def test_a_ledger_of_cloudtune_0_1_0_is_refused_whole() -> None:
    """What that version wrote would be decided upon otherwise; its words mean other things."""
    old = Path(__file__).with_name("ledger-0.1.0.jsonl")
    for read in (read_header, entries):
        with pytest.raises(
            CloudtuneError, match=r"0\.jsonl: written by cloudtune 0\.1\.0 .*`cloudtu"
        ):
            read(old)


def test_a_ledger_of_cloudtune_0_2_0_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of two trials on the emulated cloud, as that version wrote it."""
    run = tmp_path / "runs" / "r1"
    run.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("ledger-0.2.0.jsonl"), run / "ledger.jsonl")
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path))
    report = called(capsys, "report", "r1", "-o", "json").json
    assert report["best"]["value"] == pytest.approx(4.2121, abs=1e-4)
    assert report["summary"]["trials"] == 2


def test_what_people_write_stays_in_one_line(tmp_path: Path) -> None:
    """A traceback may hold any character, also those that end a line somewhere.

    What UTF-8 can't have comes back as a question mark: whoever exports it could not write it.
    """
    from cloudtune.model.events import TrialFailed

    odd = TrialFailed(1.0, "t00.1", "boom\u2028\x85é\n", "line 1\r\nline 2\x0b\x1c\ud800")
    ledger = FileLedger(tmp_path / "ledger.jsonl", {})
    ledger.append(odd, ())
    ledger.append(odd, ())
    ledger.close()
    result = replace(odd, traceback="line 1\r\nline 2\x0b\x1c?")
    assert [entry.event for entry in entries(tmp_path / "ledger.jsonl")] == [result, result]
