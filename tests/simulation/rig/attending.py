"""The client of a simulated execution: starts it, answers, cancels, and hears how it ended."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import loom_mq as loom
from loom_mq.client.client import Client
from loom_mq.client.handle import Handle
from loom_mq.clock import MICROS
from loom_mq.model.messages import RefusalReason
from tests.simulation.rig.choices import Choices
from tests.simulation.rig.jobs import Answer, Job
from tests.simulation.rig.nodes import EPOCH
from tests.simulation.rig.observer import Observer, Told
from tests.simulation.rig.player import simulated
from tests.simulation.rig.reference import answer_to

PATIENCE: Final = 5.0
"""Seconds that a client waits for an answer before it asks again."""
FINAL: Final = frozenset({RefusalReason.WRONG_TYPE, RefusalReason.TERMINAL})
"""Refusals that no later answer changes."""
_AGAIN: Final = (loom.WaitTimeoutError, loom.BrokerError)


async def attend(job: Job, client: Client, choices: Choices, observer: Observer) -> None:
    """Play the client of one execution until it has heard how that ended."""
    await _Client(job, client, choices, observer).run()


class _Client:
    def __init__(self, job: Job, client: Client, choices: Choices, observer: Observer) -> None:
        self._job = job
        self._client = client
        self._choices = choices
        self._observer = observer
        self._ended = False

    async def run(self) -> None:
        job = self._job
        await asyncio.sleep(job.delay)
        handle = await self._start(again=False)
        self._tell("accepted-start", None)
        beside = [
            asyncio.create_task(work)
            for work in (
                self._outcome(handle),
                self._judge(handle),
                *(self._answer(handle, answer) for answer in job.answers),
                *([self._cancel(handle)] if job.cancel else []),
                *([self._start_twice()] if job.twice or job.other else []),
            )
        ]
        await beside[0]
        self._ended = True
        for each in beside[1:]:
            each.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        for each in beside[1:]:
            if not each.cancelled() and (error := each.exception()) is not None:
                raise error

    async def _start(self, *, again: bool) -> Handle[list[Any]]:
        while True:
            try:
                return await self._client.start(simulated, again, id=self._job.id, timeout=PATIENCE)
            except _AGAIN:
                await self._pause()

    async def _start_twice(self) -> None:
        await self._pause()
        if self._job.twice:
            await self._start(again=False)
        if self._job.other:
            try:
                await self._start(again=True)
            except loom.StartConflictError:
                self._tell("conflict", None)
            else:
                self._tell("no-conflict", None)

    async def _outcome(self, handle: Handle[list[Any]]) -> None:
        while True:
            try:
                value = await handle.result(timeout=60.0)
            except _AGAIN:
                continue
            except loom.ExecutionFailedError as error:
                self._tell("failed", error)
            except loom.ExecutionCancelledError as error:
                self._tell("cancelled", error)
            else:
                self._tell("completed", value)
            return

    async def _answer(self, handle: Handle[list[Any]], answer: Answer) -> None:
        """Send an answer under one id until it has arrived or it is too late."""
        gate = f"gate {answer.node}"
        if not answer.early:
            await self._until_waiting(handle, gate)
        if answer.wrong:
            await self._send(handle, gate, "no number", f"wrong {answer.node}")
        for _ in range(1 + answer.twice):
            await self._send(handle, gate, answer_to(answer.node), f"answer {answer.node}")
            await self._pause()

    async def _send(
        self, handle: Handle[list[Any]], gate: str, value: object, answer_id: str
    ) -> None:
        while not self._ended:
            try:
                answered = await handle.resume(gate, value, answer_id=answer_id, timeout=PATIENCE)
            except _AGAIN:
                await self._pause()
            except loom.ResumeRefusedError as error:
                self._tell("answer-refused", (answer_id, error.reason))
                if error.reason in FINAL:
                    return
                await self._pause()  # it waits for a verdict before
            else:
                self._tell("answer-accepted", (answer_id, answered))
                return

    async def _until_waiting(self, handle: Handle[list[Any]], gate: str) -> None:
        while not self._ended:
            await self._pause(1.0)
            try:
                state = await self._look(handle)
            except _AGAIN:
                continue
            if gate in state.gates or state.status.terminal:
                return

    async def _look(self, handle: Handle[list[Any]]) -> loom.ExecutionState:
        state = await handle.state(timeout=PATIENCE)
        self._tell("saw", state.status)
        return state

    async def _judge(self, handle: Handle[list[Any]]) -> None:
        """Give a verdict on whatever is in doubt."""
        while not self._ended:
            await asyncio.sleep(5.0)
            try:
                state = await self._look(handle)
                for step in state.in_doubt:
                    await self._verdict(handle, step)
            except _AGAIN:
                continue
            except loom.ResumeRefusedError:
                continue  # somebody was faster: this client itself

    async def _verdict(self, handle: Handle[list[Any]], step: str) -> None:
        if self._job.again:
            await handle.verdict(step, run_again=True, timeout=PATIENCE)
            self._tell("verdict-again", step)
        else:
            node = int(step.removeprefix("careful"))
            await handle.verdict(step, completed=node * 10, timeout=PATIENCE)
            self._tell("verdict-completed", step)

    async def _cancel(self, handle: Handle[list[Any]]) -> None:
        await asyncio.sleep(self._job.cancel)
        while not self._ended:
            try:
                await handle.cancel("enough", timeout=PATIENCE)
            except _AGAIN:
                await self._pause()
            except loom.ExecutionEndedError:
                self._tell("cancel-refused", None)
                return
            else:
                self._tell("cancel-accepted", None)
                return

    async def _pause(self, longest: float = 3.0) -> None:
        await asyncio.sleep(0.01 + self._choices.delay("pause", longest))

    def _tell(self, what: str, value: object) -> None:
        now = EPOCH + int(asyncio.get_running_loop().time() * MICROS)
        self._observer.told(
            Told(execution_id=f"{self._job.tenant}/{self._job.id}", what=what, value=value, at=now)
        )
