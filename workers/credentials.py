"""Takes credentials out of texts: by their own shape, and by the name that they stand behind.

Applied to everything that leaves a worker, whatever the profile allows. A credential without a
known shape and without a telling name is not found: a job's environment holds none of the worker's.
"""

from __future__ import annotations

import re

SECRET = "<secret>"

#: As their issuers make them: Hugging Face, GitHub, GitLab, OpenAI's kind, NVIDIA, Slack, AWS, Google, JWT.
_SHAPES = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"
    r"|\bsk-[A-Za-z0-9_-]{16,}|\bnvapi-[\w-]{16,}|\bxox[abeoprs]-[\w-]{10,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bAIza[\w-]{30,}|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_IN_URL = re.compile(r"(?<=://)[^/\s@:'\"]{0,100}:[^/\s@'\"]{1,200}(?=@)|(?<=://)[^/\s@:'\"]{16,200}(?=@)")
_BEARER = re.compile(r"\b(bearer|basic)(\s+)[\w.~+/=-]{12,}", re.IGNORECASE)
#: `pad_token` and its like are words of a tokenizer, not credentials.
_NAME = (
    r"[\w.-]{0,60}(?:secret|passw(?:or)?d|api_?key|access_?key|private_?key|credential|x-amz-signature)\w{0,30}"
    r"|(?:[\w.-]{0,60}_)?(?:hf|hub|face|wandb|github|gh|gitlab|ngc|nvcr|access|auth|api|bearer|refresh|session"
    r"|security|bot|slack)_?token|token"
)
_NAMED = re.compile(
    rf"(?<![\w.-])({_NAME})([\"']?\s*(?:=>|=|:)\s*[\"']?)([^\s\"',;&}}\\]{{6,}})", re.IGNORECASE
)
_OPTION = re.compile(
    r"(--[\w-]{0,40}(?:token|secret|password|api-key|access-key)[= ]+)(?!<)[^\s\"']{6,}", re.IGNORECASE
)
_HARMLESS = re.compile(r"[-+\d.]+|none|null|true|false|<.*|\$\{.*|/.*", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """The text with every credential that can be told replaced by ``<secret>``; JSON stays JSON."""
    text = _SHAPES.sub(SECRET, text)
    text = _IN_URL.sub(SECRET, text)
    text = _BEARER.sub(rf"\1\2{SECRET}", text)
    text = _OPTION.sub(rf"\1{SECRET}", text)
    return _NAMED.sub(_hide, text)


def _hide(match: re.Match[str]) -> str:
    return match[0] if _HARMLESS.fullmatch(match[3]) else f"{match[1]}{match[2]}{SECRET}"
