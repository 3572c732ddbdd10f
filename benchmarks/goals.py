"""The goals of the benchmarks, and whether a result meets them."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.report import Result

FLOOR = "floor"


@dataclass(frozen=True)
class Speed:
    """Ours is at least `times` as fast as the fastest of the named peers (or the floor)."""

    times: float
    against: tuple[str, ...] = (FLOOR,)

    def judge(self, result: Result) -> tuple[str, bool | None]:
        """Return the goal with the measured value, and whether it was met (None: not measured)."""
        text = f"≥ {self.times:g} × {_names(self.against)}"
        values = [value for name in self.against if (value := _value(result, name))]
        if not values or not result.ours:
            return f"{text}: not measured", None
        speed = result.ours / max(values) if is_rate(result.unit) else min(values) / result.ours
        return f"{text}: {speed:.2f}", speed >= self.times


@dataclass(frozen=True)
class Cost:
    """Ours takes at most `times` as much as the named peer (or the floor)."""

    times: float
    against: str = FLOOR

    def judge(self, result: Result) -> tuple[str, bool | None]:
        """Return the goal with the measured value, and whether it was met (None: not measured)."""
        text = f"≤ {self.times:g} × {_names((self.against,))}"
        value = _value(result, self.against)
        if not value:
            return f"{text}: not measured", None
        return f"{text}: {result.ours / value:.2f}", result.ours <= self.times * value


@dataclass(frozen=True)
class OnTop:
    """Ours takes at most `more` than the floor, in the result's unit."""

    more: float

    def judge(self, result: Result) -> tuple[str, bool | None]:
        """Return the goal with the measured value, and whether it was met."""
        more = result.ours - result.floor
        return f"≤ floor + {self.more:g} {result.unit}: {more:.3f}", more <= self.more


@dataclass(frozen=True)
class Bound:
    """Ours is at least `value` where it is a rate, at most `value` otherwise."""

    value: float

    def judge(self, result: Result) -> tuple[str, bool | None]:
        """Return the goal, and whether it was met."""
        if is_rate(result.unit):
            return f"≥ {self.value:,.0f} {result.unit}", result.ours >= self.value
        return f"≤ {self.value:g} {result.unit}", result.ours <= self.value


Goal = Speed | Cost | OnTop | Bound

