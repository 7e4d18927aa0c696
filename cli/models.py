"""`engine-cli models`: the short names of models, and where their files are."""

import click

from ..gpu.loading.resolve import KnownModel, known_models
from .output import write, write_json
from .render import table


@click.command(short_help="List the models with a short name.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per model.")
def models(as_json: bool) -> None:
    """List the models with a short name, and where they are or how to get them."""
    for model in known_models() if as_json else ():
        write_json(_fields(model))
    if not as_json:
        rows = [(model.name, model.description, _where(model)) for model in known_models()]
        write(table(rows, header=("name", "model", "where")))


def _fields(model: KnownModel) -> dict[str, object]:
    path = model.find()
    return {
        "name": model.name,
        "description": model.description,
        "path": None if path is None else str(path),
        "install": model.install,
    }


def _where(model: KnownModel) -> str:
    path = model.find()
    return f"not installed; get it with: {model.install}" if path is None else str(path)
