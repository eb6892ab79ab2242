"""What benchmarks share: options, Markdown tables, and work in several processes."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


def parser(doc: str | None, **options: Any) -> argparse.ArgumentParser:
    """Return a parser whose help is a module's docstring.

    Args:
        doc: The docstring.
        options: Name and default of an option, as in `runs=1000`. The default says what the option
            takes: False is a flag, a tuple is a list with commas, all else has the default's type.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in options.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        else:
            kind = words if isinstance(default, tuple) else type(default)
            parser.add_argument(flag, type=kind, default=default)
    return parser


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, words(text)))


def print_table(rows: Iterable[Mapping[str, object]]) -> None:
    """Print rows as a Markdown table, each as soon as it is there, under the names of the first."""
    for number, row in enumerate(rows):
        if number == 0:
            print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}")
        print(f"| {' | '.join(map(str, row.values()))} |", flush=True)


def in_processes(
    work: Callable[[Item], Outcome],
    items: Sequence[Item],
    processes: int,
    *,
    begin: Callable[..., None] | None = None,
    given: tuple[Any, ...] = (),
    in_order: bool = True,
) -> Iterator[Outcome]:
    """Yield what the work on each item comes to.

    Args:
        work: A function of a module, as it is sent to the processes.
        items: What it is called with.
        processes: How many there are; with one, all is done in this process.
        begin: Called with `given` in each process before any work.
        given: Its arguments.
        in_order: Whether outcomes come in the order of the items, or as they are done.
    """
    if processes == 1:
        if begin is not None:
            begin(*given)
        yield from map(work, items)
        return
    # Fresh processes: a fork would take over whatever threads pyarrow has started.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, fresh, _begin, (begin, given)) as pool:
        try:
            if in_order:
                share = max(1, min(16, len(items) // (4 * processes)))
                yield from pool.map(work, items, chunksize=share)
            else:
                for future in as_completed([pool.submit(work, item) for item in items]):
                    yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin(begin: Callable[..., None] | None, given: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent heeds Ctrl-C
    if begin is not None:
        begin(*given)
