"""Guards of what is acknowledged and confirmed, and of what a refusal means to the fleet
(F2, F3, F5, F6, F9, F10).
"""

from __future__ import annotations

from typing import Final

from tests.mutants.guard import Guard

DRIVER: Final = "loom_mq/engine/driver.py"
ATTEMPTS: Final = "loom_mq/engine/attempts.py"
DISPATCHER: Final = "loom_mq/engine/dispatcher.py"
INTAKE: Final = "loom_mq/engine/intake.py"
CONFIRMS: Final = "loom_mq/broker/amqp/confirms.py"
BURY: Final = "loom_mq/broker/amqp/bury.py"
PACKAGES: Final = "tests/unit/test_guards_packages.py::"
AMQP: Final = "tests/conformance/test_guards_amqp.py::"
AMQP_KIT: Final = "tests/conformance/test_broker_amqp.py::TestAmqpBroker::"
BROKER_KIT: Final = "tests/conformance/test_broker_memory.py::TestMemoryBroker::"
VERDICT: Final = "test_each_message_has_its_own_verdict"
BLOCKED: Final = "tests/conformance/test_broker_memory.py::test_a_blocked_broker_takes_nothing"

SEEDS: Final = "tests/simulation/test_fleet_simulation.py::test_no_rule_is_broken"
KEPT_OUT: Final = (
    "            if isinstance(refusal, StartFencedOutError):\n",
    "            if False:\n",
)
UNREAD: Final = (
    '            delivery.dead_letter(f"{error.code}: {error.message}")\n',
    "            delivery.requeue()\n",
)

