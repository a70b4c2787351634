"""Writing of emitted text to a file, whole or not at all."""

import os
import secrets
from pathlib import Path

from recipe.errors import RecipeError


def write(path: Path, source: str, force: bool) -> None:
    """Writes a new file, or replaces an emitted one; any file with `force`.

    Raises RecipeError for another existing file, and with the system's reason.
    """
    try:
        if path.exists() and not (path.is_file() and (force or _is_emitted(path.read_text("utf-8", "replace")))):
            raise RecipeError(
                str(path),
                "it exists, and is not a file that we emitted",
                do="Choose another name, or pass --force to replace a file.",
            )
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            temporary.write_text(source, "utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise RecipeError(str(path), f"it cannot be written ({error.strerror})", do="Choose another folder.") from error


def _is_emitted(source):
    return source.startswith('"""') and "\nOne step of " in source and "\ndef step(state, h, *," in source
