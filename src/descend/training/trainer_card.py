"""The model card of a trainer's model, for users of `DescentTrainer` without a recipe."""

from pathlib import Path
from typing import Any

from descend.results.card import Card, noise_note, trained_note, without_adapters


def trainer_card(trainer: Any, name: str | None = None, base_model: str | None = None, **metadata: Any) -> Card:
    """The card of what a trainer saves: how it was trained, its verdict, and its evaluation if there was one.

    Args:
        trainer: A `DescentTrainer`, or another trainer with `DescentMixin`.
        name: The model's name; by default that of the output folder.
        base_model: The name on the Hub of the model that training started from; by default as its configuration says.
        **metadata: Further metadata of the card, such as ``license``.
    """
    args, network, objective = trainer.args, trainer.users_model, trainer.objective
    library = without_adapters(network)
    source = getattr(getattr(library, "config", None), "_name_or_path", None) or None
    if source is not None and Path(source).expanduser().exists():
        source = None  # a folder is no name on the Hub
    given = objective.noise
    noise = "" if given is None else f", {noise_note(given.level, given.noise_is)} on the input embedding"
    about = (
        f"{type(library).__name__} with {objective.model.depth} layers, trained by `{type(trainer).__name__}` with the "
        f"method `{args.method}`{noise} and seed {args.seed}. The prediction can be read after every layer."
        + trained_note(trainer.trained)
    )
    return Card.of(
        network,
        name or args.folder.absolute().name,
        [about],
        verdict="" if trainer.verdict is None else trainer.verdict.sentence("the evaluation data"),
        summary=trainer.summary,
        base_model=base_model or source,
        metadata=metadata,
    )
