"""Boosts a kind of model by XGBoost or LightGBM. Arguments: library, kind, change, round at which the change is made.

Changes: rate: a round learns faster by one part in a million; earlier: past the library's functions a leaf of an
earlier tree gets another value, which no later round sees.
"""

import ctypes
import sys

import numpy as np

ROUNDS = 12
library, kind, *change = sys.argv[1:]
random = np.random.default_rng(0)
x = random.normal(size=(300, 5)).astype("float32")
y = ((x[:, 0] > 0).astype(int) + (x[:, 1] * x[:, 2] > 0)).astype("float32")
valid = x[::3], y[::3]


def is_due(number, name):
    return change[:1] == [name] and number == int(change[1])


def squared(predicted, data):
    return predicted - data.get_label(), np.ones_like(predicted)


class Loop:
    """Makes rounds by hand, as train does."""

    def __init__(self, booster, *data):
        self.booster, self.data, self.number = booster, data, 0

    def round(self):
        if library == "xgboost":
            self.booster.update(*self.data, self.number)
        else:
            self.booster.update()
        self.number += 1


def with_xgboost():
    import xgboost

    class Change(xgboost.callback.TrainingCallback):
        def before_iteration(self, model, epoch, evals_log):
            if change:
                model.set_param("eta", 0.3000003 if is_due(epoch, "rate") else 0.3)
            return False

    data, other = xgboost.DMatrix(x, y), xgboost.DMatrix(*valid)
    settings = {"max_depth": 3, "nthread": 1, "eta": 0.3, "subsample": 0.7, "seed": 3}
    kinds = {
        "dart": {"booster": "dart", "rate_drop": 0.5},
        "linear": {"booster": "gblinear", "updater": "coord_descent"},
        "multi": {"objective": "multi:softprob", "num_class": 3},
        "forest": {"num_parallel_tree": 3},
        "categories": {"max_cat_to_onehot": 1},
    }
    settings.update(kinds.get(kind, {}))
    if kind == "linear":
        del settings["max_depth"], settings["subsample"]
    more = {"callbacks": [Change()], "verbose_eval": False}
    if kind == "cv":
        xgboost.cv(settings, data, ROUNDS, nfold=3, callbacks=[Change()])
    elif kind == "loops":
        loops = [Loop(xgboost.Booster({**settings, "seed": seed}, [data]), data) for seed in range(3)]
        for number in range(ROUNDS):
            loops[number % 3].booster.set_param("eta", 0.3000003 if is_due(number, "rate") else 0.3)
            loops[number % 3].round()
    else:
        if kind == "custom":
            more["obj"] = squared
        if kind == "stopped":
            more.update(early_stopping_rounds=2, evals=[(other, "other")])
        model = xgboost.train(settings, data, ROUNDS, **more)
        if kind == "continued":
            model = xgboost.train({**settings, "seed": 4}, data, ROUNDS, xgb_model=model, **more)
        if kind == "refreshed":
            settings = {**settings, "process_type": "update", "updater": "refresh,prune", "gamma": 1}
            model = xgboost.train(settings, other, ROUNDS, xgb_model=model)
        model.save_model("model.json")


def with_lightgbm():
    import lightgbm

    def before(state):
        if change:
            rate = {"learning_rate": 0.1000001 if is_due(state.iteration, "rate") else 0.1}
            leaf = {"min_data_in_leaf": 30 if is_due(state.iteration, "rate") else 20}  # a forest learns at no rate
            state.model.reset_parameter(leaf if kind == "forest" else rate)
        if is_due(state.iteration, "earlier"):
            handle, value = state.model._handle, ctypes.c_double(1.5)
            assert lightgbm.basic._LIB.LGBM_BoosterSetLeafValue(handle, 0, 0, value) == 0

    before.before_iteration = True
    data = lightgbm.Dataset(x, y, params={"verbose": -1, "feature_pre_filter": False}, free_raw_data=False)
    other = lightgbm.Dataset(*valid, reference=data)
    settings = {"num_leaves": 6, "num_threads": 1, "verbose": -1, "bagging_fraction": 0.7, "bagging_freq": 1}
    kinds = {
        "dart": {"boosting": "dart", "drop_rate": 0.5},
        "multi": {"objective": "multiclass", "num_class": 3},
        "forest": {"boosting_type": "rf"},
        "custom": {"objective": squared},
        "goss": {"data_sample_strategy": "goss", "bagging_freq": 0},
    }
    settings.update(kinds.get(kind, {}))
    more = {"callbacks": [before]}
    if kind == "cv":
        lightgbm.cv(settings, data, ROUNDS, nfold=3, stratified=False, callbacks=[before])
    elif kind == "loops":
        loops = [Loop(lightgbm.Booster({**settings, "bagging_seed": seed}, data)) for seed in range(3)]
        for number in range(ROUNDS):
            rate = 0.1000001 if is_due(number, "rate") else 0.1
            loops[number % 3].booster.reset_parameter({"learning_rate": rate})
            loops[number % 3].round()
    else:
        if kind == "stopped":
            more = {"callbacks": [before, lightgbm.early_stopping(2, verbose=False)], "valid_sets": [other]}
        model = lightgbm.train(settings, data, ROUNDS, **more)
        if kind == "continued":
            model = lightgbm.train(settings, data, ROUNDS, init_model=model, **more)
        if kind == "rolled back":
            model = lightgbm.Booster(settings, data)
            for _ in range(4):
                model.update()
            model.rollback_one_iter()
            model.update()
        model.save_model("model.txt")


{"xgboost": with_xgboost, "lightgbm": with_lightgbm}[library]()
print("trained")
