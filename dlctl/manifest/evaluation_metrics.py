"""The manifest's `evaluation_metrics`: how a program's output becomes metrics, as FfDL has it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from dlctl.contract.measured.parsers import (
    MOST_LOOKAHEAD,
    SPELLINGS,
    VALUE_TYPES,
    ParserType,
    compile_regex,
)
from dlctl.manifest.parts import Count, Free, InsidePath, Line, Section, Text
from dlctl.yaml_source import plain

_WORDS = sorted(word for word in SPELLINGS if word)


def _type(value: Any) -> Any:
    word = "" if value is None else value
    if not isinstance(word, str) or word.lower() not in SPELLINGS:
        raise ValueError(f"{value!r} is no parser; {', '.join(_WORDS)} are allowed")
    return word


def _value_type(value: Any) -> Any:
    word = str(value).upper()
    if isinstance(value, bool) or word not in (*VALUE_TYPES, "0", "1", "2", "3"):
        raise ValueError(f"{value!r} is no type; {', '.join(VALUE_TYPES)} are allowed")
    return VALUE_TYPES[int(word)] if word.isdigit() else word


def _regex(text: str) -> str:
    try:
        compile_regex(text)
    except ValueError as error:
        raise ValueError(f"is no regular expression of Python's: {error}") from None
    return text


def _nothing_is_empty(value: Any) -> Any:
    return {} if value is None else value


ParserWord = Annotated[
    str,
    BeforeValidator(_type),
    WithJsonSchema({"type": ["string", "null"], "enum": [*_WORDS, None]}),
]


class ValueSection(Section, title="ExtractedValue"):
    """One value of a record."""

    type: Annotated[
        str, BeforeValidator(_value_type), WithJsonSchema({"enum": [*VALUE_TYPES, 0, 1, 2, 3]})
    ] = Field("STRING", description="STRING, JSONSTRING, INT or FLOAT.")
    value: Text = Field(description="`$name` for a named group of the regex, or the value itself.")


Values = Annotated[dict[Line, ValueSection], BeforeValidator(_nothing_is_empty)]


class GroupSection(Section, title="ExtractedGroup"):
    """One kind of record, and the regular expression that finds it."""

    regex: Annotated[Text, AfterValidator(_regex)] = Field(
        min_length=1, description="Matched at the start of the window; may use `%{INT:name}`."
    )
    meta: Annotated[Free, BeforeValidator(_nothing_is_empty)] = Field(
        default_factory=dict, description="`time` and `subid`, like a value."
    )
    scalars: Values = Field(default_factory=dict, description="The values, by name.")
    values: Values = Field(default_factory=dict, description="Another word for `scalars`.")
    etimes: Values = Field(
        default_factory=dict, description="`iteration`, `epoch`, `timestamp`, `wall_time`."
    )

    @field_validator("meta")
    @classmethod
    def _known_meta(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key, item in value.items():
            if key not in ("time", "subid"):
                raise ValueError(f"{key!r} is unknown; time and subid are allowed")
            if item is not None and not isinstance(item, (str, int, float)):
                raise ValueError(f"{key} is not a text; `$name` is allowed")
        return value

    @model_validator(mode="after")
    def _one_word_for_values(self) -> GroupSection:
        if self.scalars and self.values:
            raise ValueError("scalars and values mean the same; only one of them is allowed")
        known = compile_regex(self.regex).groupindex
        texts = [item.value for part in (self.scalars, self.values, self.etimes)
                 for item in part.values()]  # fmt: skip
        texts += [str(item) for item in self.meta.values() if item is not None]
        for text in texts:
            if text.startswith("$") and text[1:] not in known:
                raise ValueError(f"{text} names no group of the regex; {_named(known)}")
        return self


def _named(known: Any) -> str:
    return f"it has {', '.join(known)}" if known else "it has none"


class EvaluationMetricsSection(Section, title="EvaluationMetrics"):
    """Rules that turn a program's output into metrics."""

    type: ParserWord = Field("logger", description="The parser.")
    in_: Line | None = Field(None, alias="in", description="A file or folder that is read, too.")
    line_lookahead: Count | None = Field(
        None, ge=1, le=MOST_LOOKAHEAD, description="How many lines a regex may span."
    )
    linelookahead: Count | None = Field(
        None, ge=1, le=MOST_LOOKAHEAD, description="Another word for `line_lookahead`."
    )
    eventTypes: Annotated[Any, BeforeValidator(plain)] = Field(
        None, description="FfDL's; not used."
    )
    image_tag: Line | None = Field(None, description="FfDL's; not used.")
    groups: dict[Line, GroupSection] | None = Field(
        None, description="regex_extractor: kinds of records by name; the first that fits counts."
    )
    parser: InsidePath | None = Field(
        None, description="python: a file in the folder that defines parse(lines)."
    )

    @model_validator(mode="after")
    def _what_the_type_needs(self) -> EvaluationMetricsSection:
        if self.kind is ParserType.REGEX and not self.groups:
            raise ValueError("regex_extractor needs groups, each with a regex")
        if self.kind is ParserType.PYTHON and self.parser is None:
            raise ValueError("python needs parser, a .py file in the folder with parse(lines)")
        if self.parser is not None and self.kind is not ParserType.PYTHON:
            raise ValueError("parser is set, but type is not python")
        if self.line_lookahead is not None and self.linelookahead is not None:
            raise ValueError("line_lookahead and linelookahead mean the same; one is allowed")
        return self

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the section with the key `in`, which can't be a name in Python."""
        return {"in" if key == "in_" else key: item for key, item in handler(self).items()}

    @property
    def kind(self) -> ParserType:
        """The parser, whatever word the manifest has for it."""
        return SPELLINGS[self.type.lower()]
