"""Fine-tune a LoRA adapter on a persona's written replies: models/sft/<domain>/<persona>.

Second-hand sources say that the paper's candidates come from such a policy; its SFT settings are unpublished and these are ours.
The adapter is the start of the embedded profiles' candidates and GRPO, and the SFT baseline.

    python -m stages sft support-anchor
"""

from pathlib import Path

from pydantic import Field

from mascot.dialogue.render import speaker_messages
from mascot.errors import ConfigurationError
from mascot.files import write_json
from mascot.params import Speaker, read_section
from mascot.personas import load_persona
from mascot.training.launch import LaunchName, launched
from mascot.training.lora import Lora
from mascot.yamlfiles import Strict


class Params(Strict):
    """`examples` written replies are trained on, the `validation` next ones are only measured; the rest is as `SftSettings`.

    `launch` names a file in `launch/`: the processes to train in.
    """

    launch: LaunchName
    examples: int = Field(ge=1)
    validation: int = Field(ge=1)
    epochs: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    max_tokens: int = Field(ge=16)
    seed: int
    lora: Lora


def run(instance: str) -> None:
    params = read_section(Params, "sft")
    speaker = read_section(Speaker, "speakers", instance)
    persona = load_persona(speaker.card)
    written = load_persona(speaker.examples).replies
    if (needed := params.examples + params.validation) > len(written):
        raise ConfigurationError(
            f"{speaker.examples}: `replies` has {len(written)} written replies, but params `sft` asks for {needed} "
            "(examples + validation). Write more, or lower `sft.examples`."
        )

    if launched(params.launch, "sft", instance):
        return

    from mascot.references import load_base
    from mascot.training.sft import Example, SftSettings, train_sft

    examples = [Example(tuple(speaker_messages(persona, reply.context)), reply.reply) for reply in written]
    metrics = train_sft(
        load_base(Path("models/base/policy")),
        examples[: params.examples],
        examples[params.examples : needed],
        params.lora,
        SftSettings(params.epochs, params.batch_size, params.learning_rate, params.max_tokens, params.seed),
        speaker.artifact("models/sft"),
        speaker.artifact("metrics/sft"),
    )
    if metrics:
        write_json(metrics, speaker.artifact("metrics/sft", ".json"))
