"""The broker on RabbitMQ: the only room that knows an AMQP library."""

from loom_mq.broker.amqp.broker import AmqpBroker

__all__ = ["AmqpBroker"]
