"""The quick starts: what is executed, and what their own verdict advises where they are not identical by default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STARTS = Path(__file__).parent / "starts"


@dataclass(frozen=True)
class QuickStart:
    """One quick start: its files, what prepares it, and its command."""

    name: str
    command: tuple[str, ...]
    prepared_by: tuple[tuple[str, ...], ...] = ()  # commands that are executed before, not recorded
    result_in: str = ""  # the file in which it leaves what it prints; empty for the console
    advised: tuple[str, ...] = ()  # options of record that verify must name, and that make it identical

    @property
    def files(self) -> list[Path]:
        """Return the files that stand in its directory when it begins."""
        directory = STARTS / self.name
        return sorted(directory.iterdir()) if directory.is_dir() else [STARTS / f"{self.name}.py"]


def _script(name: str, *arguments: str, advised: tuple[str, ...] = ()) -> QuickStart:
    return QuickStart(name, ("python", f"{name}.py", *arguments), advised=advised)


QUICK_STARTS = (
    _script("pytorch_summary_writer"),
    _script("safetensors_save"),
    _script("transformers_trainer"),
    _script("trl_sft"),
    _script("diffusers_unconditional"),
    _script("pyg_gcn"),
    _script("monai_segmentation"),
    _script("sentence_transformers_losses"),
    _script("peft_lora"),
    _script("lightning_autoencoder"),
    _script("accelerate_loop"),
    _script("hydra_app"),
    _script("skorch_classifier"),
    _script("stable_baselines3_ppo"),
    _script("cleanrl_reinforce"),
    _script("spacy_textcat"),
    _script("keras_sequential"),
    _script("jax_regression"),
    _script("sklearn_grid_search"),
    _script("xgboost_train"),
    _script("lightgbm_sklearn"),
    _script("catboost_classifier"),
    _script("gensim_word2vec"),
    _script("cma_evolution"),
    _script("hyperopt_search"),
    _script("optuna_study"),
    _script("mlflow_autologged"),
    _script("wandb_offline"),
    _script("dask_xgboost"),
    _script("metaflow_flow", "--no-pylint", "run"),
    QuickStart("snakemake", ("snakemake", "-j1")),
    QuickStart("dvc", ("dvc", "repro"), prepared_by=(("git", "init", "-q"), ("dvc", "init", "-q"))),
    QuickStart(
        "papermill",
        ("papermill", "in.ipynb", "out.ipynb", "-p", "lr", "0.05"),
        prepared_by=(("python", "notebook.py"),),
        result_in="out.ipynb",
    ),
)
