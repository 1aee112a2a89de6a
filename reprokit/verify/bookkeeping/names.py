"""The names of bookkeeping: words of keys and column heads, and words around printed values.

All words of a name are judged: one that is not known makes the value a result ("travel_time"), and so does the name of
a result ("predicted", "target"), wherever it stands. The last noun counts: "epoch time" is a duration, "time_mae" none.

Fewer names are those of results that nobody may declare away, and for which nothing is proposed (`names_result`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+")
_PER_TIME = re.compile(r"([A-Za-z]+)(?:/|_?per_?|\s+per\s+)(s|secs?|seconds?|mins?|minutes?|h|hours?)(?![a-z])", re.I)
_ELLIPSIS = re.compile(r"(?:\.\.\.?|\u2026)\s*$")
LONGEST = 200  # characters of a name


def _of(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Names of results and of what decides them: never bookkeeping, whatever else a name says.
RESULTS = _of(
    "predicted prediction predictions pred preds forecast forecasts forecasted target targets truth true actual"
    " expected expectation observed label labels survival survived hazard half halflife life lifetime rul residual"
    " residuals threshold dose delay lag tau travel trip horizon seed seeds answer outcome event relapse onset digest"
    " sha md checksum fingerprint"
)
# Keys above values by the names of inputs or of settings: {"importance": {"fit_time": 0.5}}.
_OF_INPUTS = _of(
    "importance importances feature features gain coef coefs coefficients shap attribution attributions weight weights"
)
_OF_SETTINGS = _of(
    "config configuration cfg setting settings option options param params parameter parameters hparams hyperparameters"
    " args arguments"
)
METRICS = _of(
    "loss losses score scores accuracy metric metrics objective reward rewards return returns error errors err mae"
    " mse rmse rmsle rmspe mape smape wape wmape mase medae msle mad huber nll crps auc acc bias f pinball ppl"
    " perplexity r regret precision recall elbo kl iou bleu rouge logloss likelihood entropy norm lr cost value"
)
# Names of results that nobody may declare away, whatever their values are, and where these are numbers: `error` may be
# that of a message. Beside them names of arrays of weights and of what an optimizer keeps.
_PROTECTED = _of(
    "accuracy auc auroc bleu crossentropy dice gradient gradients iou logit logits loss losses mae mape mase mcc mse"
    " nll perplexity ppl precision pred predicted prediction predictions preds recall reward rewards rmse rmsle rouge"
    " smape wape weight weights"
)
_PROTECTED_NUMBERS = (METRICS - _of("f r value")) | _of(
    "correct forecast forecasts hits kappa map ndcg probability probabilities proba probs residual residuals silhouette"
    " target targets top truth wer"
)
_PROTECTED_ARRAYS = _of(
    "beta coef coefs embedding embeddings exp gamma grad intercept kernel layer moment momentum optimizer param"
    " parameter parameters params running state"
)
_PROTECTED_PAIRS = frozenset({("random", "state"), ("random", "states"), ("rng", "state"), ("state", "dict")})
_F1 = re.compile(r"(?:(?<![a-zA-Z])f|(?<![A-Z])F)1(?![0-9])")  # f1, testF1
_R2 = re.compile(r"(?:(?<![a-zA-Z])r|(?<![A-Z])R)2(?![0-9])")
_NUMBERED_WEIGHTS = re.compile(r"(?:[wb]|fc|conv|layer)[0-9]*", re.I)  # w1, fc2
SCORING = _of("loss losses score scores scoring accuracy metric metrics objective gradient gradients grad")
_SCORED = _of("score scores scoring")  # before "time" without a unit; "loss_time" may be the loss of predicted times
UNITS = _of(
    "s sec secs second seconds ms msec msecs millis milliseconds us usec microseconds ns nanoseconds min mins minute"
    " minutes h hr hrs hour hours d days kb mb gb tb kib mib gib bytes"
)
STATISTICS = _of(
    "mean avg average averaged std stdev stddev var median total totals sum cumulative cum overall last latest first"
    " current so far approx about effective raw p percentile only"
)
FILLERS = _of(
    "the a an is was of in for all whole entire and with on at it this that these now by to from per since until"
    " during after before model models pipeline script program function call calls thread threads worker workers node"
    " rank version number count counts up down out done ok yes no using via i we our has been into as new info debug"
    " warning passed each report file files log logs results below under"
)
PHASES = _of(  # what a training does, and what it works through
    "train training trained fit fits fitting fitted refit eval evaluate evaluating evaluation evaluated val valid"
    " validate validating validation test testing inference infer forward backward backprop optimizer optimize"
    " optimizing optimization epoch epochs batch batches minibatch iter iters iteration iterations load loads loading"
    " loaded save saving saved write writing wrote read reading compile compiling compiled compilation preprocess"
    " preprocessing preprocessed postprocess postprocessing build building built init initialize initializing"
    " initialization setup warmup checkpoint checkpoints checkpointing download downloading upload uploading fold"
    " folds cv search searching tuning tune compute computing computation computed calculate calculating import"
    " importing startup dataloader dataset datasets collate sync comm allreduce communication generation generate"
    " generating decode decoding encode encoding tokenize tokenizing tokenization transform transforming predict"
    " predicting rollout rollouts collect collecting collection clustering embed embedding update updating updated"
    " learn learning render rendering augment augmentation shuffle export exporting prepare preparing preparation"
    " teardown cleanup step steps data boosting cache caching restore restoring indexing parse parsing scan scanning"
    " merging sorting profile profiling"
)
_INSTANTS = _of(
    "start starting started stop stopping stopped begin end ending ended finish finished finishing complete completed"
    " completing"
)
_ACTIVITIES = _of(
    "run runs running process processes processing processed execute executed executing execution job jobs task tasks"
    " stage stages cell cells notebook kernel wall walltime clock cpu gpu cuda user sys system real host io env"
    " environment pass request scheduling worker session app application ran speed retry retrying work done api server"
    " client ping access fast plan planning overhead loop loops trial trials sampling warm"
)
PROCESSES = PHASES | _INSTANTS | _ACTIVITIES
# Words that name a duration by themselves where it has a unit: "cpu 3.2 s", "done (3.2 s)".
_RUNNING = PHASES | _of(
    "wall walltime cpu gpu cuda user sys real ping overhead run ran running execution done finished completed loop"
)
TIMES = _of(
    "time times runtime runtimes duration durations dur elapsed walltime wallclock timing timings took seconds secs"
    " sec milliseconds msec ms minutes mins hours hrs ping wall"
)
_LONG_UNITS = _of("minutes mins hours hrs")
_SPENT = [["time", word] for word in ("spent", "taken", "used", "needed", "elapsed")]
_VAGUE = (TIMES | UNITS) - _of("wall runtime runtimes dur elapsed walltime wallclock took ping")
_MEASURED = _of("value cost return returns bias")  # metrics whose names other data have, too
# Columns of loggers and of the tables of trackers.
_LOGGED = _of("level levelname message msg logger run runs trial trials study experiment experiments")
_EVENTS = _of("event events censored censoring died death dead arrival departure patient subject")
_LEFT = _of("eta remaining left")  # of XGBoost eta is a learning rate: a number needs a unit
_NOT_TIMES = _of("step steps stamp stamps series zone frame frames point points index horizon slot axis limit budget")
_VERBS = _of("took take takes taking taken spent lasted")
_PREPOSITIONS = _of("in after within")
RATES = _of("fps sps ips qps tps throughput mfu hfu wps ups")
RATED = _of(  # what is counted per second
    "it its iter iters iteration iterations step steps sample samples example examples image images img imgs token"
    " tokens tok toks batch batches seq seqs sequence sequences frame frames epoch epochs word words record records"
    " row rows item items file files sentence sentences document documents env envs episode episodes trial trials tree"
    " trees round rounds update updates call calls op ops req request requests query queries b byte bytes kb mb gb tb"
    " kib mib gib kbit mbit gbit flop flops gflops tflops kit transition transitions rollout rollouts instance"
    " instances graph graphs node nodes edge edges chunk chunks page pages line lines"
)
STEPS = _of(
    "it its iter iters iteration iterations step steps sample samples example examples image images token tokens batch"
    " batches epoch epochs trial trials"
)
_ROUNDS = _of("epoch iter iteration batch")  # of which a training has many: "time/epoch"
DATES = _of(
    "date dates datetime timestamp timestamps ts time times at on created create creation modified updated started"
    " start starting begin began begun ended end finished finish completed complete saved when now today generated"
    " trained exported written launched logged since until starttime endtime stamp ctime mtime atime utc day clock"
    " from"
)
IDS = _of("id ids uuid guid uid ulid")
_OF_RUNS = _of(
    "run runs session sessions trial trials cell cells job jobs experiment worker process thread kernel server"
    " instance execution launch attempt task notebook mlflow wandb view syncing slurm"
)
_WHOLE_RUNS = _of("run runs session sessions job jobs experiment execution launch mlflow wandb slurm")
RUNS = _of("run runs session experiment version exp trial job name mlruns")
RUN_DIRECTORIES = _of("version run runs exp experiment session train val predict tune tb tensorboard")
LEVELS = re.compile(r"\b(?:DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|[DIWEF]\d{0,4})\b")  # of loggers
PROCESS_IDS = _of("pid pids ppid tid processid threadid")
_NEAR_PROCESS_IDS = _of(
    "master main process processes worker workers thread threads kernel server child children subprocess subprocesses"
    " launcher"
)
PORTS = _of("port ports localhost http https tcp url address host listening serving tensorboard dashboard endpoint ws")
ADDRESSES = _of("at address addr ptr pointer object ref")
_ABOUT_RESULTS = (
    TIMES
    | RATES
    | IDS
    | PROCESS_IDS
    | _of(  # what is said about a result: loss_seconds, metrics_path
        "second eta timestamp date dir directory file name path url version"
    )
)
_HOSTS = _of("host hostname node nodename machine")
_KNOWN = PROCESSES | TIMES | _LEFT | STATISTICS | FILLERS | UNITS | _VERBS | METRICS | RATED | RATES | _of("estimated")


@lru_cache(maxsize=1 << 12)
def words(text: str) -> tuple[str, ...]:
    """Return the words of a name in lower case, without numbers."""
    return tuple(word.lower() for word in _WORD.findall(text[-LONGEST:]))


def are_known(name: Sequence[str]) -> bool:
    """Return whether every word of a name is known, and none of them names a result."""
    return all(word in _KNOWN and word not in RESULTS for word in name)


def is_result(name: Sequence[str]) -> bool:
    """Return whether a name names a result, or what decides one."""
    return not RESULTS.isdisjoint(name)


def are_of_inputs(parents: Sequence[str]) -> bool:
    """Return whether the keys above a value say that the name below them is that of a result or of an input."""
    return is_result(parents) or not _OF_INPUTS.isdisjoint(parents)


def are_of_settings(parents: Sequence[str]) -> bool:
    """Return whether the keys above a value say that it is a setting."""
    return not _OF_SETTINGS.isdisjoint(parents)


def is_metric(name: Sequence[str]) -> bool:
    """Return whether a name's last noun is a metric."""
    rest = _without_tail(name)
    return bool(rest) and rest[-1] in METRICS


