"""The shape of a LoRA adapter, as params give it."""

from typing import Annotated, Any, Literal

from pydantic import Field

from mascot.yamlfiles import Strict


class Lora(Strict):
    """Rank `r`, scaling `alpha` / `r`, and the linear layers that are adapted (`all-linear`, or names as in `[q_proj, v_proj]`)."""

    r: int = Field(ge=1)
    alpha: int = Field(ge=1)
    dropout: float = Field(ge=0, lt=1)
    target_modules: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)]

    def arguments(self) -> dict[str, Any]:
        """As `peft.LoraConfig` takes it."""
        return {"r": self.r, "lora_alpha": self.alpha, "lora_dropout": self.dropout, "target_modules": self.target_modules}
