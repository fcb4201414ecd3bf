"""Errors that are reported to the user in one sentence."""


class Failure(Exception):
    """Its text is the error message."""


class Unavailable(Failure):
    """This machine cannot run the task, which is left out and does not count as failed."""
