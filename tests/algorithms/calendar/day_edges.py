"""Prints when each day begins by the clocks of time zones, found by walking through time: another implementation than the one
under test. Arguments: the folder of the package tzdata, the first and the last year, and names of zones.

A line has the zone, year, month, day, weekday (Monday is 1), and the day's first instant in seconds since 1970. It is the first at
which the clock shows that date, or a later one where it skips it."""

import sys
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo, reset_tzpath

STEP = 1800


def shown(instant, zone):
    return datetime.fromtimestamp(instant, zone).date()


def first_instant(day, before, after, zone):
    """Between two instants, of which the second alone shows the day or a later one."""
    while after - before > 1:
        middle = (before + after) // 2
        if shown(middle, zone) < day:
            before = middle
        else:
            after = middle
    return after


def main():
    folder, first, last, *names = sys.argv[1:]
    sys.path.insert(0, folder)
    import tzdata

    print("release", tzdata.IANA_VERSION)
    reset_tzpath([folder + "/tzdata/zoneinfo"])
    start = int(datetime(int(first), 1, 1).timestamp()) - 3 * 86400
    end = date(int(last) + 1, 1, 3)
    for name in names:
        zone = ZoneInfo(name)
        instant = start
        day = shown(instant, zone) + timedelta(days=1)
        while day < end:
            after = instant + STEP
            while day <= shown(after, zone):
                edge = first_instant(day, instant, after, zone)
                print(name, day.year, day.month, day.day, day.isoweekday(), edge)
                day += timedelta(days=1)
            instant = after


main()
