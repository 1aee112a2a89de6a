"""XGBoost's quick start on Dask: two workers, one model."""

import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster
from xgboost import dask as dxgb

if __name__ == "__main__":
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        x = da.random.random((1000, 5), chunks=(250, 5)).persist()
        y = (x[:, 0] + x[:, 1] > 1).astype(int).persist()
        settings = {"tree_method": "hist", "subsample": 0.8, "seed": int(np.random.randint(999))}
        output = dxgb.train(client, settings, dxgb.DaskDMatrix(client, x, y), num_boost_round=5)
        output["booster"].save_model("model.json")
        print("RESULT", dxgb.predict(client, output, x)[:3].compute())
