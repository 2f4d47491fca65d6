//! Strings that are numbers: times, dates, decimal text, UUIDs, hexadecimal digits. Knows nothing of Python.
//!
//! Each format writes a number in one way only, so that a string either is in the format, byte for byte, or is text.

use crate::memory::reserve;
use crate::refusal::{malformed, Refusal};
use crate::wire::Cursor;
use crate::TYPED_MIN;

const DAY_S: i64 = 86_400;
const LONGEST_SUFFIX: usize = 6;

/// A format, with what all its strings have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// `HH:MM:SS`, 00 to 99 hours.
    Time,
    /// `YYYY-MM-DD`, `T` or a space, `HH:MM:SS`, so many digits behind a point, a suffix such as `Z`.
    Timestamp { separator: u8, digits: u8, suffix: Suffix },
    /// `YYYY-MM-DD`.
    Date,
    /// So many digits behind a point, or none and no point.
    Decimal { digits: u8 },
    /// 32 lower-case digits in five groups.
    Uuid,
    /// So many lower-case digits: an even number.
    Hex { digits: u8 },
}

/// What stands behind the seconds: nothing, `Z`, or an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suffix {
    bytes: [u8; LONGEST_SUFFIX],
    length: u8,
}

/// A string of a format, on its way to Python.
pub struct Spelled {
    bytes: [u8; 256],
    length: usize,
}

impl Spelled {
    fn new() -> Self {
        Spelled { bytes: [0; 256], length: 0 }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    #[inline]
    fn push(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    /// Writes `value` in decimal digits, `width` of them at least.
    #[inline]
    fn number(&mut self, mut value: u64, width: usize) {
        let mut digits = [b'0'; 20];
        let mut at = 20;
        while value > 0 {
            at -= 1;
            digits[at] = b'0' + (value % 10) as u8;
            value /= 10;
        }
        for &digit in &digits[at.min(20 - width)..] {
            self.push(digit);
        }
    }

    fn date(&mut self, days: i64) {
        let (year, month, day) = civil(days);
        self.number(year as u64, 4);
        self.push(b'-');
        self.number(month, 2);
        self.push(b'-');
        self.number(day, 2);
    }

    fn time(&mut self, seconds: u64) {
        self.number(seconds / 3600, 2);
        self.push(b':');
        self.number(seconds / 60 % 60, 2);
        self.push(b':');
        self.number(seconds % 60, 2);
    }

    fn hex(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.push(b"0123456789abcdef"[usize::from(byte >> 4)]);
            self.push(b"0123456789abcdef"[usize::from(byte & 15)]);
        }
    }
}

impl Format {
    /// Returns the first format that all of a node's strings have, and leaves in `ticks` what numbers they stand for.
    pub fn of(texts: &[&str], ticks: &mut Vec<i64>) -> Result<Option<Format>, Refusal> {
        if texts.len() < TYPED_MIN {
            return Ok(None);
        }
        let first = texts[0].as_bytes();
        let Some(format) = Format::of_one(first) else {
            return Ok(None);
        };
        ticks.clear();
        if format.raw_bytes().is_none() {
            reserve(ticks, texts.len())?;
        }
        if format.all(texts, ticks) {
            return Ok(Some(format));
        }
        // Digits alone are decimal text, and hexadecimal too: the others tell.
        let hex = u8::try_from(first.len()).ok().map(|digits| Format::Hex { digits });
        Ok(hex.filter(|hex| format != *hex && hex.all(texts, ticks)))
    }

    /// Whether all of `texts` are of this format, and pushes their numbers, for which there is room.
    fn all(&self, texts: &[&str], ticks: &mut Vec<i64>) -> bool {
        if self.raw_bytes().is_some() {
            return texts.iter().all(|text| self.holds(text.as_bytes()));
        }
        texts.iter().all(|text| self.ticks(text.as_bytes()).map(|each| ticks.push(each)).is_some())
    }

