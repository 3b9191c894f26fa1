"""Prints when each day begins by the clocks of time zones, found by walking through time: another implementation than the one
under test. Arguments: the folder of the package tzdata, the first and the last year, and names of zones.

A line has the zone, year, month, day, weekday (Monday is 1), and the day's first instant in seconds since 1970. It is the first at
which the clock shows that date, or a later one where it skips it."""

import sys
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo, reset_tzpath

STEP = 1800
DAY = 86400
QUARTER = DAY // 4


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


def is_usual(instant, zone):
    """Whether a day begins here at midnight, and the clock is at one distance from UTC until after its end: it has 24 hours."""
    clocks = [datetime.fromtimestamp(instant + hours, zone) for hours in range(0, DAY + 2 * QUARTER, QUARTER)]
    return clocks[0].time() == time() and len({clock.utcoffset() for clock in clocks}) == 1


def main():
    folder, first, last, *names = sys.argv[1:]
    sys.path.insert(0, folder)
    import tzdata

    print("release", tzdata.IANA_VERSION)
    reset_tzpath([folder + "/tzdata/zoneinfo"])
    start = int(datetime(int(first), 1, 1).timestamp()) - 3 * DAY
    end = date(int(last) + 1, 1, 3)
    for name in names:
        zone = ZoneInfo(name)
        # Each day is later than what is shown at this instant.
        instant = start
        day = shown(instant, zone) + timedelta(days=1)
        while day < end:
            if is_usual(instant, zone):
                edge = instant + DAY
            else:
                while shown(instant + STEP, zone) < day:
                    instant += STEP
                edge = first_instant(day, instant, instant + STEP, zone)
            print(name, day.year, day.month, day.day, day.isoweekday(), edge)
            # Where the clock skips the next date, that begins here, too.
            skips = shown(edge, zone) > day
            day += timedelta(days=1)
            if not skips:
                instant = edge


main()
