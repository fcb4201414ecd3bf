"""The described experiments: one TOML file each."""

import os

from ..failure import Failure

FOLDER = os.path.dirname(os.path.realpath(__file__))


def names():
    return sorted(name.removesuffix(".toml") for name in os.listdir(FOLDER) if name.endswith(".toml"))


def path_of(name):
    """The path of a described experiment, or `name` itself if it is a file."""
    if os.path.isfile(name):
        return name
    path = os.path.join(FOLDER, name + ".toml")
    if os.path.isfile(path):
        return path
    raise Failure(f"there is no experiment {name!r}; choose " + ", ".join(names()) + ", or give a setting file")
