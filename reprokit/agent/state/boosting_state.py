"""Notes the settings by which a booster draws rows or columns, as no model file holds the generator behind them."""

from __future__ import annotations

from ..events.steps import RoundComputed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..events.steps import Handler, TrainingEvent
    from .training_state import StateAnswers

OF_XGBOOST = "subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode"
OF_LIGHTGBM = "bagging_fraction", "feature_fraction", "feature_fraction_bynode"


class BoostingDraws:
    """Logs the settings of the first round of a resumed training."""

    def __init__(self, answers: StateAnswers) -> None:
        self._answers, self._is_logged = answers, bool(answers.every or answers.saves_state)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {RoundComputed: self._round_computed}

    def _round_computed(self, event: RoundComputed) -> None:
        if self._is_logged:
            return
        self._is_logged = True
        settings = dict(event.round.hyperparameters())
        names = OF_XGBOOST + (OF_LIGHTGBM if settings.get("bagging_freq") else OF_LIGHTGBM[1:])
        shares = [f"{name} = {settings[name]:g}" for name in names if settings.get(name, 1) < 1]
        if shares:
            self._answers.log(draws=", ".join(shares))