    /// Returns the format that one string has, with its own parameters: hexadecimal digits only where it has no other.
    fn of_one(text: &[u8]) -> Option<Format> {
        let format = match text {
            [_, _, b':', ..] => Format::Time,
            [_, _, _, _, b'-', _, _, b'-', _, _] => Format::Date,
            [_, _, _, _, b'-', _, _, b'-', _, _, separator @ (b'T' | b' '), rest @ ..] if rest.len() >= 8 => {
                let digits = match &rest[8..] {
                    [b'.', fraction @ ..] => match fraction.iter().take_while(|each| each.is_ascii_digit()).count() {
                        digits @ 1..=9 => digits,
                        _ => return None,
                    },
                    _ => 0,
                };
                let suffix = Suffix::new(&rest[8 + digits + usize::from(digits > 0)..])?;
                Format::Timestamp { separator: *separator, digits: digits as u8, suffix }
            }
            _ if text.len() == 36 && text[8] == b'-' => Format::Uuid,
            [b'-' | b'0'..=b'9', ..]
                if text.len() <= 21 && text.iter().all(|each| matches!(each, b'-' | b'.' | b'0'..=b'9')) =>
            {
                let digits = text.iter().rev().position(|&each| each == b'.').unwrap_or(0);
                if digits > 9 {
                    return None;
                }
                let decimal = Format::Decimal { digits: digits as u8 };
                if !decimal.holds(text) {
                    Format::Hex { digits: text.len() as u8 }
                } else {
                    decimal
                }
            }
            _ if text.len() <= 254 => Format::Hex { digits: text.len() as u8 },
            _ => return None,
        };
        format.holds(text).then_some(format)
    }

    fn holds(&self, text: &[u8]) -> bool {
        match self {
            Format::Uuid => uuid_groups(text).is_some_and(|mut groups| groups.all(|group| group.iter().all(is_hex))),
            Format::Hex { digits } => {
                text.len() == usize::from(*digits) && digits % 2 == 0 && *digits > 0 && text.iter().all(is_hex)
            }
            _ => self.ticks(text).is_some(),
        }
    }

    /// Returns the number that a string stands for, or None where it is not of this format.
    pub fn ticks(&self, text: &[u8]) -> Option<i64> {
        match self {
            Format::Time => seconds(text),
            Format::Date => days(text),
            Format::Timestamp { separator, digits, suffix } => {
                let rest = text.strip_suffix(suffix.as_bytes())?;
                if *rest.get(10)? != *separator || rest.len() != 19 + usize::from(*digits) + usize::from(*digits > 0) {
                    return None;
                }
                let time = seconds(&rest[11..19]).filter(|&time| time < DAY_S)?;
                let whole = days(&rest[..10])? * DAY_S + time;
                let fraction = match &rest[19..] {
                    [] => 0,
                    [b'.', fraction @ ..] => number(fraction)?,
                    _ => return None,
                };
                // Wide, for the first second that 64 bits hold only in part.
                let ticks = i128::from(whole) * 10i128.pow(u32::from(*digits)) + i128::from(fraction);
                i64::try_from(ticks).ok()
            }
            Format::Decimal { digits } => {
                let (negative, unsigned) = match text {
                    [b'-', rest @ ..] => (true, rest),
                    _ => (false, text),
                };
                let digits = usize::from(*digits);
                let mut part = 0;
                let whole = match digits {
                    0 => unsigned,
                    _ => {
                        let (whole, fraction) = unsigned.split_at_checked(unsigned.len().checked_sub(digits + 1)?)?;
                        if fraction[0] != b'.' {
                            return None;
                        }
                        part = number(&fraction[1..])?;
                        whole
                    }
                };
                if whole.is_empty() || (whole[0] == b'0' && whole.len() > 1) {
                    return None;
                }
                let value = wide(whole)? * 10i128.pow(digits as u32) + i128::from(part);
                if negative && value == 0 {
                    return None;
                }
                i64::try_from(if negative { -value } else { value }).ok()
            }
            Format::Uuid | Format::Hex { .. } => None,
        }
    }