_MPI = ("mpi", "mpi_chunked")
_COPIERS = ("rsync", "scp")
_MOVERS = ("boto3", "aws", "rclone")
GOALS: dict[str, tuple[Goal, ...]] = {
    "start_up_help": (Cost(1.3),),
    "start_up_list": (Cost(1.3),),
    "start_up_help_terminal": (Cost(1.3),),
    "start_up_list_terminal": (Cost(1.3),),
    "submit_cold": (OnTop(0.5),),
    "submit_warm": (OnTop(0.25),),
    "submit_200": (Bound(60),),
    "link_submit": (OnTop(6),),
    "link_status": (OnTop(3),),
    "link_fetch_2000": (OnTop(8),),
    "follow_lives": (OnTop(0),),
    "follow_waits": (OnTop(20),),
    "submit_follow": (OnTop(20),),
    "watch_lives": (OnTop(5),),
    "watch_waits": (OnTop(20),),
    "list_waits": (OnTop(20),),
    "search_watch": (OnTop(20),),
    "log_lag": (Bound(0.3),),
    "log_bytes": (Bound(0.35),),
    "status_1000": (OnTop(0.3),),
    "fetch_1gb": (Speed(1.1, _COPIERS),),
    "fetch_1gb_openssh": (Speed(1.1, _COPIERS),),
    "fetch_2000": (Speed(1.5, ("rsync",)),),
    "fetch_2000_openssh": (Speed(1.5, ("rsync",)),),
    "fetch_resumed": (Bound(55),),
    "restart_in_allocation": (Bound(5),),
    "restart_by_job": (Bound(10),),
    "lost_work": (Bound(11),),
    "preflight_4_nodes": (Bound(5),),
    "hang_watch_cost": (Bound(0.005),),
    "models_20": (Cost(1.05),),
    "view_open_bytes": (Bound(1e6),),
    "view_reopen_bytes": (Bound(50_000),),
    "view_live_bytes": (Bound(2000),),
    "view_start": (Bound(1),),
    "view_open_20x1m": (Bound(2), Speed(10, ("tensorboard", "tensorboard_all"))),
    "view_spikes": (Bound(0),),
    "view_lag": (Bound(2),),
    "watch_frame": (Bound(15),),
    "serve_start": (Bound(1), Speed(1, ("skypilot",))),
    "serve_page": (Bound(0.05),),
    "serve_list": (Speed(1, ("skypilot",)),),
    "serve_log_lag": (Bound(0.3),),
    "serve_memory": (Bound(150),),
    "serve_idle": (Bound(0),),
    "parse_lines": (Bound(200_000), Speed(1, ("plain",))),
    "sample_cost": (Bound(0.005),),
    "allreduce_161_2": (Speed(6, ("gloo",)), Speed(1.2, _MPI)),
    "allreduce_161_4": (Speed(5, ("gloo",)), Speed(1.6, _MPI)),
    "allreduce_nodes_2": (Speed(1, _MPI),),
    "train_mlp10m_2": (Speed(1.7, ("ddp_gloo",)), Speed(1)),
    "train_lenet_2": (Speed(1.2, ("ddp_gloo",)), Speed(0.97)),
    "metrics_cost": (Bound(1),),
    "checkpoint_stall_2gb": (Cost(1.2), Cost(0.35, "dcp_async")),
    "checkpoint_save_2gb": (Speed(0.8), Speed(1.7, ("dcp",))),
    "checkpoint_restore_2gb": (Speed(1.2, ("dcp",)),),
    "checkpoint_kills": (Bound(0),),
    "cursor_file_2": (Bound(1e5),),
    "store_load_1gb": (Speed(0.95, _MOVERS),),
    "store_load_10k": (Speed(0.95, _MOVERS),),
    "store_served": (Bound(1.05),),
    "store_again": (Bound(0),),
    "store_again_s": (OnTop(1),),
    "store_save_1gb": (Speed(0.9, _MOVERS),),
    "psrv_2": (
        Speed(0.85),
        Speed(2, ("mpi_two_sided",)),
        Speed(8, ("torch_rpc",)),
        Speed(5, ("ray",)),
        Speed(5, ("ray_in_place",)),
    ),
    "psrv_4": (Speed(0.8),),
    "psrv_nodes_2": (Speed(0.8), Speed(3, ("torch_rpc",))),
    "psrv_nodes_2_loop": (Speed(3, ("torch_rpc",)),),
    "psrv_nodes_2_10gbit": (Speed(0.8),),
    "psrv_nodes_2_5gbit": (Speed(0.8),),
    "psrv_memory": (Cost(1.1),),
    "psrv_straggler": (Speed(1.8, ("allreduce",)),),
    "search_tasks_1": (Bound(10_000), Speed(5, ("dask",)), Speed(50, ("optuna",))),
    "search_tasks_process": (Speed(1, ("dask", "ray", "parsl", "hyperqueue")),),
    "search_latency": (Bound(0.003),),
    "search_share": (Speed(0.8),),
    "search_recover_broker": (Bound(2),),
    "search_recover_worker": (Bound(2),),
    "search_recover_node": (Bound(20),),
    "search_lost": (Bound(0),),
    "search_scale": (Speed(0.7),),
    "search_nas": (Speed(0.98),),
}


def is_rate(unit: str) -> bool:
    """Return whether more is better."""
    return unit.endswith("/s")


def _value(result: Result, name: str) -> float | None:
    return result.floor if name == FLOOR else result.peers.get(name)


def _names(names: tuple[str, ...]) -> str:
    quoted = [name if name == FLOOR else f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"the best of {', '.join(quoted)}"
