from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    SUCCEEDED: _ClassVar[Outcome]
    FAILED: _ClassVar[Outcome]
    TIMED_OUT: _ClassVar[Outcome]
    OUT_OF_MEMORY: _ClassVar[Outcome]
    KILLED_WORKERS: _ClassVar[Outcome]
    CANCELLED: _ClassVar[Outcome]
    HANDED_BACK: _ClassVar[Outcome]

class Order(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    CONTINUE: _ClassVar[Order]
    STOP: _ClassVar[Order]
    CHECKPOINT: _ClassVar[Order]
OUTCOME_UNSPECIFIED: Outcome
SUCCEEDED: Outcome
FAILED: Outcome
TIMED_OUT: Outcome
OUT_OF_MEMORY: Outcome
KILLED_WORKERS: Outcome
CANCELLED: Outcome
HANDED_BACK: Outcome
CONTINUE: Order
STOP: Order
CHECKPOINT: Order

class Needs(_message.Message):
    cpus: int
    gpus: int
    memory_bytes: int
    labels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cpus: _Optional[int] = ..., gpus: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., labels: _Optional[_Iterable[str]] = ...) -> None: ...

class Task(_message.Message):
    id: str
    type: str
    payload: bytes
    encoding: str
    priority: int
    time_limit_s: float
    needs: Needs
    origin: str
    deaths: int
    checkpoint: str
    def __init__(self, id: _Optional[str] = ..., type: _Optional[str] = ..., payload: _Optional[bytes] = ..., encoding: _Optional[str] = ..., priority: _Optional[int] = ..., time_limit_s: _Optional[float] = ..., needs: _Optional[_Union[Needs, _Mapping]] = ..., origin: _Optional[str] = ..., deaths: _Optional[int] = ..., checkpoint: _Optional[str] = ...) -> None: ...

class Lease(_message.Message):
    task: Task
    id: int
    duration_s: float
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., id: _Optional[int] = ..., duration_s: _Optional[float] = ...) -> None: ...

class Result(_message.Message):
    task_id: str
    lease_id: int
    outcome: Outcome
    value: bytes
    encoding: str
    error: str
    worker: str
    seconds: float
    started_at: float
    checkpoint: str
    deaths: int
    report: Report
    def __init__(self, task_id: _Optional[str] = ..., lease_id: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., value: _Optional[bytes] = ..., encoding: _Optional[str] = ..., error: _Optional[str] = ..., worker: _Optional[str] = ..., seconds: _Optional[float] = ..., started_at: _Optional[float] = ..., checkpoint: _Optional[str] = ..., deaths: _Optional[int] = ..., report: _Optional[_Union[Report, _Mapping]] = ...) -> None: ...

