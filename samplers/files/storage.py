"""Tensors and plain data in one file: safetensors and JSON, checked by SHA-256, written whole or not at all."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from recipe.errors import RecipeError

from . import regular

RESTORE = "Restore it from a copy, or sample again."


class ForeignFile(RecipeError):
    """The RecipeError for a file that is not of the expected kind."""


def check_suffix(where: str, path: Path) -> None:
    """Refuses a file whose name ends like one of another format; an end in digits, as of run.1, is of none."""
    suffix = path.suffix.removeprefix(".")
    if suffix not in ("", "safetensors") and not suffix.isdigit():
        do = f"Name it {path.with_suffix('.safetensors').name}."
        raise RecipeError(where, f"draws are written as safetensors, not {suffix}", do=do)


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
    with regular.refused(path):
        regular.replace(path, data)


def read(path: Path, kind: str, *, links: bool = True) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Reads the tensors and plain data of `write`; nothing in the file is executed.

    `links`: whether the path may be a symbolic link. Raises RecipeError for a file that is missing, not regular or not
    intact, and ForeignFile for a file of another kind.
    """
    try:
        with regular.read_by_name(path, links=links) as name, safe_open(name, framework="pt") as file:
            metadata = file.metadata() or {}
            if kind not in metadata:
                raise ForeignFile(str(path), f"not an intact file of {kind} (it was not written as such)", do=RESTORE)
            header = json.loads(metadata[kind])
            # Copies: tensors mapped to the file would change with the file after the check.
            values = {name: file.get_tensor(name).clone() for name in header.pop("names")}
        if header.pop("sha256") != _sha256(values, header):
            raise ValueError("its contents do not match its SHA-256")
        return values, header
    except ForeignFile:
        raise
    except RecipeError as error:  # no regular file
        raise RecipeError(str(path), f"cannot be read ({error.what})", do="Check the path.") from error
    except OSError as error:
        raise RecipeError(str(path), f"cannot be read ({error})", do="Check the path.") from error
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise RecipeError(str(path), f"not an intact file of {kind} ({error})", do=RESTORE) from error


def make_folder(folder: Path) -> None:
    """Makes a folder unless it exists. Raises RecipeError with the system's reason."""
    with regular.refused(folder):
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
