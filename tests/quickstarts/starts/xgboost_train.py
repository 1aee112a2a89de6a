"""XGBoost's Python introduction."""

import numpy as np
import xgboost as xgb

data, label = np.random.rand(200, 8), np.random.randint(2, size=200)
train, test = xgb.DMatrix(data[:150], label=label[:150]), xgb.DMatrix(data[150:], label=label[150:])
settings = {"max_depth": 2, "eta": 1, "objective": "binary:logistic", "eval_metric": "auc", "subsample": 0.7}
settings["seed"] = int(np.random.randint(1 << 30))
booster = xgb.train(settings, train, 10, [(train, "train"), (test, "eval")])
booster.save_model("0001.ubj")
booster.dump_model("dump.raw.txt")
print("RESULT", booster.predict(test)[0])