SETTLING_GUARDS: Final[tuple[Guard, ...]] = (
    # ---- acknowledged when it is durable ----------------------------------------------------
    Guard(
        "ack-package", "F10", "a first package is let go of before its start is written", DRIVER,
        "        if package.start is not None and fence == 0:\n",
        "        settled.done()\n        if package.start is not None and fence == 0:\n",
        (f"{PACKAGES}test_f10_a_first_package_is_kept_until_its_start_is_written",),
    ),
    Guard(
        "ack-claim", "F10", "a later package is let go of before its claim is written", DRIVER,
        "        while True:\n            verdict = await self._claims.submit(\n",
        "        settled.done()\n        while True:\n"
        "            verdict = await self._claims.submit(\n",
        (f"{PACKAGES}test_f10_a_later_package_is_kept_until_its_claim_is_written",),
    ),
    Guard(
        "ack-start", "F2", "a start is let go of before its row is there", DISPATCHER,
        "        names = correlations(message.items, delivery.correlation_id)\n",
        "        delivery.ack()\n"
        "        names = correlations(message.items, delivery.correlation_id)\n",
        (f"{PACKAGES}test_f2_a_start_is_kept_until_its_row_is_there",),
    ),
    Guard(
        "ack-control", "F2", "an answer is let go of before it is in the inbox",
        "loom_mq/engine/control.py",
        '        kind, name = delivery.content_type, delivery.correlation_id or ""\n',
        "        delivery.ack()\n"
        '        kind, name = delivery.content_type, delivery.correlation_id or ""\n',
        (f"{PACKAGES}test_k7_an_answer_is_kept_until_it_is_in_the_inbox",),
    ),
    Guard(
        "ack-dead", "F2", "a dead letter is let go of before it is recorded", DISPATCHER,
        "        death = death_of(delivery)\n",
        "        delivery.ack()\n        death = death_of(delivery)\n",
        (f"{PACKAGES}test_f2_a_dead_letter_is_kept_until_it_is_recorded",),
    ),
    # ---- confirmed when the broker has it ---------------------------------------------------
    Guard(
        "confirm-amqp", "F10", "what was sent counts as taken, on RabbitMQ",
        "loom_mq/broker/amqp/publisher.py",
        "                await batch.done\n", "                pass\n",
        (f"{AMQP_KIT}{VERDICT}",),
    ),
    Guard(
        "confirm-amqp-returned", "F10", "what came back counts as taken, on RabbitMQ", CONFIRMS,
        "        if unconfirmed.returned:\n", "        if False:\n",
        (f"{AMQP_KIT}{VERDICT}",),
    ),
    Guard(
        "confirm-amqp-refused", "F10", "what was refused counts as taken, on RabbitMQ", CONFIRMS,
        "        elif not taken:\n", "        elif False:\n",
        (f"{AMQP}test_what_the_broker_refuses_is_refused",),
    ),
    Guard(
        "confirm-amqp-lost", "F10", "what went down with the connection counts as taken", CONFIRMS,
        "            unconfirmed.batch.settle(\n                unconfirmed.index,\n"
        "                PublishTimeoutError(\n",
        "            unconfirmed.batch.settle(\n                unconfirmed.index,\n"
        "                None and PublishTimeoutError(\n",
        (f"{AMQP}test_what_went_down_with_the_connection_may_not_be_there",),
    ),
    Guard(
        "confirm-amqp-late", "F10", "what is not confirmed in time counts as taken",
        "loom_mq/broker/amqp/publisher.py",
        "            self._out_of_time(letters, batch, began)\n", "            pass\n",
        ("tests/conformance/test_broker_amqp_faults.py::test_a_frozen_broker_costs_bounded_time",),
    ),
    Guard(
        "confirm-amqp-buried", "F2", "a dead letter goes without a confirm of its copy", BURY,
        "        if verdict is None:\n", "        if True:\n",
        (f"{AMQP}test_the_copy_is_safe_before_the_original_goes",),
    ),
    Guard(
        "confirm-memory", "F10", "what no queue took counts as taken, in memory",
        "loom_mq/broker/memory.py",
        "        verdict = self._hub.route(message)\n",
        "        verdict = self._hub.route(message) and None\n",
        (f"{BROKER_KIT}{VERDICT}",),
    ),
    Guard(
        "confirm-memory-blocked", "F10", "a blocked broker takes messages, in memory",
        "loom_mq/broker/memory.py",
        "        if self._hub.blocked:\n            return PublishTimeoutError(\n",
        "        if False:\n            return PublishTimeoutError(\n",
        (BLOCKED,),
    ),
    Guard(
        "confirm-grouped", "F10", "a message's verdict does not reach what it carried",
        "loom_mq/broker/sender.py",
        "                answers[index] = verdict\n", "                pass\n",
        ("tests/unit/test_guards.py::test_f9_a_wake_that_is_not_confirmed_keeps_its_timer",),
    ),
    # ---- what a refusal means ---------------------------------------------------------------
    Guard(
        "fleet-superseded-claim", "F5", "a claim that lost is tried again and again", DRIVER,
        "        if next_action(threw(error), ENDLESS, key.execution_id) is Action.SETTLE:\n",
        "        if False:\n",
        ("tests/unit/test_engine_handover.py::test_c08_the_same_package_five_times",),
    ),
    Guard(
        "fleet-superseded-append", "F5", "who is superseded in the middle gives back", ATTEMPTS,
        "        if next_action(threw(error), ENDLESS, key.execution_id) is Action.SETTLE:\n",
        "        if False:\n",
        (
            "tests/unit/test_engine_handover.py"
            "::test_f7_a_dead_worker_is_taken_over_and_its_zombie_is_refused",
        ),
    ),
    Guard(
        "fleet-fenced-out", "F6", "a start that a silent holder kept out is let go of", DRIVER,
        *KEPT_OUT, (f"{PACKAGES}test_f6_a_start_that_a_silent_holder_kept_out_goes_on",),
    ),
    Guard(
        "pair-fenced-out-sweep", "F6", "the same, without the sweep that hides it", DRIVER,
        *KEPT_OUT, (SEEDS,),
        (
            (
                "loom_mq/engine/sweep.py",
                "        for sweep in (self.abandoned, self._unsent):\n",
                "        for sweep in (self.abandoned,):\n",
            ),
        ),
    ),
    # ---- what nobody can read ---------------------------------------------------------------
    Guard(
        "package-malformed", "F2", "what cannot be read goes to the next worker", INTAKE,
        *UNREAD, (f"{PACKAGES}test_f2_what_cannot_be_read_dies_at_once_and_says_why",),
    ),
    Guard(
        "pair-malformed-limit", "F2", "the same for ever, without the limit that hides it", INTAKE,
        *UNREAD, (f"{PACKAGES}test_f2_what_cannot_be_read_dies_in_the_end",),
        (
            (
                "loom_mq/broker/memory_queue.py",
                "            if limit is not None and stored.returns > limit:\n",
                "            if False:\n",
            ),
        ),
    ),
)  # fmt: skip
