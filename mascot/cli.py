"""The `mascot` command: what is not a stage of the pipeline."""

import sys
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from mascot.errors import ConfigurationError, MascotError
from mascot.files import writing
from mascot.params import PARAMS

app = typer.Typer(help="Personas that stay themselves in multi-agent dialogue.", no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def main_options() -> None:
    """Personas that stay themselves in multi-agent dialogue.

    The pipeline itself runs under DVC (`dvc repro`); its stages are `python -m stages`.
    """


@app.command()
def profile(name: Annotated[str, typer.Argument(help="quick, showcase, paper or smoke.")]) -> None:
    """Write a profile, a full set of params, to params.yaml in the current folder.

    A profile differs from another one only in values. What you changed in params.yaml and did not commit is overwritten.
    """
    folder = resources.files("mascot").joinpath("profiles")
    names = sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    if name not in names:
        raise ConfigurationError(f"`{name}` is not a profile. There are: {', '.join(names)}.")
    if not Path("dvc.yaml").is_file():
        raise ConfigurationError("there is no dvc.yaml here: run this in the root of the repository.")
    with writing(PARAMS) as temporary:
        temporary.write_text(folder.joinpath(f"{name}.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    print(f"{PARAMS} is now the profile {name}. See what changed with `dvc params diff`, and run it with `dvc repro`.")


def main() -> None:
    """Run the command; a `MascotError` becomes one line and exit status 1."""
    try:
        app()
    except MascotError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
