//! `strftime_now`, as far as its result is the same all day.

use std::time::SystemTime;

/// Formats the date of `now` in UTC, where engines' containers run. `None` for a directive that is not supported or reads
/// the time of day: a prompt with it cannot be reproduced, and its engine's cache would miss behind it anyway.
pub(super) fn strftime(format: &str, now: SystemTime) -> Option<String> {
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    let days = i64::try_from(seconds / 86_400).ok()?;
    let (year, month, day) = civil(days);
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            text.push(char);
            continue;
        }
        let directive = chars.next()?;
        text.push_str(&match directive {
            '%' => "%".to_owned(),
            'Y' => year.to_string(),
            'y' => format!("{:02}", year % 100),
            'm' => format!("{month:02}"),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'B' => MONTHS.get(month - 1)?.to_string(),
            'b' | 'h' => MONTHS.get(month - 1)?[..3].to_owned(),
            'A' => weekday(days)?.to_owned(),
            'a' => weekday(days)?[..3].to_owned(),
            'F' => format!("{year}-{month:02}-{day:02}"),
            '-' => match chars.next()? {
                'd' => day.to_string(),
                'm' => month.to_string(),
                _ => return None,
            },
            _ => return None,
        });
    }
    Some(text)
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

fn weekday(days: i64) -> Option<&'static str> {
    // Day 0 was a Thursday.
    const NAMES: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    NAMES.get(usize::try_from(days.rem_euclid(7)).ok()?).copied()
}

/// Year, month (1…12) and day of a day counted from 1970-01-01: Hinnant's `civil_from_days`, whose years begin in March.
fn civil(days: i64) -> (i64, usize, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, usize::try_from(month).unwrap_or(1), day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64, format: &str) -> Option<String> {
        strftime(format, SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let cases = [
            (0, "%d %b %Y", "01 Jan 1970"),
            (951_782_400, "%F %A", "2000-02-29 Tuesday"),
            (951_868_799, "%-d/%-m/%y", "29/2/00"),
            (951_868_800, "%B %d, %Y", "March 01, 2000"),
            (1_795_225_524, "%a %d %h %Y 100%%", "Sat 21 Nov 2026 100%"),
            (4_102_444_799, "%e %b %Y", "31 Dec 2099"),
        ];
        for (seconds, format, text) in cases {
            assert_eq!(at(seconds, format).as_deref(), Some(text), "{format}");
        }
    }

    #[test]
    fn the_time_of_day_is_refused() {
        for format in ["%H:%M", "%Y-%m-%dT%H", "%c", "%-H", "%"] {
            assert_eq!(at(0, format), None, "{format}");
        }
    }
}
