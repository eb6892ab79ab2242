"""The figure of a run, as `report --figure` and the README have it: what its SVG holds."""

import sys
from pathlib import Path
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

import pytest

from cloudtune.display.pages.picture import DARK, LIGHT, Theme, draw
from cloudtune.model.events import TrialFailed
from docs import picture
from tests.bench import called
from tests.builders import keep_run, play
from tests.display.test_pages import PLAN, SETTING, simulate_report

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: Element, tag: str) -> list[str]:
    return [item.text or "" for item in svg.iter(f"{SVG}{tag}")]


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_a_picture_shows_each_trial_and_nothing_private(theme: Theme) -> None:
    report = simulate_report(TrialFailed(27.0, "t03.1", "ValueError: lr", "…"))
    drawn = draw(report, theme)
    svg = ET.fromstring(drawn)
    assert set(report.policy.trials) <= set(texts(svg, "title"))
    assert len(drawn.encode()) < 60_000
    assert svg.attrib["width"] == "800"
    tags = {item.tag.removeprefix(SVG) for item in svg.iter()}
    assert not tags & {"script", "image", "foreignObject", "style"}
    assert "score" in texts(svg, "text")


def test_a_run_is_drawn_in_both_themes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_run(folder / "home", SETTING.job(PLAN), play(SETTING, PLAN).entries)
    monkeypatch.setattr(sys, "argv", ["picture", "r1", "--out", "img"])
    picture.main()
    for name in ("run-light.svg", "run-dark.svg"):
        ET.parse(folder / "img" / name)


def test_report_writes_a_figure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep_run(folder / "home", SETTING.job(PLAN), play(SETTING, PLAN).entries)
    said = called(capsys, "report", "r1", "--figure", "curves.svg").succeeded()
    assert (said.out, said.err) == ("", "Wrote curves.svg (0.0 MB): open it in a browser\n")
    assert "score" in texts(ET.parse(folder / "curves.svg").getroot(), "text")
    called(capsys, "report", "r1", "--figure", "curves.png").refused("ends in .svg")