def of_duration(name: Sequence[str], *, has_unit: bool) -> bool:
    """Return whether a name is that of a duration: "train_runtime", "epoch time (s)", "time per step"."""
    nouns = TIMES | _LEFT if has_unit else TIMES
    at = next((number for number in reversed(range(len(name))) if name[number] in nouns), None)
    if at is None or is_result(name):
        return False
    if list(name[:2]) in _SPENT:
        return True
    if not has_unit and all(word in _LONG_UNITS for word in name):  # "hours: 3.2"
        return False
    scoring = SCORING if has_unit or name[at] in UNITS else _SCORED
    if name[at] in UNITS and at and name[at - 1] in nouns:
        at -= 1
    before, behind = name[:at], name[at + 1 :]
    if behind and (behind[0] in _NOT_TIMES or not all(_may_follow(word) for word in behind)):
        return False
    if before and (before[-1] in METRICS - scoring or (before[-1] in _INSTANTS and name[at] in ("time", "times"))):
        return False  # the time at which something starts is no duration
    modifiers = [word for word in before if word not in STATISTICS]
    is_phase = bool(modifiers) and modifiers[-1] in PHASES
    return is_phase or all(_may_precede(word) for word in before)


def _may_follow(word: str) -> bool:
    return word in PROCESSES or word in STATISTICS or word in FILLERS or word in UNITS or word in TIMES or word in _LEFT