    /// Returns the string that a number stands for.
    #[inline]
    pub fn spell(&self, ticks: i64) -> Result<Spelled, Refusal> {
        let mut to = Spelled::new();
        match self {
            Format::Time if (0..100 * 3600).contains(&ticks) => to.time(ticks as u64),
            Format::Date if DAYS.contains(&ticks) => to.date(ticks),
            Format::Timestamp { separator, digits, suffix } => {
                let unit = 10i64.pow(u32::from(*digits));
                let whole = ticks.div_euclid(unit);
                if !DAYS.contains(&whole.div_euclid(DAY_S)) {
                    return malformed(&c"a time that is out of range");
                }
                to.date(whole.div_euclid(DAY_S));
                to.push(*separator);
                to.time(whole.rem_euclid(DAY_S) as u64);
                if *digits > 0 {
                    to.push(b'.');
                    to.number(ticks.rem_euclid(unit) as u64, usize::from(*digits));
                }
                for &byte in suffix.as_bytes() {
                    to.push(byte);
                }
            }
            Format::Decimal { digits } => {
                let unit = 10u64.pow(u32::from(*digits));
                if ticks < 0 {
                    to.push(b'-');
                }
                to.number(ticks.unsigned_abs() / unit, 1);
                if *digits > 0 {
                    to.push(b'.');
                    to.number(ticks.unsigned_abs() % unit, usize::from(*digits));
                }
            }
            _ => return malformed(&c"a number that is out of its format's range"),
        }
        Ok(to)
    }

    /// Returns how many bytes a string takes where it is stored as such, and None where it is a number.
    pub fn raw_bytes(&self) -> Option<usize> {
        match self {
            Format::Uuid => Some(16),
            Format::Hex { digits } => Some(usize::from(*digits) / 2),
            _ => None,
        }
    }

    /// Writes the bytes of a string that is of this format; there is room for them.
    pub fn put_raw(&self, text: &str, to: &mut Vec<u8>) {
        let mut high = None;
        for digit in text.bytes().filter(|&digit| digit != b'-') {
            let value = if digit <= b'9' { digit - b'0' } else { digit - b'a' + 10 };
            match high.take() {
                None => high = Some(value << 4),
                Some(high) => to.push(high | value),
            }
        }
    }

    /// Returns the string that bytes stand for; as many as `raw_bytes` says.
    #[inline]
    pub fn spell_raw(&self, bytes: &[u8]) -> Spelled {
        let mut to = Spelled::new();
        if *self == Format::Uuid {
            for (group, range) in UUID_BYTES.into_iter().enumerate() {
                if group > 0 {
                    to.push(b'-');
                }
                to.hex(&bytes[range]);
            }
        } else {
            to.hex(bytes);
        }
        to
    }

    /// Writes the format itself.
    pub fn put(&self, schema: &mut Vec<u8>) -> Result<(), Refusal> {
        reserve(schema, 4 + LONGEST_SUFFIX)?;
        match self {
            Format::Time => schema.push(0),
            Format::Timestamp { separator, digits, suffix } => {
                schema.extend([1, *separator, *digits]);
                schema.extend(suffix.as_bytes());
                schema.push(0);
            }
            Format::Date => schema.push(2),
            Format::Decimal { digits } => schema.extend([3, *digits]),
            Format::Uuid => schema.push(4),
            Format::Hex { digits } => schema.extend([5, *digits]),
        }
        Ok(())
    }

