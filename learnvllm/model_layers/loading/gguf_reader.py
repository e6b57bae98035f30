"""Reads a GGUF file: metadata, then a table of tensors, then their data, mapped and dequantized on request.

The format is a header of length-prefixed values, so every read is checked against the end of the file: a
truncated download is an error with a name, not a crash. The arithmetic of the quantized formats is the `gguf`
package's. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from learnvllm.architecture.errors import ModelLoadError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4


@dataclass(frozen=True)
class GGUFTensor:
    """One row of the table. `shape` is in our order (rows first); the file has it the other way round."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    """F32, F16, BF16, Q4_1 and so on."""
    offset: int
    num_bytes: int


class GGUFFile:
    """`metadata`: key -> value; `tensors`: name -> GGUFTensor.

    Raises:
        ModelLoadError: the file is missing, no GGUF, of another version, or shorter than it says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise ModelLoadError(f"{path} does not exist.", parameter="model", value=str(path))
        with path.open("rb") as file:
            self.size = path.stat().st_size
            if file.read(4) != b"GGUF":
                raise self._error("is not a GGUF file: it does not begin with GGUF")
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 4
        try:
            self._read_header()
        except (struct.error, UnicodeDecodeError, RecursionError, _Damaged) as error:
            self._data.close()
            raise self._error(f"is truncated or damaged ({error}). Fetch it again") from None
        except BaseException:
            self._data.close()
            raise

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self._data.close()

    def read(self, name: str) -> tuple[np.ndarray, str]:
        """A tensor's values in `shape`, and their safetensors dtype: F32, F16 or BF16 (as raw uint16).

        16-bit floats stay as they are; quantized formats become fp32.
        """
        from gguf import GGMLQuantizationType, dequantize

        t = self.tensors[name]
        raw = np.frombuffer(self._data[t.offset : t.offset + t.num_bytes], dtype=np.uint8)
        if t.type_name == "F16":
            return raw.view(np.float16).reshape(t.shape), "F16"
        if t.type_name == "BF16":
            return raw.view(np.uint16).reshape(t.shape), "BF16"
        if t.type_name == "F32":
            return raw.view(np.float32).reshape(t.shape), "F32"
        rows = raw.reshape(*t.shape[:-1], -1)
        try:
            values = dequantize(rows, GGMLQuantizationType[t.type_name])
        except NotImplementedError as error:
            raise self._error(f"holds {name} in a format that cannot be read: {error}") from None
        return values.reshape(t.shape), "F32"

    def _read_header(self) -> None:
        version = self._scalar("I")
        if version not in (2, 3):
            raise self._error(f"is GGUF version {version}; versions 2 and 3 can be read")
        num_tensors, num_values = self._scalar("Q"), self._scalar("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("I"))
        table = [self._tensor_info() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise _Damaged(f"general.alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        self.tensors: dict[str, GGUFTensor] = {}
        for name, shape, type_id, offset in table:
            self.tensors[name] = self._place(name, shape, type_id, start + offset)

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, num_dims = self._string(), self._scalar("I")
        if num_dims > _MAX_DIMS:
            raise _Damaged(f"{name} claims {num_dims} dimensions")
        dims = tuple(self._scalar("Q") for _ in range(num_dims))
        return name, dims[::-1], self._scalar("I"), self._scalar("Q")

    def _place(self, name: str, shape: tuple[int, ...], type_id: int, offset: int) -> GGUFTensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            kind = GGMLQuantizationType(type_id)
        except ValueError:
            raise self._error(f"holds {name} in the unknown format number {type_id}") from None
        block, block_bytes = GGML_QUANT_SIZES[kind]
        elements = 1
        for d in shape:  # Python integers: a damaged size cannot overflow
            elements *= d
        if elements % block:
            raise _Damaged(f"{name} of shape {list(shape)} does not fill whole {kind.name} blocks")
        num_bytes = elements // block * block_bytes
        if offset + num_bytes > self.size:
            raise _Damaged(f"{name} ends at byte {offset + num_bytes} of {self.size}")
        return GGUFTensor(name, shape, kind.name, offset, num_bytes)

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._data, self._at)
        self._at += struct.calcsize(code)
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        if length > self.size - self._at:
            raise _Damaged(f"a text of {length} bytes at byte {self._at} of {self.size}")
        self._at += length
        return self._data[self._at - length : self._at].decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            item, count = self._scalar("I"), self._scalar("Q")
            if count > self.size - self._at:  # every item takes a byte at least
                raise _Damaged(f"an array of {count} items at byte {self._at} of {self.size}")
            return [self._value(item) for _ in range(count)]
        if kind not in _SCALARS:
            raise _Damaged(f"value type {kind}")
        return self._scalar(_SCALARS[kind])

    def _error(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path} {what}.", parameter="model", value=str(self.path))


class _Damaged(Exception):
    """The header asks for more than the file holds, or for what cannot be."""
