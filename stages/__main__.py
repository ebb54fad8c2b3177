"""The pipeline's stages as commands: `python -m stages NAME [INSTANCE]`. DVC runs them; a user may too.

Every run first validates the whole of `params.yaml`, so that a misspelt key of a later stage stops the first one.
"""

import sys
from types import ModuleType

import typer

from mascot.errors import ConfigurationError, MascotError
from mascot.params import PARAMS, Speaker
from mascot.references import ModelReference, Slot
from mascot.yamlfiles import Strict, load_yaml
from stages import base, candidates, contexts, judgments, pairs, sft

STAGES: dict[str, ModuleType] = {
    "base": base,
    "contexts": contexts,
    "sft": sft,
    "candidates": candidates,
    "judgments": judgments,
    "pairs": pairs,
}


class AllParams(Strict):
    """The whole of `params.yaml`: a section a stage, and the maps that several stages run over."""

    base: dict[Slot, ModelReference]
    speakers: dict[str, Speaker]
    contexts: dict[str, contexts.Params]
    sft: sft.Params
    candidates: candidates.Params
    judgments: judgments.Params
    pairs: pairs.Params


def validate_params() -> AllParams:
    """Check every section, and that speakers are named after their domain and persona and have contexts.

    Raises:
        ConfigurationError: names the key and the way out.
    """
    params: AllParams = load_yaml(PARAMS, AllParams)
    for key, speaker in params.speakers.items():
        if key != f"{speaker.domain}-{speaker.persona}":
            raise ConfigurationError(
                f"{PARAMS}: `speakers.{key}` must be called `{speaker.domain}-{speaker.persona}`, after its domain and persona."
            )
        if speaker.domain not in params.contexts:
            raise ConfigurationError(f"{PARAMS}: `speakers.{key}` is of the domain `{speaker.domain}`, which `contexts` does not have.")
    return params


app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for _name, _module in STAGES.items():
    app.command(_name, help=_module.__doc__)(_module.run)


@app.callback()
def before() -> None:
    validate_params()


def main() -> None:
    try:
        app()
    except MascotError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
