"""Which words of an error's message are code's own, and can be shown whatever was trained on.

Two lists of what may leave: the messages of Python, torch and the driver that hold names, sizes and
types alone, and the texts that the failing code itself spells out in its `raise` and `assert`
statements, read from the state's files, of which only the filled-in numbers are shown. Anything else
is told by a pseudonym, equal for equal messages, so that signatures still keep failures apart.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain

from workers.redacted_paths import RedactedPaths, pseudonym
from workers.signatures import normalise

WITHHELD = "<withheld>"
#: How training scripts, Hydra and argparse say that a key is not theirs.
NO_SUCH_KEY = re.compile(
    r"has no key|not in struct|unknown (?:configuration )?key|unrecognized arguments|no such option",
    re.IGNORECASE,
)
_LONGEST = 1000
#: How often a message may have been raised on with more words around it.
_RAISED_ON = 3
#: A list of literals needs so many words to be known again.
_FEWEST_WORDS = 2

_N = r"-?\d[\d.,]*"
_Q = r"['\"]?[A-Za-z_][\w.<>]*['\"]?"  # a name of code, quoted or not
_S = r"[\[(<](?:[\w., *x=\[\]-]*)[\])>]"  # a shape
_DTYPE = r"(?:torch\.)?[a-zA-Z]+\d*(?:\.[a-zA-Z]+)?"
_KNOWN = re.compile(
    # Python: names of code.
    rf"No module named {_Q}(?:; {_Q} is not a package)?"
    rf"|cannot import name {_Q} from (?:partially initialized module )?{_Q} \([^()]*\)"
    rf"|(?:partially initialized )?module {_Q} has no attribute {_Q}(?: \([^()]*\))?"
    rf"|(?:type object )?{_Q}(?: object)? has no attribute {_Q}(?:\. Did you mean: {_Q}\?)?"
    rf"|{_Q}\(\) got (?:an unexpected keyword|multiple values for (?:keyword )?) ?argument {_Q}"
    rf"|{_Q}\(\) missing \d+ required (?:positional|keyword-only) arguments?: {_Q}(?:(?:, and|,| and) {_Q})*"
    rf"|{_Q}\(\) takes (?:from \d+ to )?\d+ positional arguments? but \d+ (?:was|were) given"
    rf"|name {_Q} is not defined|(?:cannot access )?local variable {_Q} [a-z ]+"
    rf"|unsupported operand type\(s\) for \S+: {_Q} and {_Q}|{_Q} object is not [a-z]+"
    rf"|{_Q} not supported between instances of {_Q} and {_Q}|argument of type {_Q} is not iterable"
    r"|(?:list|tuple|string|range object|deque) (?:assignment )?index out of range"
    r"|(?:float )?division by zero|-?\d{1,9}"
    r"|pop from an? empty [a-z]+|maximum recursion depth exceeded[\w ]*"
    r"|(?:not enough|too many) values to unpack \(expected (?:at least )?\d+(?:, got \d+)?\)"
    rf"|expected str, bytes or os\.PathLike object, not {_Q}"
    # torch and the driver: sizes, types and devices.
    r"|(?:CUDA|HIP|MPS|XPU) out of memory\. Tried to allocate [\d.]+ [KMGT]i?B[\w .,:()<>/=%#-]*"
    r"|CUDA error: [a-z ,-]+|CUDA driver error: [a-z ,-]+|cuBLAS error[\w :.-]*|CUBLAS_STATUS_\w+"
    r"|CUDA error: CUBLAS_STATUS_\w+ when calling `\w+[\w( ),.&*>-]*`"
    r"|\[?enforce fail at [\w.]+:\d+\]? ?[\w :.,'!=()-]*(?:DefaultCPUAllocator: [\w ':.,()-]*)?"
    r"|NCCL error[\w :./,()=-]*|NCCL (?:operation|communicator)[\w :./,()=-]*"
    rf"|The size of tensor [ab] \({_N}\) must match the size of tensor [ab] \({_N}\) at non-singleton"
    rf" dimension {_N}|mat1 and mat2 (?:shapes cannot be multiplied \(\d+x\d+ and \d+x\d+\)|must have the"
    rf" same dtype, but got {_DTYPE} and {_DTYPE})|shape '{_S}' is invalid for input of size {_N}"
    rf"|expected (?:m1 and m2|scalar type|mat1 and mat2)[\w ,:.!=]*but (?:got|found):? {_DTYPE}[\w !=.]*"
    r"|Expected all tensors to be on the same device, but found at least two devices, [\w:]+ and [\w:]+!"
    r"[\w ()]*"
    rf"|(?:index|Dimension|dimension) {_N} (?:is )?out of (?:bounds|range)[\w ,.\[\]()-]*"
    rf"|Sizes of tensors must match except in dimension {_N}\. Expected (?:size )?{_N} but got (?:size )?{_N}"
    r"[\w .]*|Input type \([\w.]+\) and (?:weight|bias) type \([\w.]+\) should be the same"
    rf"|Given groups=\d+, weight of size {_S}, expected input{_S} to have \d+ channels, but got \d+ channels"
    r" instead|Given normalized_shape=[\[\]\d, ]+, expected input with shape [\[\]\d, *]+, but got input of"
    r" size ?[\[\]\d, ]+|view size is not compatible with input tensor's size and stride[\w .(),-]*"
    r"|Trying to backward through the graph a second time[\w .,()'-]*"
    r"|one of the variables needed for gradient computation has been modified by an inplace operation[^'\"]*"
    r"|element \d+ of tensors does not require grad and does not have a grad_fn"
    rf"|Error\(s\) in loading state_dict for {_Q}:?"
    r"|The (?:server socket has failed to listen|client socket has)[\w .:,\[\]-]*"
)
#: The system's own words, and which file it was about, quoted or to the end.
_ERRNO = re.compile(
    rf"(?P<words>(?:\[Errno \d+\] )?(?:{'|'.join({re.escape(os.strerror(n)) for n in range(1, 134)})}))"
    r"(?:: (?P<files>.*))?"
)
_PLAIN = re.compile(rf"(?:{_N}|True|False|None|torch\.\w+|torch\.Size\([\[\]\d, ]*\)|[\[(][\d, -]+[\])])")
#: A class of code's, as it calls itself: an inner capital is no word of prose.
_CLASS = re.compile(r"[A-Z]\w*[a-z]\w*[A-Z]\w*")
_IDENTIFIER = re.compile(r"['\"]([A-Za-z_]\w*)['\"]")
_PERCENT = re.compile(r"%(?:\(\w+\))?[-+ #0]*\d*(?:\.\d+)?[sdrfgexX]")
_BRACES = re.compile(r"\{[^{}]*\}")

#: The literals of a text in their order; what is filled in stands between them.
Template = tuple[str, ...]


def told_message(
    message: str, sources: Sequence[str], paths: RedactedPaths, asked: frozenset[str] = frozenset()
) -> str:
    """What may be shown of a message.

    ``sources`` are the failing files of the state, ``asked`` the configuration keys that the request named.
    """
    first = message.strip().split("\n", 1)[0]
    if not first:
        return ""
    if len(first) <= _LONGEST:
        errno = _ERRNO.fullmatch(first)
        if errno:
            return errno["words"] + (f": {_told_files(errno['files'], paths)}" if errno["files"] else "")
        key = _IDENTIFIER.fullmatch(first)
        if _KNOWN.fullmatch(first) or (key and any(_stands_in(key[1], text) for text in sources)):
            return paths.in_text(first)
        filled = _filled(
            first,
            sources,
            lambda value: value if value.strip("'\"") in asked else _inner(value, sources),
        )
        if filled is not None:
            return filled
    return f"<{pseudonym(paths.key, 'message', normalise(message))} {WITHHELD[1:-1]}>"


def _filled(message: str, sources: Sequence[str], told: Callable[[str], str]) -> str | None:
    """The message by the first template that it fits; ``told`` gives what may be shown of what fills it."""
    for template in chain.from_iterable(map(_templates, sources)):
        filled = _fill(template, message, told)
        if filled is not None:
            return filled
    return None


def _inner(value: str, sources: Sequence[str], depth: int = _RAISED_ON) -> str:
    """What fills a template: a number, a name of the code, or another of its messages that was raised on."""
    if _PLAIN.fullmatch(value) or not value:
        return value
    if _CLASS.fullmatch(value) and any(_stands_in(value, text) for text in sources):
        return value
    if not depth:
        return WITHHELD
    return _filled(value, sources, lambda part: _inner(part, sources, depth - 1)) or WITHHELD


def _told_files(files: str, paths: RedactedPaths) -> str:
    """One file or two with an arrow between, as OSError shows them."""
    return " -> ".join(paths.told(file.strip("'\"")) for file in files.split(" -> "))


def _stands_in(word: str, source: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", source) is not None


@lru_cache(maxsize=64)
def _templates(source: str) -> tuple[Template, ...]:
    """The texts of a file's `raise` and `assert` statements; a log may hold one error a thousand times."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found: list[Template] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            texts = _raised(node.exc).args
        elif isinstance(node, ast.Assert) and node.msg is not None:
            texts = [node.msg]
        else:
            continue
        for literals in map(_literals, texts):
            if sum(len(re.findall("[A-Za-z]{2,}", part)) for part in literals) >= _FEWEST_WORDS:
                found.append(literals)
    return tuple(found)


