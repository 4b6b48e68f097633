"""The dense recipe on conversations without their photographs."""

from recipes import dense, text


def config():
    text.without_photographs()
    return dense.config()
