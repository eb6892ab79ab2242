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


def test_a_run_is_drawn_in_both_themes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_run(tmp_path / "home", SETTING.job(PLAN), play(SETTING, PLAN).entries)
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", ["picture", "r1", "--out", str(tmp_path / "img")])
    picture.main()
    for name in ("run-light.svg", "run-dark.svg"):
        ET.parse(tmp_path / "img" / name)


def test_report_writes_a_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_run(tmp_path / "home", SETTING.job(PLAN), play(SETTING, PLAN).entries)
    monkeypatch.setenv("CLOUDTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    said = called(capsys, "report", "r1", "--figure", "curves.svg").succeeded()
    assert (said.out, said.err) == ("", "Wrote curves.svg (0.0 MB): open it in a browser\n")
    assert "score" in texts(ET.parse(tmp_path / "curves.svg").getroot(), "text")
    called(capsys, "report", "r1", "--figure", "curves.png").refused("ends in .svg")