def _raised(call: ast.Call) -> ast.Call:
    """The exception that is made, where its traceback is only added: E("text").with_traceback(t)."""
    made = call.func.value if isinstance(call.func, ast.Attribute) else None
    return made if isinstance(made, ast.Call) and ast.unparse(call.func).endswith(".with_traceback") else call


def _literals(node: ast.expr) -> Template:
    """The literals of an expression that makes a text; ("", "") for one that has none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return (node.value,)
    if isinstance(node, ast.JoinedStr):
        parts: Template = ("",)
        for value in node.values:
            parts = _joined(parts, _literals(value))
        return parts
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined(_literals(node.left), _literals(node.right))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _split(_PERCENT, node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _split(_BRACES, node.func.value)
    return ("", "")


def _joined(left: Template, right: Template) -> Template:
    return (*left[:-1], left[-1] + right[0], *right[1:])


def _split(pattern: re.Pattern[str], node: ast.expr) -> Template:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return tuple(pattern.split(node.value))
    return ("", "")


def _fill(template: Template, message: str, shown: Callable[[str], str]) -> str | None:
    """The message with what was filled in as ``shown`` tells it; None where it is another text.

    Literals are looked for from left to right, each where it first stands: linear, whatever a commit wrote.
    """
    first = "\0".join(template).split("\n", 1)[0].strip().split("\0")
    head, *rest = first
    if not message.startswith(head):
        return None
    told, at = head, len(head)
    for number, literal in enumerate(rest):
        last = number == len(rest) - 1
        found = len(message) - len(literal) if last else message.find(literal, at)
        if found < at or not message.endswith(literal if last else ""):
            return None
        told += shown(message[at:found]) + literal
        at = found + len(literal)
    return told if at == len(message) else None