def _may_precede(word: str) -> bool:
    is_known = word in PROCESSES or word in STATISTICS or word in FILLERS or word in SCORING
    return is_known or word in TIMES or word == "estimated"


def introduces_duration(text: str) -> bool:
    """Return whether words lead to a duration: "training took", "finished in", "loading ..."."""
    name = words(text)
    if not name or is_result(name):
        return False
    subject = [word for word in name if word not in FILLERS and word not in STATISTICS]
    is_of_process = any(word in PROCESSES or word in SCORING or word in RATED for word in subject)
    if name[-1] in _VERBS:
        return is_of_process or all(word in _VERBS for word in subject)
    return is_of_process and (name[-1] in _PREPOSITIONS or _ELLIPSIS.search(text) is not None)


def is_vague(name: Sequence[str]) -> bool:
    """Return whether a name may be that of any time, as of an event."""
    return all(word in _VAGUE for word in name)


def are_of_log(heads: Sequence[str]) -> bool:
    """Return whether columns or keys are those of a log of a training, and not those of any data."""
    name = [word for head in heads for word in words(head)]
    return not (PHASES | (METRICS - _MEASURED) | _LOGGED).isdisjoint(name)


def are_of_events(heads: Sequence[str]) -> bool:
    """Return whether any column or key says that the data are of events or of predictions."""
    name = [word for head in heads for word in words(head)]
    return is_result(name) or not _EVENTS.isdisjoint(name)


