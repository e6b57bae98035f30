"""Where a model that needs more than token ids keeps it: the runner's one extension point.

`RequestState` holds what every request has; a `ModelState` holds what this kind of model adds (M-RoPE
positions, encoder outputs, recurrent state) and shapes the forward's inputs. Upstream namesake:
vllm/v1/worker/gpu/model_states/.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from learnvllm.architecture.step import NewRequestData
from learnvllm.executor_worker.input_batch import InputBatch


@dataclass(frozen=True)
class ModelInputs:
    """What the model's forward takes besides the StepContext."""

    input_ids: Tensor
    """[T] int64."""
    positions: Tensor
    """[T] int64."""


class ModelState(ABC):
    """Model-specific state, row by row, beside `RequestState`."""

    @abstractmethod
    def add_request(self, row: int, request: NewRequestData) -> None:
        """A request got `row`. Everything the row held before is void."""

    @abstractmethod
    def remove_request(self, row: int) -> None:
        """The request in `row` finished or was preempted."""

    @abstractmethod
    def prepare_inputs(self, batch: InputBatch) -> ModelInputs:
        """The forward's inputs for this step."""


class DefaultModelState(ModelState):
    """A decoder-only text model: token ids and positions are all there is."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def add_request(self, row: int, request: NewRequestData) -> None:
        pass

    def remove_request(self, row: int) -> None:
        pass

    def prepare_inputs(self, batch: InputBatch) -> ModelInputs:
        return ModelInputs(
            input_ids=torch.from_numpy(batch.input_ids).to(self.device),
            positions=torch.from_numpy(batch.positions).to(self.device),
        )
