"""The type variable of generic functions and classes."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")
