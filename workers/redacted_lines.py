"""Which lines of a training log are the machinery's own, and can be shown whatever was trained on.

A list of what may leave, not of what may not: a line of no class below is withheld, since no pattern
can tell a sample's text from other text. A field of a line must be a number to be shown.
"""

from __future__ import annotations

import re
from enum import Enum, auto


class LineClass(Enum):
    """What a line is. All but WITHHELD are shown."""

    MACHINERY = auto()  #: upstream's iteration, memory and time lines, NCCL's, the probe's, the launcher's
    FRAME = auto()  #: a traceback's words, files and code lines
    ERROR = auto()  #: a type and its message, which is judged on its own
    WITHHELD = auto()


_NUMBER = r"[-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?|nan|inf)%?"
#: A field's name has no digit and is short: `lm loss`, `elapsed time per iteration (ms)`.
_FIELD = rf"[A-Za-z][A-Za-z _()/.-]{{0,60}}: *{_NUMBER}(?:/ *{_NUMBER})?"
#: torch's rank prefix, srun's label, a date in brackets.
_PREFIX = re.compile(r"(?:\[(?:default\d+|rank\d+)\]:? ?|\d+: (?=\S)| ?\[[-\d :.,T+Z]{8,40}\] ?)*")
#: A value of upstream's own summary of a configuration.
_SETTING = rf"(?:{_NUMBER}|True|False|None|torch\.\w+|'[a-z0-9_]*')"
_MACHINERY = re.compile(
    rf" *iteration +\d+/ *\d+ \|(?: *{_FIELD} *\|)* *(?:{_FIELD})?[ |]*"
    rf"|\[[Rr]ank \d+\] \(after \d+ iterations\) memory \([A-Za-z]+\)(?: \| {_FIELD})*"
    rf"|Step Time : {_NUMBER}s GPU utilization: {_NUMBER} ?(?:MODEL_TFLOP/s/GPU)?"
    rf"| *> number of parameters on \(tensor, pipeline\) model parallel rank \(\d+, \d+\): \d+"
    rf"|(?:Total number|Number) of parameters[a-z ]{{0,60}}: {_NUMBER}"
    rf"|Theoretical memory footprints: [a-z ]+={_NUMBER} [A-Za-z]+|Starting training loop at iteration \d+"
    rf"|  \w+: {_SETTING}  \(Mcore default: {_SETTING}\)"
    rf"|(?: +[a-z][a-z-]{{2,40}} ?\.*: \({_NUMBER}, {_NUMBER}\))+|time \(ms\)[ :|]*"
    r"|(?:[\w.-]+:\d+:\d+ \[\d+\] )?NCCL (?:INFO|WARN|version) [\w .,:+/()=-]{0,200}"
    r"|firstbad_probe: [^'\"]*|rank \d+ ended with (?:exit code|signal) \w+"
    r"|slurmstepd: error: [\w .:,*()=-]*|srun: error: [\w .:,*()=-]*"
    r"|Killed|Aborted(?: \(core dumped\))?|Segmentation fault(?: \(core dumped\))?"
    r"|Fatal Python error: [\w ]+|terminate called after throwing an instance of '[\w:]+'"
    r"|std::bad_alloc|W?A?R?N?I?N?G?:? ?OMP_NUM_THREADS[^'\"]*"
)
_FRAME = re.compile(
    r" *(?:\| )?(?:Traceback \(most recent call last\):|File \"[^\"]+\", line \d+(?:, in [\w<>.]+)?"
    r"|\[Previous line repeated \d+ more times\]|[\^~]+)"
    r"|During handling of the above exception, another exception occurred:"
    r"|The above exception was the direct cause of the following exception:|"
)
_FILE_FRAME = re.compile(r" *(?:\| )?File \"[^\"]+\", line \d+, in ")
_ERROR = re.compile(
    r"(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Failure|Invalid\w*|NotFound|Refused))"
    r"(?:: ?(?P<message>.*))?"
)


class Line:
    """One line: its prefix, its class, and for an error its two parts."""

    def __init__(self, text: str, after: str) -> None:
        """``after`` is the line before it: a line of code stands below its frame."""
        found = _PREFIX.match(text)
        self.prefix = found[0] if found else ""
        body = text[len(self.prefix) :]
        error = _ERROR.fullmatch(body)
        self.type = error["type"] if error else ""
        self.message = (error["message"] or "") if error else ""
        if _MACHINERY.fullmatch(body):
            self.kind = LineClass.MACHINERY
        elif _FRAME.fullmatch(body) or (body.startswith("    ") and _is_frame(after)):
            self.kind = LineClass.FRAME
        else:
            self.kind = LineClass.ERROR if error else LineClass.WITHHELD


def _is_frame(text: str) -> bool:
    found = _PREFIX.match(text)
    return bool(_FILE_FRAME.match(text[found.end() if found else 0 :]))
