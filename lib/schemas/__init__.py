"""The tables that notebooks hand over: each column's type, meaning and unit, declared once for writers and readers."""

from lib.schemas import acceptance, advice, attention, drafters, rules, speed
from lib.schemas.schema import FINGERPRINT, Column, Schema, flag, integer, real, text

_SUBJECTS = (acceptance, advice, attention, drafters, rules, speed)
SCHEMAS: dict[str, Schema] = {table.name: table for subject in _SUBJECTS for table in subject.TABLES}

__all__ = ["FINGERPRINT", "SCHEMAS", "Column", "Schema", "flag", "integer", "real", "text"]
