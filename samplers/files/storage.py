"""Tensors and plain data in one file: safetensors and JSON, checked by SHA-256, written whole or not at all."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from recipe.errors import RecipeError

from . import regular

TEMPORARY = r"\..*\.[0-9a-f]{8}"  # names of files that are being written
RESTORE = "Restore it from a copy, or sample again."


class Foreign(RecipeError):
    """The RecipeError for a file that is not of the expected kind."""


def write(path: Path, kind: str, values: Mapping[str, torch.Tensor], account: Mapping[str, Any]) -> None:
    """Writes tensors and plain JSON data; equal contents make equal files. Raises RecipeError with the system's reason.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run.safetensors"
    >>> write(path, "draws", {"theta": torch.zeros(2)}, {"seed": 1})
    >>> read(path, "draws")
    ({'theta': tensor([0., 0.])}, {'seed': 1})
    """
    values = {name: x.detach().cpu().clone(memory_format=torch.contiguous_format) for name, x in values.items()}
    header = {"names": list(values), **account, "sha256": _sha256(values, account)}
    # One metadata entry: safetensors writes several in no fixed order.
    data = safetensors.torch.save(values, {kind: json.dumps(header)})
    with refused(path):
        _replace(path, data)


def read(path: Path, kind: str, *, links: bool = True) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Reads the tensors and plain data of `write`; nothing in the file is executed.

    `links`: whether the path may be a symbolic link. Raises RecipeError for a file that is missing, not regular or not
    intact, and Foreign for a file of another kind.
    """
    try:
        with regular.read_by_name(path, links=links) as name, safe_open(name, framework="pt") as file:
            metadata = file.metadata() or {}
            if kind not in metadata:
                raise Foreign(str(path), f"not an intact file of {kind} (it was not written as such)", do=RESTORE)
            header = json.loads(metadata[kind])
            # Copies: tensors mapped to the file would change with the file after the check.
            values = {name: file.get_tensor(name).clone() for name in header.pop("names")}
        if header.pop("sha256") != _sha256(values, header):
            raise ValueError("its contents do not match its SHA-256")
        return values, header
    except Foreign:
        raise
    except RecipeError as error:  # no regular file
        raise RecipeError(str(path), f"cannot be read ({error.what})", do="Check the path.") from error
    except OSError as error:
        raise RecipeError(str(path), f"cannot be read ({error})", do="Check the path.") from error
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise RecipeError(str(path), f"not an intact file of {kind} ({error})", do=RESTORE) from error


@contextmanager
def refused(path: str | os.PathLike) -> Iterator[None]:
    """Turns errors of the system into a RecipeError that names the path."""
    try:
        yield
    except RecipeError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise RecipeError(
            str(path),
            f"cannot be written ({getattr(error, 'strerror', None) or error})",
            do="Choose a folder with room that you may write to.",
        ) from error


def make_folder(folder: Path) -> None:
    """Makes a folder unless it exists. Raises RecipeError with the system's reason."""
    with refused(folder):
        folder.mkdir(parents=True, exist_ok=True)


def digest(x: torch.Tensor) -> str:
    """The SHA-256 of a tensor's type, shape and numbers."""
    return _sha256({"": x.detach().cpu().resolve_conj().resolve_neg().contiguous()}, {})


def _sha256(values: Mapping[str, torch.Tensor], account: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(account).encode())
    for name, value in values.items():
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _replace(path: Path, data: bytes) -> None:
    if path.exists() and not path.is_file():
        raise FileExistsError("not a regular file")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
