"""What a head does with its order: the files laid out, its command run, its record brought away."""

import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from cloudtune.errors import CloudtuneError, UsageError
from cloudtune.infra.heads import bundle, head_runner
from cloudtune.infra.heads.bundle import Order, pack, unpack
from cloudtune.infra.heads.head_runner import Carrier
from cloudtune.infra.heads.launch import user_data
from cloudtune.infra.heads.store import STOP, HeadStore
from cloudtune.train.storage import StorageError
from tests.bench import wait_for
from tests.infra.heads.test_launch import REMOTE
from tests.infra.mps_stand_in import write_script

OUTPUT = "record/run/output.log@000000000000"


@pytest.fixture
def store(tmp_path: Path) -> HeadStore:
    return HeadStore(f"{tmp_path}/storage/small-1")


def order(folder: Path, *arguments: str) -> Order:
    return Order("small-1", arguments, str(folder), began=5.5, until=2e9, environment={"A": "b"})


def test_parcel_restores_file_places(tmp_path: Path) -> None:
    code, home, root = tmp_path / "code", tmp_path / "home", tmp_path / "head"
    for path in ("train.py", "data/x.csv", ".git/config", "__pycache__/a.pyc", ".venv/lib/b.py"):
        (code / path).parent.mkdir(parents=True, exist_ok=True)
        (code / path).write_text(path)
    (home / "profiles" / "x").mkdir(parents=True)
    (home / "profiles" / "x" / "a.json").write_text("{}")
    (home / "runs" / "other").mkdir(parents=True)
    (home / "runs" / "other" / "ledger.jsonl").write_text("")
    data = pack(code, {tmp_path / "e.yaml": b"name: e"}, home)
    unpack(data, root / "home", root)
    there = {str(item.relative_to(root)) for item in root.rglob("*") if item.is_file()}
    base = str(tmp_path).lstrip("/")
    assert there == {
        f"{base}/code/train.py",
        f"{base}/code/data/x.csv",
        f"{base}/e.yaml",
        "home/profiles/x/a.json",
    }


def test_too_much_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST_BYTES", 2**20)
    (tmp_path / "big").write_bytes(bytes(2**20 + 1))
    with pytest.raises(UsageError, match="more than 1 MiB"):
        pack(tmp_path, {}, tmp_path / "home")


def test_tampered_parcel_changes_nothing(tmp_path: Path) -> None:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo("home/../../up")
        info.size = 1
        tar.addfile(info, BytesIO(b"x"))
    with pytest.raises(tarfile.FilterError):
        unpack(buffer.getvalue(), tmp_path / "a" / "home")
    assert not (tmp_path / "up").exists()


def runs(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have heads run Python code in place of `cloudtune`."""
    start = subprocess.Popen

    def instead(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        assert command[:3] == [sys.executable, "-m", "cloudtune"]
        result: subprocess.Popen[bytes] = start([sys.executable, "-c", code, *command[3:]], **how)
        return result

    monkeypatch.setattr("cloudtune.infra.heads.head_runner.subprocess.Popen", instead)
    monkeypatch.setattr(head_runner, "_BRING_SECONDS", 0.05)


def test_head_command_has_clock_and_words(
    tmp_path: Path, store: HeadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(
        monkeypatch,
        "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['A']); "
        "print(os.environ['CLOUDTUNE_RUN'], os.environ['CLOUDTUNE_BEGAN'], file=sys.stderr); "
        "sys.exit(5)",
    )
    renewed: list[float] = []
    asked = order(tmp_path, "run", "e.yaml")
    made = Carrier(asked, store, "i-1", tmp_path / "home")
    assert made.carry(lambda: renewed.append(time.time())) == 5
    state = store.state()
    assert state is not None
    assert (state.code, state.instance) == (5, "i-1")
    assert store.read(OUTPUT) == f"['run', 'e.yaml'] {tmp_path} b\n".encode()
    assert store.read(OUTPUT.replace("output", "errors")) == b"small-1 5.5\n"
    assert len(renewed) == 1


def test_nothing_is_lost(tmp_path: Path, store: HeadStore, monkeypatch: pytest.MonkeyPatch) -> None:
    runs(monkeypatch, "print('all of it')")
    write, left = store.write, [3]

    def failing(name: str, data: bytes) -> None:
        if name.startswith("record/") and left[0]:
            left[0] -= 1
            raise StorageError("not now")
        write(name, data)

    monkeypatch.setattr(store, "write", failing)
    made = Carrier(order(tmp_path), store, "i-1", tmp_path / "home")

    def renew() -> None:
        raise CloudtuneError("asked again in a minute")

    assert made.carry(renew) == 0
    assert left == [0]
    assert store.read(OUTPUT) == b"all of it\n"


def test_a_stop_is_heard(tmp_path: Path, store: HeadStore, monkeypatch: pytest.MonkeyPatch) -> None:
    runs(
        monkeypatch,
        "import signal, sys, time\n"
        "count = 0\n"
        "def heard(*_):\n"
        "    global count; count += 1\n"
        "signal.signal(signal.SIGINT, heard)\n"
        "print('ready', flush=True)\n"
        "while not count: time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        "sys.exit(129 + count)",
    )

    def ask() -> None:
        wait_for(lambda: store.read(OUTPUT) == b"ready\n")
        store.write(STOP, b"stop\n")

    asking = threading.Thread(target=ask)
    asking.start()
    made = Carrier(order(tmp_path), store, "i-1", tmp_path / "home")
    assert made.carry(lambda: None) == 128 + signal.SIGINT
    asking.join()


def test_head_without_order_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(head_runner, "metadata", lambda _path, **_more: "i-1")
    monkeypatch.setattr("sys.argv", ["carrier", "--at", f"{tmp_path}/r", "--until", "2e9"])
    assert head_runner.main() == 1
    assert "there is no order, or no parcel" in capsys.readouterr().out
    script = user_data(REMOTE).replace("cloudtune.infra.heads.head_runner", "no_such_module")
    script = script[script.index("end() {") :]
    write_script(tmp_path / "shutdown", 'echo "shutdown $@"')
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-c", script],
        env={"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[-3].endswith("No module named no_such_module"), "whatever ends it is uploaded"
    assert lines[-2:] == ["cloudtune-node: it ended with 1", "shutdown -P now"]