def is_preposition(name: Sequence[str]) -> bool:
    """Return whether a name is nothing but a word that leads to a duration: "in"."""
    return len(name) == 1 and name[0] in _PREPOSITIONS


def continues(name: Sequence[str]) -> bool:
    """Return whether words only lead from a name to its value: "epoch 1 is 3.2 s", "trained 2026-11-24 in 3 s"."""
    return is_preposition(name) or tuple(name) in (("is",), ("was",))


def of_sum(name: Sequence[str]) -> bool:
    """Return whether a name says too little by itself, and stands for a duration behind values of a training."""
    return list(name) in (["total"], ["dt"])


def of_process(name: Sequence[str]) -> bool:
    """Return whether a name is that of a part of the training and of nothing else: "epoch", "data loading"."""
    return are_known(name) and METRICS.isdisjoint(name) and not _RUNNING.isdisjoint(name)


def of_rate(text: str) -> bool:
    """Return whether a name is that of a rate: "samples_per_second", "SPS", "it/s"."""
    name = words(text)
    if is_result(name) or not all(word in _KNOWN or word in IDS for word in name):
        return False
    rated = _PER_TIME.findall(text[-LONGEST:])
    if rated:
        return are_rated(*rated[-1])
    rest = _without_tail(name)
    return bool(rest) and rest[-1] in RATES


def are_rated(text: str, unit: str) -> bool:
    """Return whether the words before "/s" are counted in trainings: "it", "effective words", "MB"."""
    name = words(text)
    rated = STEPS if unit[:1].lower() in ("m", "h") else RATED  # a minute or an hour is long
    return bool(name) and name[-1] in rated and are_known(name[:-1])


def of_date(name: Sequence[str]) -> bool:
    """Return whether a name is that of a time at which something of the run happened."""
    is_dated = not DATES.isdisjoint(name) and not is_metric(name)
    return is_dated and not is_result(name) and all(word in _KNOWN | DATES | _OF_RUNS for word in name)


def of_id(name: Sequence[str]) -> bool:
    """Return whether a name is that of an id of a run or of a part of it, and not of a sample's."""
    if is_result(name):
        return False
    known = IDS | _OF_RUNS | FILLERS
    return not IDS.isdisjoint(name) and not _OF_RUNS.isdisjoint(name) and all(word in known for word in name)


def of_run_id(name: Sequence[str]) -> bool:
    """Return whether a name is that of an id of a whole run, and of no part of it."""
    return of_id(name) and _WHOLE_RUNS.issuperset(set(name) & _OF_RUNS)


def of_job(name: Sequence[str]) -> bool:
    """Return whether a name is that of the number of a run or job, or of a model that YDF numbers at random."""
    numbers = (["job", "id"], ["run", "id"], ["job", "hash"], ["uid"])  # Snakemake's hash is of an address
    return list(name[-2:]) in numbers


def of_run_name(name: Sequence[str]) -> bool:
    """Return whether a name is that of a run."""
    return not is_result(name) and not RUNS.isdisjoint(name)


def of_process_id(name: Sequence[str]) -> bool:
    """Return whether a name is that of a process id."""
    name = name[:-1] if name[-1:] == ("to",) else name  # "stats pid to 2625"
    return bool(name) and (name[-1] in PROCESS_IDS or list(name[-2:]) in (["process", "id"], ["thread", "id"]))


