"""Points in time as text, without a clock."""

from __future__ import annotations

import calendar
import re

SECONDS_PER_DAY = 86_400
_UTC = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)Z", re.ASCII)


def utc_seconds(text: str) -> int | None:
    """Seconds since 1970 of `YYYY-MM-DDTHH:MM:SSZ`, None where the text is no such time."""
    match = _UTC.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups())
    if year < 1 or not 1 <= month <= 12 or not 1 <= day <= calendar.monthrange(year, month)[1]:
        return None
    if hour > 23 or minute > 59 or second > 59:
        return None
    return calendar.timegm((year, month, day, hour, minute, second))
