"""Recognizes names of results, as trainings name them: losses and metrics, predictions, weights, random states.

Nobody may declare that such things do not count, and nothing proposes it.
"""

from __future__ import annotations

import re
from itertools import pairwise

# Words of names whose values are results, whatever they are.
_RESULTS = """
    accuracy auc auroc bleu crossentropy dice f1 gradient gradients iou logit logits loss losses mae mape mase mcc mse
    nll perplexity ppl precision pred predicted prediction predictions preds recall reward rewards rmse rmsle rouge
    smape wape weight weights
"""
# Those whose values are results where they are numbers: an `error` can be a message.
_NUMERIC_RESULTS = """
    acc bias correct crps err error errors forecast forecasts hits huber kappa mad map medae metric metrics msle ndcg
    objective pinball probabilities probability proba probs r2 regret residual residuals return rmspe score scores
    silhouette target targets top truth wer wmape
"""
_WEIGHTS = """
    beta coef coefs embedding embeddings exp gamma grad intercept kernel layer moment momentum optimizer param parameter
    parameters params running state
"""
# What is said about a result is none itself: loss_seconds, score_time, metrics_path.
_NO_RESULTS = """
    date dir directory duration elapsed eta file fps hours id minutes ms name path pid runtime sec second seconds secs
    throughput time timestamp url version wall
"""
_ALWAYS, _IF_NUMERIC, _OF_ARRAYS, _NEVER = (
    frozenset(words.split()) for words in (_RESULTS, _NUMERIC_RESULTS, _WEIGHTS, _NO_RESULTS)
)
_PAIRS = frozenset({("random", "state"), ("random", "states"), ("rng", "state"), ("state", "dict")})
_SHORT = re.compile(r"(?:[wb]|fc|conv|layer)[0-9]*")  # of weights: w1, fc2
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")


def words(name: str) -> list[str]:
    """Return the words of a name in small letters: valLoss, val_loss and val-loss have the same; r2 and f1 are one."""
    joined: list[str] = []
    for word in _WORD.findall(name):
        if word.isdigit() and joined and joined[-1] in ("f", "r"):
            joined[-1] += word
        else:
            joined.append(word.lower())
    return joined


def names_result(name: str, *, is_number: bool = False) -> bool:
    """Return whether a name is that of a loss, a metric, predictions, weights or a random state."""
    parts = words(name)
    if not _NEVER.isdisjoint(parts):
        return False
    known = _ALWAYS | _IF_NUMERIC if is_number else _ALWAYS
    return not known.isdisjoint(parts) or not _PAIRS.isdisjoint(pairwise(parts))


def names_weights(name: str) -> bool:
    """Return whether a name is one that arrays of weights, of an optimizer's state or of results have."""
    parts = words(name)
    if not _NEVER.isdisjoint(parts):
        return False
    is_known = _SHORT.fullmatch(name.lower()) is not None or not _OF_ARRAYS.isdisjoint(parts)
    return is_known or names_result(name, is_number=True)
