"""A directory of safetensors as a source of tensors: read through a memory map, one layer at a time.

Pages that were read count as this process's memory for as long as the file stays mapped, so the map is
dropped and made anew every few dozen megabytes: loading never needs much more than the finished model.
Upstream namesake: vllm/model_executor/model_loader/weight_utils.py (safetensors_weights_iterator).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from learnvllm.architecture.errors import ModelLoadError

REOPEN_AFTER_BYTES = 48 * 2**20
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class SafetensorsCheckpoint:
    """Tensors of a model directory, by name. Remembers which were taken.

    Raises:
        ModelLoadError: there are no safetensors, or only pickles; a file is missing, truncated or damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file_of = _files_by_tensor(directory)
        self.taken: set[str] = set()
        self._open_path: Path | None = None
        self._handle: Any = None
        self._bytes_read = 0

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor as stored, a view of the mapped file.

        Raises:
            ModelLoadError: there is no such tensor, or its shape is another.
        """
        path = self.file_of.get(name)
        if path is None:
            raise self._error(f"has no tensor {name!r} (expected shape {list(shape)})", name)
        tensor: Tensor = self._opened(path).get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise self._error(
                f"has {name!r} with shape {list(tensor.shape)}, but config.json asks for {list(shape)}", name
            )
        if not tensor.is_floating_point():
            raise self._error(
                f"has {name!r} in {tensor.dtype}; quantized checkpoints are not implemented", name
            )
        self.taken.add(name)
        self._bytes_read += tensor.nbytes
        return tensor

    def has(self, name: str) -> bool:
        return name in self.file_of

    def finish(self, ignore: Iterable[str] = ()) -> None:
        """Close the files and make sure that nothing was left over: an unused tensor means wrong results.

        Args:
            ignore: name patterns that may be left over.

        Raises:
            ModelLoadError: tensors were left over.
        """
        self._close()
        patterns = tuple(ignore)
        left = sorted(
            n for n in self.file_of if n not in self.taken and not any(fnmatchcase(n, p) for p in patterns)
        )
        if left:
            names = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
            raise self._error(f"has tensors that config.json knows nothing of: {names}", left)

    def _opened(self, path: Path) -> Any:
        if path != self._open_path or self._bytes_read > REOPEN_AFTER_BYTES:
            self._close()
            self._handle, self._open_path = open_safetensors(path), path
        return self._handle

    def _close(self) -> None:
        self._handle = None  # safe_open unmaps once nobody refers to it
        self._open_path, self._bytes_read = None, 0

    def _error(self, what: str, value: object) -> ModelLoadError:
        return ModelLoadError(f"{self.directory} {what}.", parameter="model", value=value)


def open_safetensors(path: Path) -> Any:
    """Map a safetensors file; its header and length are checked here.

    Raises:
        ModelLoadError: it is missing, truncated or something else.
    """
    if not path.is_file():
        raise ModelLoadError(f"{path} does not exist.", parameter="model", value=str(path))
    try:
        return safe_open(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(
            f"{path} ({path.stat().st_size} bytes) is truncated or not a safetensors file: {error}. "
            "Fetch it again.",
            parameter="model",
            value=str(path),
        ) from None


def _files_by_tensor(directory: Path) -> dict[str, Path]:
    """Tensor name -> file, from the index of a sharded checkpoint or from the files themselves."""
    index_path = directory / INDEX
    if index_path.is_file():
        try:
            names = json.loads(index_path.read_text(encoding="utf-8"))["weight_map"]
            shards = {directory / str(file) for file in names.values()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelLoadError(
                f"{index_path} is not a safetensors index: {error!r}.",
                parameter="model",
                value=str(index_path),
            ) from None
    else:
        shards = set(directory.glob("*.safetensors"))
        if not shards:
            raise _no_weights(directory)
    found: dict[str, Path] = {}
    for path in sorted(shards):
        for name in open_safetensors(path).keys():  # noqa: SIM118  (a handle, not a dict)
            if name in found:
                raise ModelLoadError(
                    f"{directory} has tensor {name!r} twice: in {found[name].name} and {path.name}.",
                    parameter="model",
                    value=name,
                )
            found[name] = path
    return found


def _no_weights(directory: Path) -> ModelLoadError:
    pickles = sorted(p.name for pattern in PICKLES for p in directory.glob(pattern))
    if pickles:
        message = (
            f"{directory} has weights only as pickles ({', '.join(pickles[:3])}), which can run any code "
            "when opened and are never loaded. Convert them to safetensors."
        )
    else:
        message = f"{directory} has no *.safetensors files."
    return ModelLoadError(message, parameter="model", value=str(directory))
