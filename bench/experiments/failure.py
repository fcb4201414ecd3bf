"""What a user is told in one sentence."""


class Failure(Exception):
    """Its text is the sentence."""


class Unavailable(Failure):
    """This machine cannot do it: nothing failed, and it is left out."""
