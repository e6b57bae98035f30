"""Do something to a module right after it was executed, before anyone imports from it.

That, and finding `learnvllm_exercises.<day>.<name>`, the learner's files under the same names in every
process, is all the import system has to do for the overlay; no module of the engine knows of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from learnvllm.architecture.errors import ConfigError
from learnvllm.study.exercise import EXERCISES_PACKAGE
from learnvllm.study.subject import describe

Callback = Callable[[ModuleType], None]


class OverlayFinder(MetaPathFinder):
    """First on sys.meta_path while an overlay is active."""

    def __init__(self) -> None:
        self.exercises: dict[str, tuple[Path, str]] = {}
        """Module name of an exercise -> its file, and the module of its targets."""
        self.callbacks: dict[str, list[Callback]] = {}
        """Module name -> what to do once it has been executed, in order."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] == EXERCISES_PACKAGE:
            return self._exercise_spec(name)
        if name not in self.callbacks:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _run_after(spec.loader, self.callbacks[name])
                return spec
        return None

    def _exercise_spec(self, name: str) -> ModuleSpec | None:
        if name in self.exercises:
            path, reference = self.exercises[name]
            return spec_from_file_location(name, path, loader=_ExerciseLoader(path, reference))
        if any(known.startswith(f"{name}.") for known in self.exercises):
            spec = ModuleSpec(name, None, is_package=True)  # a namespace: no file of its own
            spec.submodule_search_locations = []
            return spec
        return None


def _run_after(loader: Loader, callbacks: list[Callback]) -> None:
    """On this loader only, which is one module's: whoever asks it for source or path notices nothing."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        for callback in list(callbacks):
            callback(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]


class ExerciseError(ConfigError):
    """An exercise cannot be imported. A ConfigError, so that an engine process reports it as it is."""


class _ExerciseLoader(Loader):
    """Runs a learner's file. Its target module goes first: whose execution may already have brought it in."""

    def __init__(self, path: Path, reference: str) -> None:
        self.path, self.reference = path, reference
        self._started = False

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        import_module(self.reference)
        self.run(module)

    def run(self, module: ModuleType) -> None:
        """Execute the file, once."""
        if self._started:
            return
        self._started = True
        try:
            code = compile(self.path.read_bytes(), str(self.path), "exec", dont_inherit=True)
            exec(code, module.__dict__)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit in it would end the engine without a word
            raise ExerciseError(f"{self.path} cannot be used: {describe(error, self.path)}") from None

    def get_source(self, fullname: str) -> str:
        return self.path.read_text("utf-8")


def import_exercise(name: str) -> ModuleType:
    """The learner's module, executed; also while its target module is just being imported on its behalf."""
    module = import_module(name)
    loader: Any = module.__spec__.loader if module.__spec__ else None
    if isinstance(loader, _ExerciseLoader):
        loader.run(module)
    return module
