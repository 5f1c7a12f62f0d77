"""What a flow waits for from outside: time, and answers (F9, K7). A wait that is not over
parks the execution.
"""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from loom_mq.codec.values import ValueCodec
from loom_mq.errors import CodecError, GateTimeoutError
from loom_mq.flows.desk import Call, Desk
from loom_mq.kernel.fold import Answer
from loom_mq.model import events as ev
from loom_mq.model.events import Wait, WaitKind
from loom_mq.model.execution import InboxItem


class Waits:
    """The waits of one run of a flow."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._open: dict[str, Wait] = {}
        self._backing_off: dict[str, Wait] = {}

    @property
    def all(self) -> tuple[Wait, ...]:
        """What a park now would wait for, in the order of the flow's places."""
        return (*self._open.values(), *self._backing_off.values())

    async def sleep_until(self, place: str, due: int) -> None:
        """A durable sleep; `due` counts only the first time (F9)."""
        desk = self._desk
        call = desk.enter(place)
        try:
            if await self._known(call) is None:
                await desk.may_begin(call, though_frozen=True)
                known = desk.log.state.waits.get(place)
                await self.park_on(known or Wait(place, WaitKind.TIMER, "", due))
        finally:
            desk.leave(call)

    async def gate(
        self, place: str, name: str, codec: ValueCodec, type_name: str, due: int | None
    ) -> object:
        """Wait for an answer (K7).

        Raises:
            GateTimeoutError: `due` passed without one.
        """
        desk = self._desk
        call = desk.enter(place)
        try:
            answer = await self._known(call)
            if answer is None:
                # taken also while frozen: an answer left lying would wake the execution again
                await desk.may_begin(call, though_frozen=True)
                item = await self._take(call, name, codec)
                if item is None:
                    known = desk.log.state.waits.get(place)
                    await self.park_on(known or Wait(place, WaitKind.GATE, name, due, type_name))
                answer = Answer(item.payload)
        finally:
            desk.leave(call)
        if answer.payload is None:
            execution_id = desk.log.key.execution_id
            raise GateTimeoutError(
                f"execution {execution_id!r}: no answer came to gate {name!r} in time",
                execution_id=execution_id,
            )
        return codec.decode(answer.payload)

    async def _known(self, call: Call) -> Answer | None:
        if self._desk.turns.is_ahead(call.place):
            await self._desk.recall(call)
        return self._desk.log.state.answers.get(call.place)

    async def _take(self, call: Call, name: str, codec: ValueCodec) -> InboxItem | None:
        """The oldest answer that fits, recorded; those that do not are refused."""
        desk = self._desk
        while (item := desk.mail.take(name, call.place)) is not None:
            try:
                codec.decode(item.payload, what="answer")
            except CodecError as error:
                desk.refuse(item, error)
                continue
            try:
                turn = await desk.turns.turn()
            except BaseException:
                desk.mail.put_back(item)
                raise
            desk.log.emit(
                ev.AnswerTaken(call.place, name, item.payload, item.item_id, turn, item.actor),
                consume=item.item_id,
                on_durable=partial(desk.taken, item),
            )
            return item
        return None

    async def park_on(self, wait: Wait) -> NoReturn:
        """Wait for something that only a later run of the flow will see."""
        desk = self._desk
        self._open[wait.id] = wait
        desk.frozen = True
        desk.changed()
        try:
            await desk.limbo.stay()
        finally:
            if not desk.over:
                # a branch that was cancelled waits for nothing any more; the last one
                # thaws the rest
                self._open.pop(wait.id, None)
                if not self._open:
                    desk.thaw()

    def back_off(self, place: str, wait: Wait) -> None:
        """A pause in memory; a park that is decided before the step goes on must wake for it."""
        self._backing_off[place] = wait

    def backed_off(self, place: str) -> None:
        """The step goes on, or nobody waits for it any more."""
        self._backing_off.pop(place, None)
