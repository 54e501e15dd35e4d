"""Values as TOML, for files that commands print and take."""

import json


def literal(value: object) -> str:
    """Write a value; keys of tables are quoted, since names of topics hold % and |."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        entries = (f"{literal(key)} = {literal(each)}" for key, each in value.items())
        return "{ " + ", ".join(entries) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, int | float):
        return str(value)
    # A basic string of TOML is a JSON string that has DEL escaped, too.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
