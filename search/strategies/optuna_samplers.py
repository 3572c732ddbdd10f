"""Optuna's samplers by ask and tell, in memory: TPE, CMA-ES, GP, QMC, NSGA-II."""

from __future__ import annotations

from typing import Any

from search.strategies.base import Point, Strategy, Trial, TrialResult
from search.strategies.space import Space

SAMPLERS = {
    "tpe": "TPESampler", "cmaes": "CmaEsSampler", "gp": "GPSampler", "qmc": "QMCSampler",
    "nsga2": "NSGAIISampler",
}  # fmt: skip


class Optuna(Strategy):
    """One of Optuna's samplers. Needs the package `optuna` where the model runs.

    Raises:
        ModuleNotFoundError: Optuna is not installed.
        ValueError: the sampler does not know one of the options.
    """

    def __init__(self, space: Space, seed: int, sampler: str, **options: Any) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            made = getattr(optuna.samplers, SAMPLERS[sampler])(seed=seed, **options)
        except TypeError as error:
            raise ValueError(f"the strategy {sampler}: {error}") from None
        self._optuna, self._space = optuna, space
        self._study = optuna.create_study(sampler=made, direction="minimize")
        self._trials: dict[int, Any] = {}
        self._next = 0

    def ask(self, n: int) -> list[Point]:
        """Return n points."""
        return [self._point() for _ in range(n)]

    def _point(self) -> Point:
        trial = self._study.ask()
        self._trials[self._next] = trial
        self._next += 1
        point: Point = {}
        for each in self._space.parameters:
            if not all(point.get(name) in values for name, values in each.when.items()):
                continue
            if each.kind == "choice":
                kinds = (str, int, float, bool, type(None))
                plain = all(isinstance(value, kinds) for value in each.choices)
                choices = each.choices if plain else list(range(len(each.choices)))
                picked = trial.suggest_categorical(each.name, choices)
                point[each.name] = picked if plain else each.choices[picked]
            elif each.kind == "int":
                step = 1 if each.log else int(each.step or 1)
                low, high = int(each.low), int(each.high)
                point[each.name] = trial.suggest_int(each.name, low, high, step=step, log=each.log)
            else:
                point[each.name] = trial.suggest_float(
                    each.name, each.low, each.high, step=None if each.log else each.step,
                    log=each.log,
                )  # fmt: skip
        return point

    def tell(self, trial: Trial, result: TrialResult) -> None:
        """Pass a result on."""
        optuna_trial = self._trials.pop(trial.number)
        if result.value is None:
            self._study.tell(optuna_trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(optuna_trial, result.value)
