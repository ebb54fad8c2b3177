"""The pipeline's stages as commands: `python -m stages NAME [INSTANCE]`. DVC runs them; a user may too.

Every run first validates the whole of `params.yaml`, so that a misspelt key of a later stage stops the first one.
"""

import sys
from types import ModuleType
from typing import Annotated

import typer
from pydantic import Field

from mascot.errors import ConfigurationError, MascotError
from mascot.params import PARAMS, Speaker, read_params
from mascot.references import ModelReference, Slot
from mascot.yamlfiles import Strict, check
from stages import alignment, base, candidates, contexts, judgments, pairs, reward, sft, speaker

STAGES: dict[str, ModuleType] = {
    "base": base,
    "contexts": contexts,
    "sft": sft,
    "candidates": candidates,
    "judgments": judgments,
    "pairs": pairs,
    "reward": reward,
    "speaker": speaker,
    "alignment": alignment,
}


class AllParams(Strict):
    """The whole of `params.yaml`: a section a stage, and the maps that several stages run over."""

    base: dict[Slot, ModelReference]
    speakers: Annotated[dict[str, Speaker], Field(min_length=1)]
    contexts: dict[str, contexts.Params]
    sft: sft.Params
    candidates: candidates.Params
    judgments: judgments.Params
    pairs: pairs.Params
    reward: reward.Params
    speaker: speaker.Params
    alignment: alignment.Params


def validate_params() -> AllParams:
    """Check every section, and that speakers are named after their domain and persona and have contexts.

    Raises:
        ConfigurationError: names the key and the way out.
    """
    params: AllParams = check(read_params() or {}, AllParams, str(PARAMS))
    for slot in ("policy", "encoder", params.reward.base):
        if slot not in params.base:
            raise ConfigurationError(f"{PARAMS}: `base.{slot}` is missing; add its model reference.")
    for key, one in params.speakers.items():
        if key != f"{one.domain}-{one.persona}":
            raise ConfigurationError(
                f"{PARAMS}: `speakers.{key}` must be called `{one.domain}-{one.persona}`, after its domain and persona."
            )
        if f"{one.domain}-{one.reward}" not in params.speakers:
            raise ConfigurationError(
                f"{PARAMS}: `speakers.{key}.reward` is `{one.reward}`, and `speakers` has no `{one.domain}-{one.reward}`."
            )
        if one.domain not in params.contexts:
            raise ConfigurationError(f"{PARAMS}: `speakers.{key}` is of the domain `{one.domain}`, which `contexts` does not have.")
    return params


app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for _name, _module in STAGES.items():
    app.command(_name, help=_module.__doc__)(_module.run)


@app.callback()
def before() -> None:
    if "--help" not in sys.argv:
        validate_params()


def main() -> None:
    """Run a stage. A `MascotError`, and a package that an extra would bring, become a message and exit status 1."""
    try:
        app()
    except MascotError as error:
        sys.exit(f"error: {error}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("mascot", "stages"):
            raise
        sys.exit(f"error: this stage needs the package `{error.name}`, which is not installed. Run `pip install -e '.[train]'`.")


if __name__ == "__main__":
    main()
