"""The release, in a module that imports nothing."""

from typing import Final

VERSION: Final = "0.1.0"
