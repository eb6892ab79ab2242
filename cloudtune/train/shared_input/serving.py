"""The loading process of all readers of the same batches: its loaders load, and it serves.

It is a fork of the first trial, like a DataLoader's workers, and ends with it or with its last
reader; the remaining readers then begin another at their place.
"""

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from cloudtune.train.shared_input.frames import Frame, write_frame
from cloudtune.train.shared_input.messages import InputMessage, Kind, receive, send
from cloudtune.train.shared_input.order import Batches
from cloudtune.train.shared_input.place import Meeting, end
from cloudtune.train.shared_input.stream import AHEAD, Stream, StreamSeat

# Seconds between two checks that the parent is alive.
_LOOK_SECONDS: Final = 0.5
# Seconds that a server waits for its first reader.
_FIRST_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Loading:
    """What is loaded, by how many processes, and what each calls first, with its number."""

    batches: Batches
    loaders: int = 1
    init: Callable[[int], Any] | None = None


def begin(meeting: Meeting, place: int, loading: Loading) -> int | None:
    """Fork the loading process; return it once it listens, None if another does by now."""
    ready, listening = os.pipe()
    with warnings.catch_warnings():  # about threads, as of 3.12; DataLoader forks too
        warnings.simplefilter("ignore", DeprecationWarning)
        parent = os.getpid()
        child = os.fork()
    if child:
        os.close(listening)
        listens = os.read(ready, 1)
        os.close(ready)
        if listens:
            return child
        os.waitpid(child, 0)
    else:
        _as_process(lambda: _serve(meeting, place, loading, listening, parent))
    return None


def _as_process(run: Callable[[], None]) -> NoReturn:
    """Run in a fork, and end it without the exit handlers of its parent."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        run()
        status = 0
    except BaseException:  # noqa: BLE001  no caller is left
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(status)


def _serve(meeting: Meeting, place: int, loading: Loading, listening: int, parent: int) -> None:
    channels = [_loader(loading, number) for number in range(loading.loaders)]
    held = meeting.listen(place)
    if held is None:
        return
    os.write(listening, b"1")
    os.close(listening)
    try:
        stream = Stream(len(loading.batches), loading.loaders)
        with contextlib.suppress(OSError):
            Server(held[0], channels, stream, parent).run()
    finally:
        meeting.leave(place)


def _loader(loading: Loading, number: int) -> socket.socket:
    """Fork a process that loads batches on request; return the channel to it."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        its.close()
        return ours
    ours.close()
    _as_process(lambda: _load(its, loading, number))


def _load(channel: socket.socket, loading: Loading, number: int) -> None:
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    with contextlib.suppress(OSError):  # the other end is gone
        try:
            if loading.init is not None:
                loading.init(number)
            while True:
                request = receive(channel)
                frame = write_frame(loading.batches[request.epoch, request.number])
                send(channel, InputMessage(Kind.BATCH, request.epoch, request.number, frame))
                frame.close()
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001  the script's: readers report it
            what = f"{type(error).__name__}: {error}"
            send(channel, InputMessage(Kind.FAILED, text=what))


class Server:
    """Serves its readers until the last one, or the trial that it was forked from, is gone."""

    def __init__(
        self, listener: socket.socket, loaders: list[socket.socket], stream: Stream, parent: int
    ) -> None:
        self._listener = listener
        self._loading: dict[socket.socket, deque[int]] = {source: deque() for source in loaders}
        self._stream = stream
        self._parent = parent
        self._failed: InputMessage | None = None
        self._seats: dict[socket.socket, StreamSeat] = {}
        self._frames: dict[int, Frame] = {}
        self._selector = selectors.DefaultSelector()
        for source in (listener, *loaders):
            self._selector.register(source, selectors.EVENT_READ)

    def run(self) -> None:
        wait: float | None = 0.0
        give_up = time.monotonic() + _FIRST_SECONDS
        while os.getppid() == self._parent:
            for key, _ in self._selector.select(min(_LOOK_SECONDS, wait or _LOOK_SECONDS)):
                assert isinstance(key.fileobj, socket.socket)
                self._hear(key.fileobj)
            if self._seats:
                give_up = 0.0  # a failed server ends too, once all readers know
            elif time.monotonic() > give_up:
                return
            wait = self._advance()

    def _hear(self, source: socket.socket) -> None:
        if source is self._listener:
            connection, _ = source.accept()
            self._seats[connection] = StreamSeat()
            self._selector.register(connection, selectors.EVENT_READ)
        elif source in self._seats:
            seat = self._seats[source]
            try:
                message = receive(source)
                if self._failed is not None:
                    send(source, self._failed)
                elif message.kind is Kind.REST:
                    self._stream.rest(seat)
                elif not self._stream.ask(seat, message.epoch, message.number, time.monotonic()):
                    send(source, InputMessage(Kind.ELSEWHERE, message.epoch, message.number))
            except OSError:
                self._forget(source)
        else:
            self._take(source)

    def _take(self, loader: socket.socket) -> None:
        """Take a loaded batch from a loader; an error there ends serving for all, now or later.

        Raises:
            OSError: it was killed.
        """
        message = receive(loader)  # if it was killed, this process ends: readers begin another
        if message.frame is None:
            self._selector.unregister(loader)
            end(loader)
            del self._loading[loader]
            self._failed = message
            for seat in list(self._seats):
                with contextlib.suppress(OSError):
                    send(seat, message)
            return
        at = self._loading[loader].popleft()
        self._frames[at] = message.frame
        for old in self._stream.note_load(at, message.frame.size):
            self._frames.pop(old).close()

    def _advance(self) -> float | None:
        """Hand out loaded batches, and load those that are due; return when to look again."""
        if self._failed is not None:
            return None
        for source, seat in list(self._seats.items()):
            at = self._stream.give(seat)
            if at is not None:
                batch = InputMessage(Kind.BATCH, *self._stream.place(at), self._frames[at])
                try:
                    send(source, batch)
                except OSError:
                    self._forget(source)
        wait: float | None = None
        while True:
            loader, queue = min(self._loading.items(), key=lambda item: len(item[1]))
            now = time.monotonic()
            due, wait = self._stream.due(now) if len(queue) < AHEAD else (None, None)
            if due is None:
                break
            self._stream.note_begin(due, now)
            queue.append(due)
            with contextlib.suppress(OSError):  # its death is noticed next
                send(loader, InputMessage(Kind.ASK, *self._stream.place(due)))
        return wait

    def _forget(self, source: socket.socket) -> None:
        self._selector.unregister(source)
        self._stream.leave(self._seats.pop(source))
        end(source)
