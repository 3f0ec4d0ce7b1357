"""A bounded queue between a session and a receiver that awaits: while it is full, the peer waits."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from quire.errors import invariant
from quire.link.frames import Frame
from quire.link.session import Session

FRAMES_MAX: Final = 1024
BYTES_MAX: Final = 8 * 1024 * 1024


class Inbox:
    """The frames of one session, in order.

    Fill it from `on_frame`, end it from `on_down`, and iterate over it in one task:

        async for frame in inbox: …

    The iteration ends after the last frame that came. Cancelling it loses no frame.
    """

    def __init__(self, session: Session, *, frames_max: int = FRAMES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._session = session
        self._frames_max = frames_max
        self._bytes_max = bytes_max
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: Frame) -> None:
        """Take a frame. Always succeeds: it is the one that makes the queue full that stops the session."""
        self._frames.append(frame)
        self._bytes += _size(frame)
        if self._is_full():
            self._session.pause_receiving()
        self._wake()

    def end(self) -> None:
        """No frame will follow."""
        self._ended = True
        self._wake()

    def __aiter__(self) -> Inbox:
        return self

    async def __anext__(self) -> Frame:
        while not self._frames:
            if self._ended:
                raise StopAsyncIteration
            invariant(self._waiter is None, "two tasks iterate over one inbox")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        was_full = self._is_full()
        frame = self._frames.popleft()
        self._bytes -= _size(frame)
        if was_full and not self._is_full():
            self._session.resume_receiving()
        return frame

    def _is_full(self) -> bool:
        return len(self._frames) >= self._frames_max or self._bytes >= self._bytes_max

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _size(frame: Frame) -> int:
    return len(frame.header) + len(frame.body)
