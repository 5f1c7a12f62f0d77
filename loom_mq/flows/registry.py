"""Which flows a worker serves: found in the modules that it is told to load."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from loom_mq.errors import ConfigurationError
from loom_mq.flows.definition import Flow

AnyFlow = Flow[Any, Any]


class Registry:
    """Flows by name and version. Nothing from a queue or a row is looked up elsewhere.

    Args:
        flows: what to serve.

    Raises:
        ConfigurationError: two different flows share name and version.
    """

    def __init__(self, flows: Iterable[AnyFlow] = ()) -> None:
        self._flows: dict[tuple[str, str], AnyFlow] = {}
        for flow in flows:
            self.add(flow)

    def add(self, flow: AnyFlow) -> None:
        """Serve one more flow."""
        known = self._flows.setdefault((flow.name, flow.version), flow)
        if known is not flow:
            raise ConfigurationError(
                f"flow {flow.name!r} version {flow.version!r} is defined twice: in "
                f"{known.function.__module__} and in {flow.function.__module__}; "
                "give one of them another name or version"
            )
        flow.input_codec, flow.result_codec  # noqa: B018  # unusable types show at start, not at 3 a.m.

    def get(self, name: str, version: str) -> AnyFlow | None:
        """The flow to run for an execution recorded under this name and version."""
        return self._flows.get((name, version))

    def __iter__(self) -> Iterator[AnyFlow]:
        return iter(self._flows.values())

    def __len__(self) -> int:
        return len(self._flows)


def load(places: Iterable[str]) -> Registry:
    """Import modules and collect the flows that stand in them.

    Args:
        places: ``package.module``, ``package.module:flow`` or ``path/to/file.py``.

    Raises:
        ConfigurationError: something cannot be imported, or there is no flow there.
    """
    registry = Registry()
    for place in places:
        name, _, attribute = place.partition(":") if not place.endswith(".py") else (place, "", "")
        module = _import(name)
        found = (
            [getattr(module, attribute, None)]
            if attribute
            else [value for value in vars(module).values() if isinstance(value, Flow)]
        )
        flows = [value for value in found if isinstance(value, Flow)]
        if not flows:
            raise ConfigurationError(f"there is no @flow in {place!r}")
        for flow in flows:
            registry.add(flow)
    return registry


def _import(name: str) -> ModuleType:
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        return _import_file(Path(name).resolve())
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _import_file(path: Path) -> ModuleType:
    """Import a file by its path; it may import its neighbours.

    It gets its stem as its name unless that is taken (a `queue.py` is not the standard
    library's `queue`), and its folder comes last on the path, where it hides nothing.
    """
    spec = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
    taken = path.stem in sys.modules or spec is not None
    name = f"loom_app_{path.stem}" if taken else path.stem
    made = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or made is None or made.loader is None:
        raise ConfigurationError(f"there is no file {str(path)!r} that Python could run")
    sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(made)
    sys.modules[name] = module
    made.loader.exec_module(module)
    return module
