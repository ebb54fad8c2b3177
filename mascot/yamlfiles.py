"""YAML files checked by a pydantic model: personas, rubrics, written lines, params.

Unknown and repeated keys are errors, and every error names the file and the key.
"""

import difflib
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from yaml.constructor import ConstructorError

from mascot.errors import ConfigurationError


class Strict(BaseModel):
    """A model that rejects keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Loader(yaml.SafeLoader):
    """Refuses a mapping that has one key twice (YAML would keep the last one silently)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                message = "a list or a mapping cannot be a key; quote text that begins with [ or {"
                raise ConstructorError(None, None, message, key_node.start_mark)
            if key in seen:
                raise ConstructorError(None, None, f"the key {key!r} is there twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


T = TypeVar("T")


def read_yaml(path: Path) -> Any:
    """Read a YAML file as plain values. Raises `ConfigurationError` if it is missing, not UTF-8, or not YAML."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path}: there is no such file. Restore it (`git checkout {path}`) or correct the name.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read ({error}). It must be a readable UTF-8 text file.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date or number
        raise ConfigurationError(f"{path}: is not valid YAML: {error}") from error


def load_yaml(path: Path, kind: type[T] | Any) -> T:
    """Read a YAML file and check it against `kind` (a model, or any type that pydantic understands)."""
    return check(read_yaml(path), kind, str(path))


def check(value: Any, kind: type[T] | Any, where: str) -> T:
    """Validate plain values; `where` (a file, or a file and a section) begins every line of the error."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        lines = [_explain(item, value, kind) for item in error.errors()]
        raise ConfigurationError("\n".join(f"{where}: {line}" for line in lines)) from None


def _explain(item: Any, value: Any, kind: Any) -> str:
    key = ".".join(str(part) for part in item["loc"] if part != "[key]") or "(whole file)"
    if item["type"] == "extra_forbidden":
        known = _known_keys(kind, item["loc"][:-1])
        close = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"known keys: {', '.join(known)}." if known else "remove it."
        return f"unknown key `{key}`; {hint}"
    if item["type"] == "missing":
        return f"`{key}` is missing; add it."
    got = f" (got {item['input']!r:.80})" if not isinstance(item["input"], dict | list) else ""
    return f"`{key}`: {item['msg']}{got}"


def _known_keys(kind: Any, location: tuple[Any, ...]) -> list[str]:
    """The field names of the model that lies at `location` inside `kind`, as far as plain nesting tells."""
    for part in location:
        if isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
            kind = kind.model_fields[part].annotation
        else:
            arguments = getattr(kind, "__args__", ())
            if not arguments:
                return []
            kind = arguments[-1]
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
