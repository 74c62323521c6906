"""What the library says when it refuses, as exceptions."""


class Error(Exception):
    """The library's one line: it names file, tensor, expected and found.

    `code` is one of usage, not_found, io, format, shape, unsupported, no_memory, communication, internal.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code

    def __reduce__(self):
        return type(self), (self.code, str(self))


class ArgumentError(Error, ValueError):
    """An argument that does not fit, or shapes that contradict each other: codes usage and shape."""


class OutOfMemory(Error, MemoryError):
    """Code no_memory."""


def error_of(code: str, text: str) -> Error:
    kinds = {"usage": ArgumentError, "shape": ArgumentError, "no_memory": OutOfMemory}
    return kinds.get(code, Error)(code, text)