def may_be_of_process_id(name: Sequence[str]) -> bool:
    """Return whether a process id may stand behind a name, if it is one of the run's."""
    return not name or name[-1] in _NEAR_PROCESS_IDS or of_process_id(name)


def of_port(name: Sequence[str]) -> bool:
    """Return whether a name is that of a port."""
    return bool(name) and name[-1] in PORTS and not is_result(name)


def are_of_process(name: Sequence[str]) -> bool:
    """Return whether all words of a name are those of processes and their places: "worker pid", "listening on port"."""
    return all(word in _KNOWN | PROCESS_IDS | _NEAR_PROCESS_IDS | PORTS | ADDRESSES or len(word) == 1 for word in name)


def of_version(name: Sequence[str]) -> bool:
    """Return whether a name is that of the number of a run's directory."""
    return list(name) in (["v", "num"], ["version"], ["run"])


def of_address(name: Sequence[str]) -> bool:
    """Return whether a name is that of an address in memory."""
    return bool(name) and name[-1] in ADDRESSES


def _without_tail(name: Sequence[str]) -> list[str]:
    """Return a name without the units, statistics and fillers at its end."""
    rest = list(name)
    while rest and rest[-1] in UNITS | STATISTICS | FILLERS:
        rest.pop()
    return rest


def mentions_time(name: Sequence[str]) -> bool:
    """Return whether any word of a name is one of time, which may name a duration."""
    return not (TIMES | UNITS).isdisjoint(name) or "latency" in name


def may_count(name: Sequence[str]) -> bool:
    """Return whether "time" only stands before what a whole number may count: "time/epoch"."""
    return len(name) > 1 and is_vague(name[:1]) and not RATED.isdisjoint(name[1:])


def is_counted(behind: Sequence[str]) -> bool:
    """Return whether the word behind a number says what it counts: "elapsed 5 steps"."""
    return bool(behind) and behind[0] in RATED and behind[0] not in UNITS


def is_long_time(behind: Sequence[str]) -> bool:
    """Return whether the word behind a number is a unit of time in which no training is measured."""
    return behind[:1] in (("weeks",), ("months",), ("years",))


def of_process_or_left(name: Sequence[str]) -> bool:
    """Return whether words behind a duration name it: parts of the training, "elapsed", "remaining", "total"."""
    is_named = any(word in PROCESSES or word in TIMES or word in _LEFT or word == "total" for word in name[:2])
    return is_named and name[0] not in METRICS and are_known(name[:2])


def qualifies(key: str, above: str) -> bool:
    """Return whether a key only says of which phase the duration is that the key above it names."""
    name, outer = words(key), words(above)
    if outer in (("time",), ("times",)):
        return bool(name) and _ROUNDS.issuperset(name)
    return bool(name) and PHASES.issuperset(name) and of_duration(outer, has_unit=False) and not is_vague(outer)


def names_time(name: Sequence[str]) -> bool:
    """Return whether a name is of known words alone, one of which is of time: it may be bookkeeping, and no result."""
    return mentions_time(name) and are_known(name) and (METRICS - _SCORED).isdisjoint(name)


def mentions_id(name: Sequence[str]) -> bool:
    """Return whether the last words of a name are those of an id or of a run, though perhaps not of this one."""
    return any(word in IDS or word in _OF_RUNS for word in name[-2:])


def of_host(name: Sequence[str]) -> bool:
    """Return whether a name is that of a host."""
    return bool(name) and name[-1] in _HOSTS and not is_result(name)


def names_result(name: str, *, is_number: bool = False) -> bool:
    """Return whether a name is that of a loss, a metric, predictions, weights or a random state."""
    parts = words(name)
    protected = _PROTECTED | _PROTECTED_NUMBERS if is_number else _PROTECTED
    if parts and parts[-1] in protected:
        return True
    if not _ABOUT_RESULTS.isdisjoint(parts):
        return False
    is_numbered = _F1.search(name) is not None or (is_number and _R2.search(name) is not None)
    return is_numbered or not protected.isdisjoint(parts) or not _PROTECTED_PAIRS.isdisjoint(pairwise(parts))


def names_weights(name: str) -> bool:
    """Return whether a name is one that arrays of weights, of an optimizer's state or of results have."""
    parts = words(name)
    is_known = _NUMBERED_WEIGHTS.fullmatch(name) is not None or not _PROTECTED_ARRAYS.isdisjoint(parts)
    return names_result(name, is_number=True) or (is_known and _ABOUT_RESULTS.isdisjoint(parts))
