"""Numbers as people and libraries print them, read to their ends.

-0.31  6.4e-11  1,234.50  1.234,50  1'234  97.5%  nan  -inf  tensor(0.31)  np.float64(0.3)  1.2k
"""

import re
from typing import Final

# Escape sequences of terminals: colours and moves, titles, and single ones.
_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]"
)
# Other characters that nobody sees: controls but the tab, marks of direction, joiners.
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
)

_SIGN: Final = r"[-+\u2212]"
# What libraries print around a number: tensor(0.31), np.float64(0.3), <tf.Tensor: … numpy=0.31>.
_WRAPPER: Final = (
    r"(?:(?:\w+\.)*(?:[tT]ensor|[aA]rray|DeviceArray|Decimal|Variable|Parameter|b?float\d*_?"
    r"|u?int\d*_?|half|double|longdouble)\(\s*\[*\s*'?"
    r"|<tf\.(?:Tensor|Variable)[^<>]*?numpy=)"
)
_EXPONENT: Final = r"(?:[eE][-+\u2212]?\d+)?"
_GROUPED: Final = r"\d{1,3}(?:(?P<%s>[%s])\d{3})(?:(?P=%s)\d{3})*"
# A point marks decimals, and commas (or others) thousands.
_WITH_POINT: Final = (
    _GROUPED % ("thousands", ",_'\u2019\u00a0\u202f\u2009", "thousands")
    + r"(?:\.\d+)?(?![.,]?\d)|(?:\d+\.?\d*|\.\d+)(?!\.?\d)"
)
# A comma marks decimals, and points (or others) thousands.
_WITH_COMMA: Final = (
    _GROUPED % ("thousands", "._'\u2019\u00a0\u202f\u2009", "thousands")
    + r"(?:,\d+)?(?![.,]?\d)|(?:\d+,\d+|\d+(?:\.\d+)?)(?![.,]\d|\d)"
)
_WORDS: Final = r"(?:nan|inf(?:inity)?)(?![a-z])"
# How many of the unit a letter after the number stands for.
_SCALES: Final = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_AFTER: Final = r"(?:(?P<scale>[kKMGT])(?!\w))?"

# A number by itself, with nothing that may be a part of it on either side.
_PLAIN: Final = re.compile(
    r"(?<=[ :=])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?=[ |)%]|$)", re.ASCII
)
# What an expression for a number is made of, in part: it leaves out signs, nan, exponents or more.
_DIGITS_ONLY: Final = re.compile(
    r"(?:\\d|\\.|0-9|\[[-+\\d.,eE0-9]*\]|\(\?:|[-+.eE?*|)]|\{\d*,?\d*\})+", re.ASCII
)
_DIGIT: Final = re.compile(r"\\d|0-9")
# What a number may look like to an expression that finds its place.
_ANY_NUMBER: Final = (
    rf"{_SIGN}?{_WRAPPER}?{_SIGN}?"
    rf"(?:(?i:{_WORDS})|[\d.][\d.,_'\u2019\u00a0\u202f\u2009]*{_EXPONENT})"
)


def widen(expression: str) -> str:
    r"""Return an expression for numbers such as `[\d.]+`, so that it finds all; others as is."""
    if not _DIGITS_ONLY.fullmatch(expression) or not _DIGIT.search(expression):
        return expression
    return f"(?:{_ANY_NUMBER}|{expression})"


def _number(digits: str, before: str) -> re.Pattern[str]:
    sign = rf"(?<![\w)\]]){_SIGN}"
    value = rf"(?P<sign>{sign})?(?P<value>(?i:{_WORDS})|(?:{digits}){_EXPONENT}){_AFTER}"
    return re.compile(rf"{before}(?:{_WRAPPER})?{value}", re.ASCII)


# A number begins where no word or other number goes on.
_BY_POINT: Final = _number(_WITH_POINT, r"(?<![\w.])")
_BY_COMMA: Final = _number(_WITH_COMMA, r"(?<![\w.,])")
# It may also follow a word without a space, where a pattern says so: epoch12.
_IN_WORD: Final = _number(_WITH_POINT, r"(?<![\d.])")

# Numbers that can only have been written with a decimal point, or with a decimal comma: three
# digits after it could be thousands.
_SHOWS_POINT: Final = re.compile(
    r"(?<![\w.,])(?:0\.\d+|\d{4,}\.\d+|\d+\.(?:\d{1,2}|\d{4,})|[\d,]*,\d{3}\.\d+)(?:[eE][-+]?\d+)?"
    r"(?![.,]?\d)"
)
_SHOWS_COMMA: Final = re.compile(
    r"(?<![\w.,])(?:0,\d+|\d{4,},\d+|\d+,(?:\d{1,2}|\d{4,})|[\d.]*\.\d{3},\d+)(?:[eE][-+]?\d+)?"
    r"(?![.,]?\d)"
)


def clean(text: str) -> str:
    """Return a line without colours and other characters that nobody sees."""
    if text.isprintable():
        return text
    return _UNSEEN.sub("", _ESCAPES.sub("", text))


def read_value(
    line: str, start: int, end: int, low: int = 0, high: int | None = None
) -> float | str:
    """Return the number of a (clean) line of which `line[start:end]` is a part, or else that text.

    The number may begin before the part and end after it, within `line[low:high]`. Where the part
    begins with a word, it is a text. Whether a comma marks decimals is as the line shows.
    """
    plain = _PLAIN.match(line, start)
    if plain is not None and "," not in line and plain.end() >= end and high is None:
        return float(plain[0])  # as most are
    pattern = _BY_COMMA if _has_decimal_commas(line) else _BY_POINT
    line = line[:high]
    for number in pattern.finditer(line, low):
        if number.end() > start:
            if number.start() < end and not _has_word(line[start : number.start()]):
                return _value(number, by_comma=pattern is _BY_COMMA)
            break
    for number in _IN_WORD.finditer(line, low):
        if number.start() <= start < number.end():
            return _value(number, by_comma=False)
    return line[start:end].strip()


def parse_number(text: str) -> float | str:
    """Return the number that a text is; the text if it is anything else."""
    value = read_value(text, 0, len(text))
    number = (_BY_COMMA if _has_decimal_commas(text) else _BY_POINT).fullmatch(text.strip(" %"))
    return value if number is not None else text


def _has_decimal_commas(line: str) -> bool:
    """Return whether the numbers of a line show that a comma marks decimals."""
    if "," not in line:
        return False
    return _SHOWS_POINT.search(line) is None and _SHOWS_COMMA.search(line) is not None


def _has_word(text: str) -> bool:
    return any(letter.isalnum() for letter in text)


def _value(number: re.Match[str], *, by_comma: bool) -> float:
    text = number["value"]
    if number["thousands"]:
        text = text.replace(number["thousands"], "")
    if by_comma:
        text = text.replace(",", ".")
    value = float(text.replace("\u2212", "-")) * _SCALES.get(number["scale"] or "", 1.0)
    return -value if number["sign"] in {"-", "\u2212"} else value
