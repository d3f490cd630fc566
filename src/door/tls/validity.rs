//! When a certificate is valid: the one field of X.509 that is read here. Everything else that is believed of a
//! certificate is checked elsewhere.

use std::fmt;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

const SECONDS_A_DAY: i64 = 86_400;

/// From when to when a certificate is valid, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) not_before: Moment,
    pub(super) not_after: Moment,
}

/// A point in time as a certificate says it. It shows as its date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    year: i64,
    month: i64,
    day: i64,
    /// Since 1970.
    pub(super) seconds: i64,
}

impl Validity {
    /// That of `certificate`, in DER; none where this is not what RFC 5280 describes.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let (certificate, _) = expect(certificate, SEQUENCE)?;
        let (body, _) = expect(certificate, SEQUENCE)?;
        let rest = expect(body, VERSION).map_or(body, |(_, rest)| rest);
        let (_, rest) = expect(rest, INTEGER)?;
        let (_, rest) = expect(rest, SEQUENCE)?;
        let (_, rest) = expect(rest, SEQUENCE)?;
        let (validity, _) = expect(rest, SEQUENCE)?;
        let (not_before, rest) = moment(validity)?;
        let (not_after, _) = moment(rest)?;
        Some(Self { not_before, not_after })
    }

    /// Why no client takes the certificate at `now`, in seconds since 1970; none within its time.
    pub(super) fn fault(&self, now: i64) -> Option<String> {
        if now > self.not_after.seconds {
            return Some(format!("it expired on {}", self.not_after));
        }
        (now < self.not_before.seconds).then(|| format!("it is not valid before {}", self.not_before))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

/// The time that comes first, and what follows it.
fn moment(der: &[u8]) -> Option<(Moment, &[u8])> {
    let (tag, time, rest) = element(der)?;
    let moment = match tag {
        UTC_TIME => parse(time, 2),
        GENERALIZED_TIME => parse(time, 4),
        _ => None,
    };
    Some((moment?, rest))
}

/// The content of the first element, if it has this tag, and what follows it.
fn expect(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = element(der)?;
    (found == tag).then_some((content, rest))
}

/// The first element: its tag, its content, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (len, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            (len.iter().try_fold(0_usize, |sum, byte| sum.checked_mul(256)?.checked_add(usize::from(*byte)))?, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`: the only forms that RFC 5280 allows.
fn parse(time: &[u8], year_digits: usize) -> Option<Moment> {
    let (digits, end) = time.split_at_checked(year_digits + 10)?;
    if end != b"Z" || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |from: usize, len: usize| digits[from..from + len].iter().fold(0, |n, d| n * 10 + i64::from(d - b'0'));
    let year = match number(0, year_digits) {
        short @ 0..50 if year_digits == 2 => short + 2000,
        short if year_digits == 2 => short + 1900,
        year => year,
    };
    let part = |place: usize| number(year_digits + 2 * place, 2);
    let (month, day) = (part(0), part(1));
    if !(1..=12).contains(&month) {
        return None;
    }
    let seconds = days_since_1970(year, month, day) * SECONDS_A_DAY + part(2) * 3600 + part(3) * 60 + part(4);
    Some(Moment { year, month, day, seconds })
}

/// Years begin in March here, so that a leap day is a year's last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days_before_month = (153 * month + 2) / 5;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + days_before_month + day
        - 1
        - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_both_forms() {
        for (time, digits, expected) in [
            ("700101000000Z", 2, Some(0)),
            ("19700101000000Z", 4, Some(0)),
            ("000229235959Z", 2, Some(951_868_799)),
            ("20380119031407Z", 4, Some(2_147_483_647)),
            ("491231235959Z", 2, Some(2_524_607_999)),
            ("500101000000Z", 2, Some(-631_152_000)),
            ("20501301000000Z", 4, None),
            ("2050010100000Z", 4, None),
            ("20500101000000+0100", 4, None),
            ("2050010100000xZ", 4, None),
            ("", 2, None),
        ] {
            assert_eq!(parse(time.as_bytes(), digits).map(|moment| moment.seconds), expected, "{time}");
        }
    }

    /// An element of DER.
    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let len = u8::try_from(content.len()).unwrap();
        let head = if len < 0x80 { vec![tag, len] } else { vec![tag, 0x81, len] };
        [head.as_slice(), content].concat()
    }

    fn certificate(version: &[u8]) -> Vec<u8> {
        let times = [der(UTC_TIME, b"260101000000Z"), der(GENERALIZED_TIME, b"20500101000000Z")].concat();
        let parts = [version.to_vec(), der(INTEGER, &[1; 20]), der(SEQUENCE, &[0; 100]), der(SEQUENCE, &[])].concat();
        let body = der(SEQUENCE, &[parts, der(SEQUENCE, &times), der(SEQUENCE, b"rest")].concat());
        der(SEQUENCE, &[body, der(SEQUENCE, b"signature")].concat())
    }

    #[test]
    fn both_ends_of_a_certificate_are_found_with_and_without_a_version() {
        for version in [&[][..], &[VERSION, 3, INTEGER, 1, 2]] {
            let validity = Validity::of(&certificate(version)).unwrap();
            let ends = (validity.not_before.seconds, validity.not_after.seconds);
            assert_eq!(ends, (1_767_225_600, 2_524_608_000));
        }
    }

    #[test]
    fn both_ends_are_within_and_what_lies_beyond_is_told_with_its_date() {
        let validity = Validity::of(&certificate(&[])).unwrap();
        for (now, fault) in [
            (1_767_225_599, Some("it is not valid before 2026-01-01")),
            (1_767_225_600, None),
            (2_524_608_000, None),
            (2_524_608_001, Some("it expired on 2050-01-01")),
        ] {
            assert_eq!(validity.fault(now).as_deref(), fault, "{now}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_give_a_time_or_none(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = Validity::of(&bytes);
        }

        #[test]
        fn a_certificate_that_is_cut_or_damaged_gives_a_time_or_none(at in 0..200_usize, byte in proptest::num::u8::ANY) {
            let mut certificate = certificate(&[]);
            let at = at % certificate.len();
            let _ = Validity::of(&certificate[..at]);
            certificate[at] = byte;
            let _ = Validity::of(&certificate);
        }
    }
}
