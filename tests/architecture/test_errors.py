"""Errors keep what they know, across pickling and across the wire, and know their HTTP status."""

import inspect
import pickle

import pytest

from learnvllm.architecture import errors
from learnvllm.architecture.errors import (
    ConfigError,
    EngineDeadError,
    LearnVLLMError,
    ModelLoadError,
    NotFoundError,
    QueueFullError,
    ServerError,
    ValidationError,
)
from learnvllm.engine_core.protocol import from_remote_error, to_remote_error

ALL = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, LearnVLLMError)]


def make(cls: type[LearnVLLMError]) -> LearnVLLMError:
    if issubclass(cls, ValidationError):
        return cls("block_size=0: too small.", parameter="block_size", value=0)
    return cls("something happened")


@pytest.mark.parametrize("cls", ALL)
def test_errors_survive_pickling_and_the_wire(cls: type[LearnVLLMError]) -> None:
    before = make(cls)
    for after in (pickle.loads(pickle.dumps(before)), from_remote_error(to_remote_error(before))):
        assert type(after) is cls
        assert str(after) == str(before)
        assert vars(after) == vars(before)


def test_values_that_cannot_travel_are_described() -> None:
    error = from_remote_error(to_remote_error(ValidationError("no", parameter="x", value={1: object})))
    assert isinstance(error, ValidationError)
    assert error.value == "{1: <class 'object'>}"


def test_errors_of_other_libraries_arrive_as_server_errors_with_their_name() -> None:
    error = from_remote_error(to_remote_error(ZeroDivisionError("division by zero")))
    assert type(error) is ServerError
    assert str(error) == "ZeroDivisionError: division by zero"


def test_a_kind_that_is_no_error_is_not_looked_up() -> None:
    remote = to_remote_error(ServerError("x"))
    remote.kind = "Any"  # a name that exists in the module
    assert type(from_remote_error(remote)) is ServerError


@pytest.mark.parametrize(
    ("cls", "status"),
    [
        (ValidationError, 400),
        (ConfigError, 400),
        (ModelLoadError, 400),
        (NotFoundError, 404),
        (QueueFullError, 503),
        (EngineDeadError, 500),
    ],
)
def test_every_error_has_its_http_status(cls: type[LearnVLLMError], status: int) -> None:
    assert cls.status_code == status


def test_a_validation_error_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="too small"):
        raise make(ValidationError)