class RegisterRequest(_message.Message):
    broker: str
    incarnation: int
    address: str
    def __init__(self, broker: _Optional[str] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class RegisterReply(_message.Message):
    def __init__(self) -> None: ...

class HeartbeatRequest(_message.Message):
    broker: str
    incarnation: int
    def __init__(self, broker: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    register_again: bool
    def __init__(self, register_again: _Optional[bool] = ...) -> None: ...

class LookupRequest(_message.Message):
    except_broker: str
    def __init__(self, except_broker: _Optional[str] = ...) -> None: ...

class LookupReply(_message.Message):
    broker: str
    incarnation: int
    address: str
    def __init__(self, broker: _Optional[str] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class SubmitRequest(_message.Message):
    model: str
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    def __init__(self, model: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ...) -> None: ...

class SubmitReply(_message.Message):
    accepted: _containers.RepeatedScalarFieldContainer[str]
    room: int
    def __init__(self, accepted: _Optional[_Iterable[str]] = ..., room: _Optional[int] = ...) -> None: ...

class CancelRequest(_message.Message):
    model: str
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    waiting_only: bool
    def __init__(self, model: _Optional[str] = ..., task_ids: _Optional[_Iterable[str]] = ..., waiting_only: _Optional[bool] = ...) -> None: ...

class CancelReply(_message.Message):
    def __init__(self) -> None: ...

class ResultsRequest(_message.Message):
    model: str
    cursor: int
    most: int
    wait_s: float
    def __init__(self, model: _Optional[str] = ..., cursor: _Optional[int] = ..., most: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class Accepted(_message.Message):
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    result: Result
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ResultsReply(_message.Message):
    results: _containers.RepeatedCompositeFieldContainer[Accepted]
    cursor: int
    reports: _containers.RepeatedCompositeFieldContainer[Report]
    incarnation: int
    def __init__(self, results: _Optional[_Iterable[_Union[Accepted, _Mapping]]] = ..., cursor: _Optional[int] = ..., reports: _Optional[_Iterable[_Union[Report, _Mapping]]] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ExchangeRequest(_message.Message):
    worker: str
    results: _containers.RepeatedCompositeFieldContainer[Result]
    want: int
    free: Needs
    seconds_left: float
    wait_s: float
    ahead: int
    has: Needs
    leaving: bool
    types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, worker: _Optional[str] = ..., results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ..., want: _Optional[int] = ..., free: _Optional[_Union[Needs, _Mapping]] = ..., seconds_left: _Optional[float] = ..., wait_s: _Optional[float] = ..., ahead: _Optional[int] = ..., has: _Optional[_Union[Needs, _Mapping]] = ..., leaving: _Optional[bool] = ..., types: _Optional[_Iterable[str]] = ...) -> None: ...

class ExchangeReply(_message.Message):
    taken: _containers.RepeatedScalarFieldContainer[str]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, taken: _Optional[_Iterable[str]] = ..., leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class Report(_message.Message):
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    task_id: str
    lease_id: int
    step: int
    metrics: _containers.ScalarMap[str, float]
    deaths: int
    def __init__(self, task_id: _Optional[str] = ..., lease_id: _Optional[int] = ..., step: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., deaths: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    worker: str
    running: _containers.RepeatedCompositeFieldContainer[Report]
    wait_s: float
    def __init__(self, worker: _Optional[str] = ..., running: _Optional[_Iterable[_Union[Report, _Mapping]]] = ..., wait_s: _Optional[float] = ...) -> None: ...

class RenewReply(_message.Message):
    class Answer(_message.Message):
        __slots__ = ("task_id", "order")
        task_id: str
        order: Order
        def __init__(self, task_id: _Optional[str] = ..., order: _Optional[_Union[Order, str]] = ...) -> None: ...
    answers: _containers.RepeatedCompositeFieldContainer[RenewReply.Answer]
    def __init__(self, answers: _Optional[_Iterable[_Union[RenewReply.Answer, _Mapping]]] = ...) -> None: ...

class LendRequest(_message.Message):
    broker: str
    want: int
    free: Needs
    seconds_left: float
    types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, broker: _Optional[str] = ..., want: _Optional[int] = ..., free: _Optional[_Union[Needs, _Mapping]] = ..., seconds_left: _Optional[float] = ..., types: _Optional[_Iterable[str]] = ...) -> None: ...

class LendReply(_message.Message):
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class ReturnRequest(_message.Message):
    broker: str
    results: _containers.RepeatedCompositeFieldContainer[Result]
    running: _containers.RepeatedCompositeFieldContainer[Report]
    wait_s: float
    def __init__(self, broker: _Optional[str] = ..., results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ..., running: _Optional[_Iterable[_Union[Report, _Mapping]]] = ..., wait_s: _Optional[float] = ...) -> None: ...

class ReturnReply(_message.Message):
    taken: _containers.RepeatedScalarFieldContainer[str]
    answers: _containers.RepeatedCompositeFieldContainer[RenewReply.Answer]
    def __init__(self, taken: _Optional[_Iterable[str]] = ..., answers: _Optional[_Iterable[_Union[RenewReply.Answer, _Mapping]]] = ...) -> None: ...

class StatusRequest(_message.Message):
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    class Worker(_message.Message):
        __slots__ = ("name", "running", "seen_s_ago")
        name: str
        running: int
        seen_s_ago: float
        def __init__(self, name: _Optional[str] = ..., running: _Optional[int] = ..., seen_s_ago: _Optional[float] = ...) -> None: ...
    broker: str
    incarnation: int
    owned: int
    helper: int
    processing: int
    results: int
    accepted: int
    failed: int
    dropped: int
    lent: int
    workers: _containers.RepeatedCompositeFieldContainer[StatusReply.Worker]
    def __init__(self, broker: _Optional[str] = ..., incarnation: _Optional[int] = ..., owned: _Optional[int] = ..., helper: _Optional[int] = ..., processing: _Optional[int] = ..., results: _Optional[int] = ..., accepted: _Optional[int] = ..., failed: _Optional[int] = ..., dropped: _Optional[int] = ..., lent: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[StatusReply.Worker, _Mapping]]] = ...) -> None: ...
