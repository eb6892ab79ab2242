"""`cloudtune gc` and `status` where clouds can't be asked and records are damaged."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloudtune.cli.cleanup import gc, status
from cloudtune.errors import CleanupError, CloudtuneError
from cloudtune.infra.aws.provider import Aws
from cloudtune.infra.provider import Cloud, Endpoint, Instance
from cloudtune.lifecycle import cleanup

UNASKED = "error: can't reach EC2 in eu-west-1: The config profile (nobody) could not be found"
_LATER = "2099-01-01T00:00:00Z"
DAMAGED = ["", "null", "[]", "{", '{"pid": 0, "created": 0.0, "temp": "/"}', '{"pid": -1}']


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of cloudtune, on a machine whose AWS can't be asked."""
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    return tmp_path


def test_clouds_are_asked_whatever_the_records_look_like(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no process is signalled by a record that proves nothing."""
    for number, text in enumerate(DAMAGED):
        for name in ("head.json", "controller.json", "ledger.jsonl", "instances.json"):
            path = home / "runs" / f"r{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    monkeypatch.setattr("psutil.Process.send_signal", lambda *_: pytest.fail("signalled"))
    for command, code in ((status, 1), (gc, CleanupError.exit_code)):
        assert command.main(["--region", "eu-west-1"], standalone_mode=False) == code
        result = capsys.readouterr().err.splitlines()
        assert result[-1] == UNASKED
        assert len(result) == 1 + len(DAMAGED)
        assert "head.json is no record of a process" in result[0]


def test_a_dry_run(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = SimpleNamespace(id="i-1", instance_type="p3.2xlarge", run="r1")
    endpoint = SimpleNamespace(region="us-east-1", provider="aws")
    monkeypatch.setattr(
        cleanup, "open_clouds", lambda *_, **__: [SimpleNamespace(endpoint=endpoint)]
    )
    monkeypatch.setattr(
        cleanup, "look", lambda _: [SimpleNamespace(instance=instance, orphan=True)]
    )
    assert gc.main(["--dry-run"], standalone_mode=False) == 0
    would, last = capsys.readouterr().out.splitlines()
    assert would == "would return i-1 (p3.2xlarge, run r1)"
    assert last.startswith("1 instance would be returned (checked ")


def test_all_regions_of_the_account_are_looked_at(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Aws, "regions", lambda _: ("eu-west-1", "us-west-2"))
    assert status.main(["--all-regions"], standalone_mode=False) == 1
    said = capsys.readouterr().err
    assert "can't reach EC2 in eu-west-1" in said
    assert "can't reach EC2 in us-west-2" in said


def test_regions_that_cannot_be_listed_are_one_line(home: Path) -> None:
    with pytest.raises(CloudtuneError, match=r"the regions of aws can't be listed: The config"):
        gc.main(["--all-regions"], standalone_mode=False)


@pytest.mark.parametrize(("lease", "doomed"), [("2020-01-01T00:00:00Z", 2), (_LATER, 0)])
def test_gc_collects_expired_head(
    lease: str, doomed: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def instance(name: str, run: str) -> Instance:
        result: Any = ("i000", lease, "p3.2xlarge", "running", 0.0, None, "", {})
        return Instance(name, run, *result)

    alive = [instance("i-1", "small-1.head"), instance("i-2", "small-1")]
    calls = SimpleNamespace(ours=lambda **_: alive)
    monkeypatch.setattr(cleanup, "calls_to", lambda _: calls)
    cloud = SimpleNamespace(endpoint=SimpleNamespace(url=None))
    assert sum(actual.orphan for actual in cleanup.look(cast("Any", cloud))) == doomed


def test_gc_names_heads_first(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / "runs" / "r1"
    folder.mkdir(parents=True)
    (folder / "head.json").write_text(json.dumps({"pid": 99, "created": time.time()}))
    ended: list[str] = []
    monkeypatch.setattr(cleanup, "_find_head", lambda item: cleanup.Head(item, 8))
    monkeypatch.setattr(cleanup.Head, "end", lambda self: ended.append(self.folder.name))
    for command, arguments, what in (
        (status, [], "`cloudtune gc` ends them"),
        (gc, ["--dry-run"], "gc would end them"),
        (gc, [], "ending them"),
    ):
        assert ended == []
        assert command.main(arguments, standalone_mode=False) == 0
        assert capsys.readouterr().err == f"run r1 left 8 processes here; {what}\n"
    assert ended == ["r1"]


ID = "i-0123456789abcdef0"


def test_emulated_prices_are_not_yours(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(cloud: Cloud) -> list[cleanup.Found]:
        run = "digits-0417-153012-ab12"
        named: Any = (ID, run, "", "", "g4dn.12xlarge", "shutting-down", 0.0, None, "", {})
        asked = cloud.endpoint.url is not None
        return [cleanup.Found(Instance(*named), True, True, False, 1.5, asked)]

    clouds = [Cloud(Endpoint("us-east-1", url), {}, {}) for url in ("http://127.0.0.1:1", None)]
    monkeypatch.setattr(cleanup, "open_clouds", lambda *_, **__: clouds)
    monkeypatch.setattr(cleanup, "look", look)
    assert status.main([], standalone_mode=False) == 0
    result = capsys.readouterr().out
    assert "1.500 emulated" in result
    assert max(map(len, result.splitlines())) <= 80
    assert result.count(ID) == 2
    assert "2 instances, $1.50 per hour, $1.50 emulated" in result
    assert status.main(["-o", "json"], standalone_mode=False) == 0
    live = json.loads(capsys.readouterr().out)["instances"]
    assert [instance["emulated"] for instance in live] == [True, False]
