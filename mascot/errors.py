"""The errors that a user can cause, and mend.

Each message says what was wrong, where (file, row or key) and what to do. Command lines print it and exit with status 1;
anything else that is raised is a bug and keeps its traceback.
"""


class MascotError(Exception):
    """Base of all errors that are reported without a traceback."""


class ConfigurationError(MascotError):
    """`params.yaml`, a persona, a rubric or the environment is wrong: the run stops at once."""


class DataError(MascotError):
    """A corpus, an artifact or a row of one cannot be used."""


class ModelError(MascotError):
    """A model reference cannot be resolved, or the files behind it are not what was promised."""


class OutputError(MascotError):
    """A result cannot be written (disk full, folder read-only)."""