    /// Reads a format.
    pub fn take(schema: &mut Cursor<'_>) -> Result<Format, Refusal> {
        Ok(match schema.byte()? {
            0 => Format::Time,
            1 => {
                let separator = schema.byte()?;
                let digits = schema.byte()?;
                let suffix = Suffix::new(schema.until_zero()?);
                match (separator, digits, suffix) {
                    (b'T' | b' ', 0..=9, Some(suffix)) => Format::Timestamp { separator, digits, suffix },
                    _ => return malformed(&c"an impossible format of times"),
                }
            }
            2 => Format::Date,
            3 => match schema.byte()? {
                digits @ 0..=9 => Format::Decimal { digits },
                _ => return malformed(&c"an impossible format of decimals"),
            },
            4 => Format::Uuid,
            5 => match schema.byte()? {
                digits @ 2..=254 if digits % 2 == 0 => Format::Hex { digits },
                _ => return malformed(&c"an impossible length of hexadecimal digits"),
            },
            _ => return malformed(&c"an unknown format of strings"),
        })
    }
}

impl Suffix {
    /// Takes nothing, `Z`, `+HH:MM` or `-HH:MM`, `+HHMM` or `-HHMM`, `+HH` or `-HH`.
    fn new(text: &[u8]) -> Option<Suffix> {
        let digits: &[u8] = match text {
            [] | [b'Z'] => b"",
            [b'+' | b'-', a, b] => &[*a, *b],
            [b'+' | b'-', a, b, c, d] | [b'+' | b'-', a, b, b':', c, d] => &[*a, *b, *c, *d],
            _ => return None,
        };
        if !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let mut bytes = [0; LONGEST_SUFFIX];
        bytes[..text.len()].copy_from_slice(text);
        Some(Suffix { bytes, length: text.len() as u8 })
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

// ---- numbers, times and dates

/// 0001-01-01 to 9999-12-31, in days from 1970-01-01.
const DAYS: std::ops::RangeInclusive<i64> = -719_162..=2_932_896;
const UUID_BYTES: [std::ops::Range<usize>; 5] = [0..4, 4..6, 6..8, 8..10, 10..16];

fn is_hex(digit: &u8) -> bool {
    matches!(digit, b'0'..=b'9' | b'a'..=b'f')
}

fn uuid_groups(text: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    if text.len() != 36 || [8, 13, 18, 23].iter().any(|&at| text[at] != b'-') {
        return None;
    }
    Some([0..8, 9..13, 14..18, 19..23, 24..36].into_iter().map(|range| &text[range]))
}

/// Returns the number that ASCII digits spell, or None for anything else, or beyond 64 bits.
#[inline]
fn number(digits: &[u8]) -> Option<i64> {
    let mut value = 0i64;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(i64::from(digit - b'0'))?;
    }
    Some(value)
}

/// Returns the number that up to 20 ASCII digits spell.
#[inline]
fn wide(digits: &[u8]) -> Option<i128> {
    if digits.len() < 19 {
        return number(digits).map(i128::from);
    }
    let (most, least) = digits.split_at(10);
    (digits.len() <= 20).then_some(())?;
    Some(i128::from(number(most)?) * 10i128.pow(least.len() as u32) + i128::from(number(least)?))
}

/// Returns the seconds of `HH:MM:SS`.
#[inline]
fn seconds(text: &[u8]) -> Option<i64> {
    let &[a, b, b':', c, d, b':', e, f] = text else {
        return None;
    };
    let (hours, minutes, seconds) = (number(&[a, b])?, number(&[c, d])?, number(&[e, f])?);
    (minutes < 60 && seconds < 60).then_some(hours * 3600 + minutes * 60 + seconds)
}

/// Returns the days from 1970-01-01 to `YYYY-MM-DD`.
#[inline]
fn days(text: &[u8]) -> Option<i64> {
    let &[a, b, c, d, b'-', e, f, b'-', g, h] = text else {
        return None;
    };
    let (year, month, day) = (number(&[a, b, c, d])?, number(&[e, f])?, number(&[g, h])?);
    if year == 0 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let days = days_of(year, month, day);
    // A day that its month does not have is another date's.
    (day <= 28 || civil(days) == (year, month as u64, day as u64)).then_some(days)
}

/// Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`.
#[inline]
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Source: the same, `civil_from_days`.
#[inline]
fn civil(days: i64) -> (i64, u64, u64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month as u64, day as u64)
}
