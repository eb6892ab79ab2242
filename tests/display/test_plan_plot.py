from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from cloudtune.display.plan_plot import save
from cloudtune.errors import UsageError
from cloudtune.plans import Limits
from tests.builders.proposals import COMPARED, MIXED, proposal

if TYPE_CHECKING:
    from pathlib import Path


def page(tmp_path: Path, **given: object) -> str:
    path = tmp_path / "plan.html"
    save(path, proposal(**given))
    return path.read_text(encoding="utf-8")


def test_a_png(tmp_path: Path) -> None:
    path = tmp_path / "plan.PNG"
    save(path, proposal())
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(content[16:20]) == 1800
    assert int.from_bytes(content[20:24]) == 750


def test_a_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert text.startswith("<!DOCTYPE html>")
    links = re.findall(r'([\w:]+)="[^"]*http', text)
    assert links
    assert all(name.startswith("xmlns") for name in links)
    assert len(re.findall("http", text)) == len(links)
    assert not re.search(r"<(script|link|img|iframe)", text)
    assert all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', text))


def test_a_page_is_well_formed(tmp_path: Path) -> None:
    class Balance(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag != "meta":
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Balance()
    parser.feed(page(tmp_path, comparison=COMPARED))
    assert parser.open == []


def test_a_page_has_the_figure_and_every_table(tmp_path: Path) -> None:
    text = page(tmp_path, comparison=COMPARED)
    assert text.count("<svg") == 1
    for label in (
        *("Cost against time", "this plan", "best static", "deadline 30m", "budget $5.00"),
        *("p9.big spot us-east-1a", "g9.small on-demand"),
    ):
        assert label in text[text.index("<svg") : text.index("</svg>")]
    titles = re.findall("<h2>(.*?)</h2>", text)
    basis = proposal().basis.text
    assert titles[0] == f"Stages, {basis}"
    taken = "(--point N takes one, --save FILE keeps it)"
    assert titles[2:] == [
        f"Alternatives, {basis} (each followed as it is)",
        f"The front, {basis}: the cheapest for its time {taken}",
        "What a run creates",
        f"Planners, {basis}",
    ]
    assert "<td>$11.21</td>" in text
    assert "<dd>$6.50: every spot instance is taken back once</dd>" in text


def test_names_are_no_markup(tmp_path: Path) -> None:
    odd = replace(proposal().alternatives[0], name="<i>$x^$ & _")
    text = page(tmp_path, name="<b>bold</b>", alternatives=(odd,))
    assert "<title>Plan of &lt;b&gt;bold&lt;/b&gt;</title>" in text
    assert "<b>" not in text
    assert "<i>" not in text


def test_equal_proposals_give_equal_pages(tmp_path: Path) -> None:
    assert page(tmp_path) == page(tmp_path)


@pytest.mark.parametrize(
    "limits", [Limits(), Limits(deadline=1.0), Limits(1e9, 1e9), Limits(budget=0.001)]
)
def test_a_single_plan_and_limits_anywhere(tmp_path: Path, limits: Limits) -> None:
    text = page(tmp_path, limits=limits, front=(MIXED,), alternatives=())
    assert "this plan" in text
    assert "Alternatives" not in text


def test_another_ending_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"plan\.pdf: name a file that ends in \.png or \.html"):
        save(tmp_path / "plan.pdf", proposal())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be written"):
        save(tmp_path / "nowhere" / "plan.png", proposal())


def test_matplotlib_is_loaded_only_for_a_plot() -> None:
    code = "import cloudtune.display.plan_plot, sys; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
