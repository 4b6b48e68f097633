"""What the operator decides about the service. Values only; who reads them from where is not known here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Limits and names of one running service."""

    public_url: str = "http://127.0.0.1:8321"  #: how callers reach it; the base of every link
    version: str = "0"
    #: A request with two hundred overrides of the longest kind stays below this.
    body_bytes: int = 128 * 1024
    #: GitHub caps a payload at 25 MB; a workflow_run is some tens of kilobytes.
    webhook_body_bytes: int = 1024 * 1024
    #: A person with a dozen open pages and a script that polls stay far below; 0: no limit.
    requests_per_second: float = 50.0  #: of one token, at one process of the service
    request_burst: float = 500.0  #: what a token may make at once
    event_poll_seconds: float = 0.5  #: how often a watched bisection is read again

    def __post_init__(self) -> None:
        if not self.public_url.startswith(("http://", "https://")):
            raise ValueError(f"public_url is {self.public_url!r}; it must start with http:// or https://")

    def url(self, path: str) -> str:
        """The absolute URL of a path of this service."""
        return self.public_url.rstrip("/") + path

    @property
    def is_https(self) -> bool:
        return self.public_url.startswith("https://")
