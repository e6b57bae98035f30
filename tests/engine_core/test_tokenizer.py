"""A model directory's tokenizer files: what is missing or damaged is an error that names the place."""

from pathlib import Path

import pytest

from learnvllm.architecture.errors import ModelLoadError
from learnvllm.engine_core.tokenizer import Tokenizer
from tests.engine_core.parts import byte_level_tokenizer


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    byte_level_tokenizer().backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_the_template_file_comes_before_the_configurations(directory: Path) -> None:
    (directory / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>", "chat_template": "old"}')
    (directory / "chat_template.jinja").write_text("new")
    tokenizer = Tokenizer.from_directory(directory)
    assert tokenizer.eos_token_id == 2
    assert tokenizer.chat_template == "new"


def test_without_a_configuration_text_is_encoded_all_the_same(directory: Path) -> None:
    tokenizer = Tokenizer.from_directory(directory)
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
    assert tokenizer.chat_template is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"\xff"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b"\xff"),
        ("tokenizer_config.json", b'{"chat_template": [1]}'),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}'),
        ("chat_template.jinja", b"\xff"),
    ],
)
def test_a_damaged_file_is_an_error_with_a_name(directory: Path, name: str, content: bytes) -> None:
    (directory / name).write_bytes(content)
    with pytest.raises(ModelLoadError, match=str(directory)):
        Tokenizer.from_directory(directory)


def test_a_directory_without_a_tokenizer_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="save_pretrained"):
        Tokenizer.from_directory(tmp_path)
