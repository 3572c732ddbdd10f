"""Orders to learners that train: change a setting, save now. Files in `control/`, in order."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass

from dlctl import contract
from dlctl.contract import Order, OrderAnswer, State
from dlctl.errors import RecordError
from dlctl.files.site_folders import explained
from dlctl.files.small_files import read_files
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.watch import read_plan, refresh
from dlctl.record import Record, RecordStore

_POLL_S = 0.5


@dataclass(frozen=True)
class Ordered:
    """An order that the learners of a training will find."""

    training_id: str
    number: int
    state: State
    """The training's, when the order was given."""
    values: dict[str, float]
    save: bool
    answer: OrderAnswer | None = None
    """Learner 0's answer; None before there is one."""

    def __str__(self) -> str:
        """Return it in a few words."""
        if self.answer is None:
            return f"{self._order_in_words} (not yet)"
        if self.answer.problem:
            return f"{self._order_in_words} (refused: {self.answer.problem})"
        return f"{self._order_in_words} {'since' if self.values else 'at'} step {self.answer.step}"

    @property
    def sentence(self) -> str:
        """Return what became of it."""
        what, answer = f"{self.training_id}: {self._order_in_words}", self.answer
        if answer is None:
            when = "at its next step" if self.state is State.TRAINING else "once it trains"
            if self.state.final:
                when = f"once you resume it; it is {self.state}"
            return f"{what} {when} (order {self.number})"
        if answer.problem:
            return f"{what} was refused at step {answer.step}: {answer.problem}"
        return f"{what} {'since' if self.values else 'of'} step {answer.step}"

    @property
    def _order_in_words(self) -> str:
        words = ", ".join(f"{name}={value:g}" for name, value in self.values.items())
        return words or "a checkpoint"


def given_orders(session: Session, record: Record) -> list[Ordered]:
    """Return the orders that a training was given, the oldest first."""
    script = f"""\
cd {shlex.quote(f"{record.job_dir}/{contract.CONTROL}")} 2>/dev/null || exit 0
for f in order-*.json; do
    [ -f "$f" ] && {{ printf '%s\\037' "$f"; cat "$f"; printf '\\036'; }}
done
:"""
    contents = dict[str, str]()
    for row in session.transport.run(script).text.split("\036"):
        name, _, content = row.partition("\037")
        contents[name.strip()] = content
    names = {int(n[6:-5]): n for n in contents if n[6:-5].isdecimal()}
    found = []
    for number, name in sorted(names.items()):
        with contextlib.suppress(contract.ContractError):
            order = contract.from_json(Order, contents[name])
            done = contents.get(f"order-{number}.done.json")
            answer = None if done is None else contract.from_json(OrderAnswer, done)
            found.append(
                Ordered(record.training_id, number, record.state, order.values, order.save, answer)
            )
    return found


def parse_settings(words: list[str]) -> dict[str, float]:
    """Return the values of `lr=0.01 batch_size=64`.

    Raises:
        RecordError: a word is not a setting that can be tuned, or has no such value.
    """
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = {"learning_rate": "lr"}.get(name, name)
        if name not in contract.TUNABLE or not equals:
            allowed = ", ".join(contract.TUNABLE)
            raise RecordError(f"{word!r} is no setting that can be tuned",
                              hint=f"write NAME=VALUE; the names are {allowed}")  # fmt: skip
        found[name] = _number(name, text)
    return found


def _number(name: str, text: str) -> float:
    least = 0.0 if name in ("momentum", "weight_decay", "lr") else None
    try:
        value = float(int(text)) if name == "batch_size" else float(text)
    except ValueError:
        value = float("nan")
    fits = value >= least if least is not None else value > 0
    if not fits or value == float("inf"):
        kind = "a whole number" if name == "batch_size" else "a number"
        kind += " above 0" if least is None else " from 0 on"
        raise RecordError(f"{name}={text} is not allowed", hint=f"write {name}= and {kind}")
    return value


def give_order(
    session: Session, record: Record, store: RecordStore, values: Mapping[str, float],
    *, save: bool = False, wait_s: float = 0.0,
) -> Ordered:  # fmt: skip
    """Give the learners an order; it takes effect at the end of the same step on all of them.

    Args:
        wait_s: how long to wait for the answer of learners that train.

    Raises:
        RecordError: the training has ended for good, or its program takes no orders.
    """
    record = refresh(session, [record], store)[0]
    verb = "save" if save else "tune"
    gone = (State.COMPLETED, State.CANCELLED)
    if record.state in gone or (save and record.state.final):
        raise RecordError(
            f"there is nothing to {verb}: {record.training_id} is {record.state}",
            hint=f"dlctl show {record.training_id}",
        )
    plan = read_plan(session, record)
    if not plan.framework.has_loop or plan.parameter_server is not None:
        whose = "with a parameter server" if plan.parameter_server else "by framework.command"
        raise RecordError(
            f"{record.training_id} trains {whose}, which takes no orders",
            hint=f"`dlctl halt {record.training_id}` saves and stops it; the built-in loop "
            "(framework.job) takes orders",
        )
    order = Order(save, dict(values), time.time())
    number = _write(session, record, contract.to_json(order))
    waits = wait_s if record.state is State.TRAINING else 0.0
    answer = _answer(session, record, number, waits)
    return Ordered(record.training_id, number, record.state, dict(values), save, answer)


def _write(session: Session, record: Record, content: str) -> int:
    """Write an order under the next free number, and return it."""
    here = shlex.quote(f"{record.job_dir}/{contract.CONTROL}")
    script = f"""\
umask 077
[ -d {shlex.quote(record.job_dir)} ] && mkdir -p {here} && cd {here} || exit 71
t=.dlctl-order.$$; trap 'rm -f $t' EXIT
printf '%s' {shlex.quote(content)} >$t || exit 71
n=1
until ln $t order-$n.json 2>/dev/null; do # exclusive, and whole at once
    [ -e order-$n.json ] || exit 71
    n=$((n+1))
done
echo $n"""
    end = session.transport.run(script)
    if end.exit_code or not end.text.strip().isdecimal():
        raise explained(session.transport, record.job_dir, end)
    return int(end.text)


def _answer(session: Session, record: Record, number: int, wait_s: float) -> OrderAnswer | None:
    path = f"{record.job_dir}/{contract.order_answer(number)}"
    until = time.monotonic() + wait_s
    while True:
        content = read_files(session.transport, [path])[path]
        if content is not None:
            return contract.from_json(OrderAnswer, content)
        if time.monotonic() >= until:
            return None
        time.sleep(_POLL_S)
