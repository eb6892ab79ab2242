"""`cloudtune docs`: the pages of the documentation, which the package carries."""

from importlib.resources import files
from importlib.resources.abc import Traversable

import click

from cloudtune.display.terminal import console
from cloudtune.errors import UsageError, nearest

# The page for programs is the skill that agents read.
_AGENT = "agent"


def pages() -> dict[str, Traversable]:
    """Return the pages by topic."""
    package = files("cloudtune")
    found = {
        page.name.removesuffix(".md"): page
        for page in (package / "docs").iterdir()
        if page.name.endswith(".md")
    }
    return {_AGENT: package / "agent" / "SKILL.md", **dict(sorted(found.items()))}


def _topics(context: click.Context, parameter: click.Parameter, prefix: str) -> list[str]:  # noqa: ARG001
    return [topic for topic in pages() if topic.startswith(prefix)]


@click.command()
@click.argument("topic", required=False, shell_complete=_topics)
def docs(topic: str | None) -> None:
    """Print a page of this version's documentation. Without TOPIC, the topics.

    A terminal gets it laid out, a pipe as Markdown.
    """
    found = pages()
    if topic is None:
        width = max(map(len, found))
        for name, page in found.items():
            click.echo(f"{name:{width}}  {_title(page)}")
        return
    if topic not in found:
        raise UsageError(
            f"no topic {topic!r}.{nearest(topic, found)} List the topics: cloudtune docs"
        )
    text = found[topic].read_text(encoding="utf-8")
    out = console()
    if out.is_terminal:
        from rich.markdown import Markdown

        out.print(Markdown(text))
    else:
        click.echo(text, nl=False)


def _title(page: Traversable) -> str:
    lines = page.read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("# ") for line in lines if line.startswith("# "))
