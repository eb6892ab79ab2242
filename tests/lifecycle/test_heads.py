"""A run that a head controls, from the command line and from Python: followed, left, resumed."""

import json
import re
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import cloudtune
from cloudtune.engine.ledger import read_entries
from cloudtune.errors import CleanupError, UsageError
from cloudtune.infra.heads import launch
from cloudtune.infra.heads.launch import Remote
from cloudtune.infra.heads.store import ORDER, STOP, HeadStore, State
from cloudtune.infra.provider import HeadOffer, find_provider
from cloudtune.lifecycle import heads, remote
from cloudtune.runs import home
from cloudtune.runs.job import Job
from tests.bench import Bench
from tests.builders.ledgers import without_checksum

OFFER = HeadOffer("m7i.large", 0.1075, {})
LIMITS: dict[str, Any] = {"deadline": "10m", "budget": "$3"}
Step = Callable[["Head"], object]


class _Cloud:
    """The cloud of a head that has terminated."""

    errors = ()

    def ours(self, run: str, *, ended: bool = True) -> list[Any]:
        del run, ended
        return []


@dataclass
class Head:
    """A stand-in for a head. It takes a step, such as writing its record, at each look at it."""

    ledger: str
    steps: list[Step] = field(default_factory=list)
    run: str = ""
    place: Remote | None = None
    index: str = ""

    def launch(
        self, _calls: object, run: str, place: Remote, *_: object, index: str, **__: object
    ) -> str:
        self.run = run
        self.index = index
        self.place = place
        text = re.sub(r"small-\d{4}-\d{6}-\w{4}", run, self.ledger)
        self.ledger = "".join(f"{without_checksum(line)}\n" for line in text.splitlines())
        return "i-1"

    @property
    def store(self) -> HeadStore:
        assert self.place is not None
        return HeadStore(self.place.storage)

    @property
    def order(self) -> list[str]:
        """The words of its command."""
        written = self.store.read(ORDER)
        assert written is not None
        return list(json.loads(written)["arguments"])

    def record(self, name: str, text: str) -> None:
        self.store.write(f"record/run/{name}@000000000000", text.encode())

    def begin(self) -> None:
        """Print a line, and have half of the ledger."""
        lines = self.ledger.splitlines(keepends=True)
        self.record("output.log", "Plan of small\n")
        self.record(home.LEDGER, "".join(lines[: len(lines) // 2]))
        self.tell(None)

    def end(self, code: int = 0, errors: str = "") -> None:
        self.record("output.log", "Plan of small\nits report\n")
        self.record(home.LEDGER, self.ledger)
        self.fail(code, errors)

    def fail(self, code: int, errors: str) -> None:
        self.record("errors.log", errors)
        self.tell(code)

    def tell(self, code: int | None) -> None:
        assert self.place is not None
        self.store.tell(State(time.time(), "i-1", self.place.attempt, code))

    def wait(self, _seconds: float) -> None:
        assert self.steps, "the head is followed for longer than it has steps"
        self.steps.pop(0)(self)


def interrupt(_head: Head) -> None:
    """Press Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def head(
    bench: Bench, at_home: None, simulated: list[Job], monkeypatch: pytest.MonkeyPatch
) -> Head:
    """A head, on a machine that can't control a run; it plays a run that was simulated before."""
    ledger = (bench.ran() / home.LEDGER).read_text()
    made = Head(ledger)
    monkeypatch.chdir(bench.folder)
    monkeypatch.setattr(heads, "offer_head", lambda _experiment, *, force=False: OFFER)
    monkeypatch.setattr(remote, "_calls", lambda _remote: _Cloud())
    monkeypatch.setattr(remote, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(launch, "launch", made.launch)
    monkeypatch.setattr("cloudtune.lifecycle.remote.time.sleep", made.wait)
    return made


def test_the_command_passes_on_what_the_head_prints(bench: Bench, head: Head) -> None:
    head.steps = [Head.begin, Head.end]
    done = bench.here("run", "experiment.yaml").succeeded()
    assert done.out == "Plan of small\nits report\n", "its report isn't printed twice"
    assert f"i-1 (m7i.large, $0.1075 an hour) controls run {head.run}." in done.err
    assert f"`cloudtune stop {head.run}`" in done.err
    assert done.err.endswith("Head i-1 has terminated.\n")
    assert head.order[0] == "run"
    assert head.order[2:] == ["--here", "--yes"]


class Asks(cloudtune.Reporter):
    """A person who looks at the plan, and says no."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.shown: list[float] = []

    def on_planned(self, planned: Any) -> None:
        self.shown.append(planned.plan.estimate.dollars)

    def on_confirm(self, experiment: Any, job: Any) -> None:
        assert experiment.charges.head == OFFER.usd_per_hour
        assert self.shown == [job.plan.estimate.dollars]
        assert not self.head.run, "nothing is rented yet"
        raise UsageError("no")


def test_plan_is_seen_before_a_head_is_rented(
    bench: Bench, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(find_provider("emulated")), "asks_first", "somebody")
    person = Asks(head)
    with pytest.raises(UsageError, match="no"):
        cloudtune.run("experiment.yaml", deadline="20m", budget="$3", reporter=person)
    assert (len(person.shown), head.run) == (1, "")
    with pytest.raises(cloudtune.InfeasibleError):
        cloudtune.run("experiment.yaml", deadline="20m", budget="$0.01", reporter=person)
    assert (len(person.shown), head.run) == (1, "")
    bench.here("run", "experiment.yaml", "--deadline", "20m").refused("somebody needs confirmation")
    assert head.run == ""
    head.steps = [Head.end]
    bench.here("run", "experiment.yaml", "--deadline", "20m", "--yes").succeeded()
    assert head.run


def test_a_package_index_reaches_the_head(
    bench: Bench, head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.pem").write_text("a certificate")
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@index.example.com/simple")
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    head.steps = [Head.end]
    done = bench.here("run", "experiment.yaml").succeeded()
    assert "the head installs from the index of this machine: index.example.com\n" in done.err
    assert "secret" not in done.out + done.err
    assert "export UV_DEFAULT_INDEX=https://user:secret@index.example.com/simple\n" in head.index
    assert f"aws s3 cp --only-show-errors {head.store.make_uri('certificates.pem')}" in head.index
    assert (head.store.read("certificates.pem") or b"").endswith(b"a certificate")


def test_options_reach_the_head(bench: Bench, head: Head) -> None:
    options: dict[str, Any] = {"force": True, "pace": False, "planner": "greedy"}
    head.steps = [Head.end]
    bench.here("run", "experiment.yaml", "--force", "--no-pace", "--planner", "greedy", "-q")
    words = head.order[4:]
    assert sorted(words) == ["--force", "--no-pace", "--planner=greedy", "--quiet"]
    head.steps = [Head.end]
    cloudtune.run("experiment.yaml", progress=False, **options)
    assert set(words) - set(head.order[4:]) == {"--quiet"}


def test_a_program_hears_each_event_once(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    class Heard(cloudtune.Reporter):
        def __init__(self) -> None:
            self.names: list[str] = []
            self.output = ""

        def on_head_start(self, run: Any, offer: Any) -> None:
            self.names.append(run.head)

        def on_head_output(self, text: str) -> None:
            self.output += text

        def on_run_start(self, job: Any, policy: Any) -> None:
            self.names.append(job.run)

        def on_event(self, event: Any, commands: Any) -> None:
            events.append(event)

        def on_run_end(self) -> None:
            self.names.append("end")

        def on_result(self, report: Any, swept: Any) -> None:
            self.names.append(report.ended.value)

    events: list[Any] = []
    heard = Heard()
    called: list[Any] = []
    head.steps = [Head.begin, lambda _: None, Head.end]
    result = cloudtune.run(
        "experiment.yaml", reporter=heard, on_event=lambda event, _: called.append(event)
    )
    assert result.ended == "done"
    assert result.best is not None
    recorded = [entry.event for entry in read_entries(home.runs() / head.run / home.LEDGER)]
    assert events == called == recorded
    assert heard.names == ["i-1", head.run, "end", "done"]
    assert heard.output == "Plan of small\nits report\n"
    assert capsys.readouterr().out == "", "a reporter takes the place of progress"


@pytest.mark.parametrize("begin", [[Head.begin], []], ids=["training", "booting"])
def test_an_interrupt_leaves_the_head_running(bench: Bench, head: Head, begin: list[Step]) -> None:
    head.steps = [*begin, interrupt]
    done = bench.here("run", "experiment.yaml").refused(
        "continues without this machine, controlled by head i-1, and bills",
        "`cloudtune watch small-",
        "`cloudtune stop small-",
        code=9,
    )
    assert head.run in done.err
    assert re.search(r"its \d instances? cost \$\d", done.err) or not begin
    assert head.store.read(STOP) is None
    assert "has terminated" not in done.err


def test_an_interrupt_in_python_names_the_run(head: Head) -> None:
    head.steps = [Head.begin, interrupt]
    with pytest.raises(cloudtune.DetachedError, match="and bills until it ends") as raised:
        cloudtune.run("experiment.yaml", progress=False)
    assert (raised.value.run, raised.value.exit_code) == (head.run, 9)
    assert head.store.read(STOP) is None
    assert cloudtune.load_run(head.run).ended is None, "it is still going"


def test_interrupt_waits_for_head_id(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    def launched(*arguments: Any, **more: Any) -> str:
        interrupt(head)
        return head.launch(*arguments, **more)

    monkeypatch.setattr(launch, "launch", launched)
    with pytest.raises(cloudtune.DetachedError, match="controlled by head i-1"):
        cloudtune.run("experiment.yaml", progress=False)


def test_late_interrupt_says_head_may_bill(
    bench: Bench, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote.Following, "_fetch_experience", lambda _: interrupt(head))
    head.steps = [Head.end]
    bench.here("run", "experiment.yaml").refused(
        "head i-1 terminated; the run has ended, and you interrupted the wait", code=7
    )


@pytest.mark.parametrize(
    ("code", "errors", "kind"),
    [
        (2, "error: no such script", UsageError),
        (3, "infeasible: no plan meets 1s", cloudtune.InfeasibleError),
        (5, "error: measuring may take a quarter", cloudtune.CloudtuneError),
        (7, "error: i-2 may still bill", CleanupError),
        (1, "error: the ledger is damaged", cloudtune.CloudtuneError),
    ],
)
def test_head_error_is_printed_once(
    bench: Bench, head: Head, code: int, errors: str, kind: type[cloudtune.CloudtuneError]
) -> None:
    def fail(head: Head) -> None:
        head.fail(code, f"note: something\n{errors}\n")

    head.steps = [fail]
    done = bench.here("run", "experiment.yaml")
    assert done.code == code, done.err
    assert done.err.count(errors) == 1
    assert done.err.count("error:") == errors.count("error:")
    head.steps = [fail]
    with pytest.raises(kind, match=errors.partition(": ")[2]) as raised:
        cloudtune.run("experiment.yaml", progress=False)
    assert raised.value.exit_code == code


def test_resuming_skips_what_was_heard_and_says_what_changed(bench: Bench, head: Head) -> None:
    head.steps = [Head.begin, interrupt]
    bench.here("run", "experiment.yaml")
    seen = len(list(read_entries(home.runs() / head.run / home.LEDGER)))
    events: list[Any] = []
    head.steps = [Head.end]
    result = cloudtune.resume(
        head.run,
        deadline="+1h",
        changed_script=True,
        progress=False,
        on_event=lambda event, _: events.append(event),
    )
    assert result.ended == "done"
    assert len(events) == head.ledger.count("\n") - 1 - seen
    words = ["--here", "--yes", "--deadline=+1h", "--changed-script"]
    assert head.order == ["resume", head.run, *words]


def test_a_refused_resume_does_not_return_the_old_result(bench: Bench, head: Head) -> None:
    head.steps = [Head.end]
    bench.here("run", "experiment.yaml").succeeded()
    head.steps = [lambda head: head.fail(2, "error: run small has ended\n")]
    with pytest.raises(UsageError, match="has ended"):
        cloudtune.resume(head.run, progress=False)


def test_here_needs_no_head(bench: Bench, head: Head, simulated: list[Job]) -> None:
    begun = len(simulated)
    bench.here("run", "experiment.yaml", "--here", "-q").succeeded("0 instances left")
    assert cloudtune.run("experiment.yaml", here=True, progress=False).ended == "done"
    assert (len(simulated), head.run) == (begun + 2, "")


def test_a_broken_reporter_ends_nothing(head: Head) -> None:
    class Breaks(cloudtune.Reporter):
        def on_run_start(self, job: object, policy: object) -> None:
            raise KeyError("no job")

    head.steps = [Head.begin, Head.end]
    with pytest.warns(RuntimeWarning, match="on_run_start failed, first with KeyError") as found:
        result = cloudtune.run("experiment.yaml", reporter=Breaks())
    assert result.ended == "done"
    assert Path(found[0].filename) == Path(__file__)
    assert "KeyError: 'no job'" in (home.runs() / head.run / "screen.log").read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head.steps = [Head.end]
        cloudtune.run("experiment.yaml", progress=False)
