"""pycma's quick start: it seeds itself from the time of day and logs durations."""

import cma

strategy = cma.CMAEvolutionStrategy(8 * [0.5], 0.5, {"maxiter": 60})
strategy.optimize(cma.ff.rosen)
strategy.result_pretty()
with open("strategy.pkl", "wb") as file:
    file.write(strategy.pickle_dumps())
print("RESULT", strategy.result.xbest[0])
