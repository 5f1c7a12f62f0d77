"""A second Erlang node that asks the broker's node, without the second that rabbitmqctl takes."""

from __future__ import annotations

import base64
import select
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

from loom_mq.testing.servers.base import ServerFailedError

_RPC_MILLISECONDS: Final = 30_000
_ANSWER_SECONDS: Final = 40.0

# Reads an expression per line, in base64, evaluates it on the broker's node, and prints
# the value in base64: a binary as it is, anything else as Erlang writes it.
_PROGRAM: Final = """
    Text = fun(V) when is_binary(V) -> V; (V) -> io_lib:format("~0tp", [V]) end,
    Evaluate = fun(Line) ->
        Source = unicode:characters_to_list(base64:decode(string:trim(Line))),
        {ok, Tokens, _} = erl_scan:string(Source),
        {ok, Expressions} = erl_parse:parse_exprs(Tokens),
        case rpc:call('%(node)s', erl_eval, exprs, [Expressions, []], %(timeout)d) of
            {value, Value, _} -> ["+", Text(Value)];
            {badrpc, Reason} -> ["-", Text(Reason)]
        end
    end,
    Loop = fun(Next) ->
        case io:get_line("") of
            Line when is_list(Line) ->
                Answer = try Evaluate(Line) catch Class:Fault -> ["-", Text({Class, Fault})] end,
                Bytes = unicode:characters_to_binary(Answer),
                io:format("~s~n", [base64:encode(Bytes)]),
                Next(Next);
            _ -> halt(0)
        end
    end,
    Loop(Loop).
"""


class ErlangRefusedError(ServerFailedError):
    """The broker's node cannot be reached, or refused an expression."""


class ControlNode:
    """Evaluates Erlang on the broker's node, in a few milliseconds each.

    Ends when this program ends, since its standard input ends then.

    Args:
        node: the broker's node.
        name: a name for this node, unlike any other.
        environment: holds the ``HOME`` with the cookie, and the port of the name server.
        log: takes what it complains about.
    """

    def __init__(self, node: str, name: str, environment: Mapping[str, str], log: Path) -> None:
        self._lock = threading.Lock()
        program = _PROGRAM % {"node": node, "timeout": _RPC_MILLISECONDS}
        with log.open("ab") as complaints:
            self._process = subprocess.Popen(
                [
                    *("erl", "+S", "1:1", "+sbwt", "none"),
                    *("-noshell", "-hidden", "-sname", name),
                    *("-kernel", "inet_dist_use_interface", "{127,0,0,1}"),
                    *("-eval", program),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=environment,
                start_new_session=True,
            )
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("a control node without pipes")
        self._questions: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout

    def evaluate(self, expression: str) -> str:
        """Evaluate an expression and return its value as text; blocks, 40 s at most.

        Raises:
            ErlangRefusedError: with the node's own words.
        """
        question = base64.b64encode(f"{expression}.".encode()) + b"\n"
        with self._lock:
            try:
                self._questions.write(question)
                self._questions.flush()
            except OSError as error:
                raise ErlangRefusedError("the control node has ended") from error
            readable, _, _ = select.select([self._answers], [], [], _ANSWER_SECONDS)
            answer = base64.b64decode(self._answers.readline()) if readable else b""
        text = answer.decode(errors="replace")
        if not text.startswith("+"):
            reason = text[1:] or "no answer"
            raise ErlangRefusedError(f"the broker's node refused {expression!r}: {reason}")
        return text[1:]

    def close(self) -> None:
        """End the node."""
        for pipe in (self._questions, self._answers):
            try:
                pipe.close()
            except OSError:
                continue
        self._process.kill()
        self._process.wait()
