"""Pages of runs and plans: what the files hold, and what a browser makes of them."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from cloudtune.display.pages.document import library
from cloudtune.display.pages.figures import Figure
from cloudtune.display.pages.gantt import gpus
from cloudtune.display.pages.plans import plan_page
from cloudtune.display.pages.reports import figures, run_page
from cloudtune.model.events import TrialFailed
from cloudtune.model.plans import Charges, Limits
from cloudtune.runs.report import Report, build
from tests.bench import called
from tests.browser import CHROMIUM, Browser, Page, started
from tests.builders import NODE_BOUNDARY, Setting, keep_run, play, profile
from tests.builders.proposals import proposal

LIMITS = Limits(deadline=200.0, budget=4.0)
SETTING = Setting(12, 2, 18, 3, profile=profile(NODE_BOUNDARY), max_instances=3, limits=LIMITS)
PLAN = SETTING.plan(limits=Limits(deadline=105.0))
EVIL = "</script><script>window.hurt=1</script><img src=x onerror=window.hurt=1> & 'q' \"p\" %{x}"


def simulate_report(
    *trouble: Any, until: float = 1e9, setting: Setting = SETTING, name: str = "r1"
) -> Report:
    """Return the report of a simulated run; `until` is when its controller died."""
    entries = play(setting.but(trouble=trouble), PLAN).entries
    job = replace(setting.job(PLAN), run=name)
    return build(job, tuple(entry for entry in entries if entry.event.at <= until))


def points(figure: Figure, trial: str = "") -> list[tuple[float, float]]:
    return [
        (x, y)
        for trace in figure.data
        for x, y, own in zip(trace["x"], trace["y"], trace.get("customdata", ()), strict=False)
        if own is not None and (not trial or own[0] == trial)
    ]


def test_page_marks_every_epoch() -> None:
    report = simulate_report()
    drawn = figures(report)
    counted = report.timeline.final_epochs()
    for trial in report.policy.trials:
        own = [item for (name, _), item in counted.items() if name == trial]
        marks = {
            (item.report.at / drawn_unit(drawn["metric"]), item.report.metrics["score"])
            for item in own
        }
        assert marks <= set(points(drawn["metric"], trial))
    best_so_far = next(t for t in drawn["metric"].data if t["name"] == "best so far")
    assert best_so_far["y"] == sorted(best_so_far["y"])
    assert best_so_far["y"][-1] == max(item.report.metrics["score"] for item in counted.values())
    dollars = [x for x, _ in points(drawn["metric_by_dollars"])]
    assert 0 < max(dollars) <= report.dollars


def drawn_unit(figure: Figure) -> float:
    return {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}[
        figure.layout["xaxis"]["title"]["text"]
    ]


@pytest.mark.parametrize("charges", [Charges(), Charges(0.5, 0.01)])
def test_page_bill_ends_at_report_bill(charges: Charges) -> None:
    setting = SETTING.but(charges=charges)
    plan = setting.plan(limits=Limits(deadline=105.0))
    report = build(replace(setting.job(plan), run="r"), play(setting, plan).entries)
    assert report.spent(report.timeline.over_at) == pytest.approx(report.dollars)
    spent = next(t for t in figures(report)["spend"].data if t["name"] == "spent")
    assert spent["y"] == sorted(spent["y"])
    assert spent["y"][-1] == pytest.approx(report.dollars)


@pytest.mark.parametrize("trouble", [(), (TrialFailed(27.0, "t03.1", "ValueError: lr", "…"),)])
def test_gantt_chart_adds_up(trouble: tuple[Any, ...]) -> None:
    report = simulate_report(*trouble)
    chart, unit = gpus(report), drawn_unit(gpus(report))
    area: dict[str, float] = {}
    bars = []
    for trace in chart.data[:-1]:
        for x, base, y, height, own in zip(
            *(trace[key] for key in ("x", "base", "y", "width", "customdata")), strict=True
        ):
            kind = "training" if trace["name"].startswith("trains") else trace["name"]
            real = height / (0.9 if own[0] else 0.98)
            area[kind] = area.get(kind, 0.0) + x * unit * real
            if own[0]:
                bars.append((base, base + x, y - real / 2, y + real / 2))
    amounts = report.accounting.amounts
    trained = amounts["training"].gpu_seconds + amounts["checkpoint"].gpu_seconds
    assert area["training"] == pytest.approx(trained, rel=0.02)
    assert area["boots"] == pytest.approx(report.accounting.boot.gpu_seconds, rel=0.01)
    for number, one in enumerate(bars):
        for other in bars[number + 1 :]:
            side = one[1] <= other[0] + 1e-6 or other[1] <= one[0] + 1e-6
            above = one[3] <= other[2] + 1e-6 or other[3] <= one[2] + 1e-6
            assert side or above, (one, other)


def test_dead_run_is_drawn_to_its_end() -> None:
    whole = simulate_report()
    for until in (-1.0, 0.0, 3.0, whole.timeline.over_at / 2):
        died = simulate_report(until=until)
        page = run_page(died)
        assert "not yet, or its controller died" in page
        assert all(at <= max(until, 0.0) for at, _ in died.fleet)
    assert "not yet, or its controller died" not in run_page(whole)


def test_nested_missing_and_odd_parameters_have_an_axis() -> None:
    report = simulate_report()
    odd: list[dict[str, Any]] = [
        {"optimizer": {"name": "sgd", "lr": 1e-4}, "x": 1},
        {"optimizer": {"name": "adam"}, "x": float("nan")},
        {"optimizer": {"lr": 1.0}, "x": [1, 2]},
        {},
    ]
    for trial, config in zip(report.policy.trials.values(), odd * 3, strict=True):
        trial.trial = replace(trial.trial, config=config)
    chart = figures(report)["configurations"]
    assert chart.layout["xaxis"]["ticktext"] == ["optimizer/name", "optimizer/lr", "x", "score"]
    texts = {own[1] for trace in chart.data for own in trace.get("customdata", ()) if own}
    assert {"optimizer/name: sgd", "optimizer/lr: 0.0001", "optimizer/lr: none"} <= texts
    run_page(report)


def evil() -> Report:
    """Return the report of a run in which every text that a user has a say in is markup."""
    report = simulate_report(TrialFailed(27.0, "t03.1", EVIL, EVIL), name=EVIL)
    for trial in report.policy.trials.values():
        trial.trial = replace(trial.trial, config={EVIL: EVIL, "x": 3})
    experiment = report.job.experiment.model_copy(update={"name": EVIL})
    return replace(report, job=replace(report.job, experiment=experiment))


def test_page_is_self_contained() -> None:
    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.tags: list[str] = []
            self.links: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append(tag)
            self.links += [f"{n}={v}" for n, v in attrs if n in {"src", "href", "srcset", "action"}]
            self.links += [f"{tag} {n}" for n, _ in attrs if n.startswith("on")]

    for page in (run_page(evil()), plan_page(proposal(name=EVIL))):
        reader = Reader()
        reader.feed(page)
        assert reader.links == []
        assert reader.tags.count("script") == 3
        assert {"img", "link", "iframe", "object", "base"}.isdisjoint(reader.tags)
        data = re.search(r'id="data">([^<>&]*)</script>', page)
        assert data is not None
        assert json.loads(data[1])["figures"]
        assert "default-src 'none'" in page
        assert "@import" not in page
        assert not re.search(r"url\((?!#)", page[: page.index("</style>")])


def test_many_trials_keep_page_small() -> None:
    setting = Setting(100, 1, 4, 4, max_instances=8)
    job = setting.job()
    report = build(replace(job, run="r"), play(setting, job.policy()).entries)
    page = run_page(report)
    assert len(page) - len(library()) < 100 * 1500
    assert page.count("<option>") == 100
    assert all(len(value.data) < 12 for value in figures(report).values())


@pytest.fixture
def home(folder: Path) -> Path:
    """A home with one run, as the folder that commands are given in."""
    job = replace(SETTING.job(PLAN), run="digits-1")
    keep_run(folder / "home", job, play(SETTING, PLAN).entries)
    return folder


def test_report_writes_a_page(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = called(capsys, "report", "digits-1", "--html")
    assert (said.code, said.out) == (0, "")
    assert re.fullmatch(r"Wrote digits-1\.html \(\d\.\d MB\): open it in a browser\n", said.err)
    page = (home / "digits-1.html").read_text()
    text = called(capsys, "report", "digits-1").out
    for line in (line.strip() for line in text.splitlines() if line.startswith("Best:")):
        assert line in page
    said = called(capsys, "report", "--html", "mine.html", "-o", "json")
    assert json.loads(said.out)["run"] == "digits-1"
    assert (home / "mine.html").read_text() == page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("report --html digits-1", "--html digits-1: name a file that ends in .html"),
        ("report --html no/where.html", "can't be written"),
        ("plan x.yaml --html plan.png", "--html plan.png: name a file that ends in .html"),
    ],
)
def test_a_mistake_is_reported_at_once(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    called(capsys, *arguments.split()).refused(words)
    assert not list(home.glob("*.html"))


def test_without_plotly_its_extra_is_named(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloudtune import errors

    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    for command in ("report", "plan x.yaml", "simulate x.yaml"):
        said = called(capsys, *command.split(), "--html", "a.html")
        assert said.code == 2, command
        assert "needs plotly, which is not installed: pip install 'cloudtune[plots]'" in said.err


def test_plans_and_simulations_are_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    experiment = Path(__file__).parents[2] / "examples" / "digits" / "experiment.yaml"
    given = [experiment, "--profile", "resnet50-cifar10@v100", "--instances", "p3.2xlarge"]
    given += ["--deadline", "2h", "--budget", "20"]
    called(capsys, "plan", *given, "--html", tmp_path / "p.html").succeeded("Plan of digits")
    assert "Cost against time" in (tmp_path / "p.html").read_text()
    called(capsys, "simulate", *given, "--html", tmp_path / "s.html").succeeded()
    assert "simulated: the metrics are made up" in (tmp_path / "s.html").read_text()


in_a_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium here (Debian's package of that name)"
)


@pytest.fixture(scope="module")
def browser(leaves_nothing: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(tmp_path_factory.mktemp("chromium")) as result:
        yield result


def open_page(browser: Browser, folder: Path, text: str) -> Page:
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    page = browser.open(path)
    page.wait_until("document.documentElement.dataset.drawn !== undefined")
    return page


def check_quiet(page: Page) -> None:
    """Pass if nothing went wrong, nothing was asked for but the file, and no button sends it."""
    buttons = page("[...document.querySelectorAll('.modebar-btn')].map(e => e.dataset.title)")
    assert {"Download plot as a PNG", "Zoom"} <= set(buttons)
    assert not [item for item in buttons if "hare" in item or "loud" in item]
    assert page("document.querySelectorAll('a[href], [src]').length") == 0
    assert page.complaints == []
    assert [item for item in page.asked if not item.startswith(("file:", "data:", "blob:"))] == []
    assert len([item for item in page.asked if item.startswith("file:")]) == 1


@in_a_browser
@pytest.mark.walk("a browser takes seconds to draw a page")
def test_browser_draws_schemes_and_print(browser: Browser, tmp_path: Path) -> None:
    report = evil()
    page = open_page(browser, tmp_path, run_page(report))
    drawn = figures(report)
    assert page("document.querySelectorAll('.chart').length") == len(drawn) == 5
    assert page("document.querySelectorAll('.chart .main-svg').length") >= 2 * len(drawn)
    assert page("document.querySelectorAll('#figure-0 .scatterlayer .trace').length") >= 4
    assert page("document.querySelectorAll('#figure-2 .barlayer .point').length") > 12
    assert page("window.hurt") is None
    assert page("document.querySelector('h1').textContent") == f"Run {EVIL}"
    assert page("document.getElementById('figure-0').ariaLabel").startswith("score against time: ")
    check_highlight(page)
    colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle("
    colours += "document.querySelector('#figure-0 .xtick text')).fill].join(' ')"
    seen = set()
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        seen.add(page(colours))
    assert seen == {"rgb(255, 255, 255) rgb(29, 36, 48)", "rgb(20, 24, 31) rgb(230, 233, 238)"}
    assert page.pdf().startswith(b"%PDF")
    page.scheme("dark", "print")
    assert page(colours) == "rgb(255, 255, 255) rgb(0, 0, 0)"
    check_quiet(page)


def check_highlight(page: Page) -> None:
    """Pass if the trial that is chosen is marked in each chart of trials, and named as text."""
    marked = "[0, 1, 2, 4].map(n => document.getElementById(`figure-${n}`).data.at(-1).x.length)"
    assert page(marked) == [0, 0, 0, 0]
    page("Plotly.Fx.hover('figure-0', [{curveNumber: 0, pointNumber: 0}])")
    shown = page("document.querySelector('#figure-0 .hoverlayer').textContent")
    assert re.match(r"t\d\d, epoch 1: 0\.\d+.* seconds, 1 GPU", shown)
    page(
        "{const s = document.getElementById('trial'); s.value = 't03'; "
        "s.dispatchEvent(new Event('change'));}"
    )
    assert f"failed: {EVIL}" in page("document.getElementById('chosen').textContent")
    clicked = "{points: [{customdata: ['t01']}]}"
    page(f"document.getElementById('figure-0').emit('plotly_click', {clicked})")
    assert page("document.getElementById('trial').value") == "t01"
    assert all(page(marked))
    page("document.getElementById('figure-0').emit('plotly_doubleclick')")
    assert page(marked) == [0, 0, 0, 0]


@in_a_browser
@pytest.mark.walk("a browser takes seconds to draw a page")
def test_a_browser_draws_a_plan(browser: Browser, tmp_path: Path) -> None:
    page = open_page(browser, tmp_path, plan_page(proposal(name=EVIL)))
    assert page("document.querySelectorAll('.chart .main-svg').length") >= 6
    assert page("document.querySelectorAll('#figure-0 .scatterlayer .trace').length") >= 3
    assert page("document.querySelectorAll('#figure-1 .barlayer .point').length") == 4
    assert page("window.hurt") is None
    check_quiet(page)


@in_a_browser
@pytest.mark.walk("a browser takes seconds to draw a page")
def test_markup_put_into_a_page_does_not_run(browser: Browser, tmp_path: Path) -> None:
    """The page's rule keeps a browser from what its escapes might let through."""
    put = "<main><img src=https://e.org/x><script>window.hurt=1</script>"
    path = tmp_path / "page.html"
    path.write_text(run_page(simulate_report()).replace("<main>", put, 1).replace(library(), ""))
    page = browser.open(path)
    assert page("window.hurt") is None
    refused = [complaint for complaint in page.complaints if "Content Security Policy" in complaint]
    assert len(refused) == 2
