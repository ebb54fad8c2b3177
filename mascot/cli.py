"""The `mascot` command: what is not a stage of the pipeline."""

import sys
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from mascot.errors import ConfigurationError, MascotError
from mascot.files import writing
from mascot.params import PARAMS, read_params
from mascot.yamlfiles import read_yaml

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
    source = _find_profile(name)
    if not Path("dvc.yaml").is_file():
        raise ConfigurationError("there is no dvc.yaml here: run this in the root of the repository.")
    with writing(PARAMS) as temporary:
        temporary.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    print(f"{PARAMS} is now the profile {name}. See what changed with `dvc params diff`, and run it with `dvc repro`.")


@app.command()
def footprint(name: Annotated[str | None, typer.Argument(metavar="PROFILE", help="A profile; by default params.yaml.")] = None) -> None:
    """Print parameters, trainable share, memory and disk of a profile, from its models' configurations, without weights.

    Of a model from the package index, that needs what `dvc repro base` makes; of a Hub model, the Hub or its local cache.
    """
    if name is None:
        params, where = read_params(), str(PARAMS)
    else:
        with resources.as_file(_find_profile(name)) as path:
            params, where = read_yaml(path), path.name

    from mascot.footprint import footprint

    print(footprint(params, where, Path("models/base")))


def _find_profile(name: str) -> Traversable:
    """The file of a profile. Raises `ConfigurationError` if there is none of that name."""
    folder = resources.files("mascot").joinpath("profiles")
    names = sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    if name not in names:
        raise ConfigurationError(f"`{name}` is not a profile. There are: {', '.join(names)}.")
    return folder.joinpath(f"{name}.yaml")


def main() -> None:
    """Run the command; a `MascotError`, and a package that an extra would bring, become one line and exit status 1."""
    try:
        app()
    except MascotError as error:
        sys.exit(f"error: {error}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "mascot":
            raise
        sys.exit(f"error: this command needs the package `{error.name}`, which is not installed. Run `pip install -e '.[train]'`.")
