//! Numbers as bytes: varints, zigzag, predictors and short decimals. Knows nothing of Python.

use crate::memory::{extend, reserve};
use crate::refusal::{malformed, truncated, Refusal};

/// Where a reader stands in one section.
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub fn new(section: &'a [u8]) -> Self {
        Cursor { rest: section }
    }

    pub fn left(&self) -> usize {
        self.rest.len()
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub fn byte(&mut self) -> Result<u8, Refusal> {
        let (&first, rest) = self.rest.split_first().ok_or_else(truncated)?;
        self.rest = rest;
        Ok(first)
    }

    #[inline]
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Refusal> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Takes the bytes before the next zero, and the zero.
    #[inline]
    pub fn until_zero(&mut self) -> Result<&'a [u8], Refusal> {
        let end = memchr::memchr(0, self.rest).ok_or_else(truncated)?;
        let taken = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(taken)
    }

    /// Takes a LEB128 number below 2^64 in its shortest form.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, Refusal> {
        match self.rest {
            [first, rest @ ..] if *first < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*first))
            }
            [first, second, rest @ ..] if *second < 0x80 && *second != 0 => {
                self.rest = rest;
                Ok(u64::from(*first & 0x7F) | u64::from(*second) << 7)
            }
            _ => self.long_varint(),
        }
    }

    #[inline(never)]
    fn long_varint(&mut self) -> Result<u64, Refusal> {
        let mut value = 0u64;
        for (index, &byte) in self.rest.iter().enumerate().take(10) {
            if index == 9 && byte > 1 {
                return malformed(&c"a varint of 2^64 or more");
            }
            value |= u64::from(byte & 0x7F) << (7 * index);
            if byte < 0x80 {
                if byte == 0 && index > 0 {
                    return malformed(&c"a varint longer than it must be");
                }
                self.rest = &self.rest[index + 1..];
                return Ok(value);
            }
        }
        Err(truncated())
    }

    /// Takes a varint that counts something, at most `most`.
    #[inline]
    pub fn count(&mut self, most: usize) -> Result<usize, Refusal> {
        let count = self.varint()?;
        if count > most as u64 {
            return malformed(&c"a count that is too high");
        }
        Ok(count as usize)
    }
}

/// The most bytes of a varint.
pub const VARINT_BYTES: usize = 10;

/// Writes a varint, for which there is room already.
#[inline]
pub fn put_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

#[inline]
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

#[inline]
pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Returns how many bits a zigzag number has; 0 for 0. It is below 2^63.
#[inline]
fn bits(zigzag: u64) -> u64 {
    // The highest bit of an odd number: zero would take a branch on many processors.
    u64::from(63 - (zigzag << 1 | 1).leading_zeros())
}

/// The same for any.
#[inline]
fn bits_of_any(zigzag: u64) -> u64 {
    u64::from(64 - zigzag.leading_zeros())
}

/// Returns what each predictor would cost: the bits of its residuals.
#[inline]
fn costs(values: &[i64], bits: impl Fn(u64) -> u64) -> [u64; 3] {
    let (mut last, mut step) = (0i64, 0i64);
    let mut cost = [0u64; 3];
    for (index, &value) in values.iter().enumerate() {
        let residual = value.wrapping_sub(last);
        cost[0] += bits(zigzag(value));
        cost[1] += bits(zigzag(residual));
        cost[2] += bits(zigzag(if index == 1 { residual } else { residual.wrapping_sub(step) }));
        (last, step) = (value, residual);
    }
    cost
}

/// Writes `numbers(c)`: the predictor whose residuals have the fewest bits, and those.
pub fn put_numbers(schema: &mut Vec<u8>, tokens: &mut Vec<u8>, values: &[i64]) -> Result<(), Refusal> {
    if let [value] = values {
        reserve(tokens, VARINT_BYTES)?;
        put_varint(tokens, zigzag(*value));
        return Ok(());
    }
    // Residuals of numbers below 2^59 are below 2^62.
    let largest = values.iter().fold(0, |all, &value| all | (value ^ value >> 63) as u64);
    let cost = if largest < 1 << 59 { costs(values, bits) } else { costs(values, bits_of_any) };
    let predictor = (0..3).min_by_key(|&each| cost[each]).unwrap_or(0);
    reserve(schema, 1)?;
    schema.push(predictor as u8);
    let (mut last, mut step) = (0i64, 0i64);
    match predictor {
        0 => put_varints(tokens, values, zigzag),
        1 => put_varints(tokens, values, |value| {
            let residual = value.wrapping_sub(last);
            last = value;
            zigzag(residual)
        }),
        _ => {
            // The second number has no line yet: its step counts from nothing, as that of the first does.
            put_varints(tokens, &values[..1], zigzag)?;
            last = values[0];
            put_varints(tokens, &values[1..], |value| {
                let residual = value.wrapping_sub(last);
                let change = residual.wrapping_sub(step);
                (last, step) = (value, residual);
                zigzag(change)
            })
        }
    }
}

/// Writes a varint for each value, some of them at once.
#[inline]
fn put_varints(to: &mut Vec<u8>, values: &[i64], mut spelled: impl FnMut(i64) -> u64) -> Result<(), Refusal> {
    let mut room = [0u8; VARINT_BYTES * CHUNK];
    for some in values.chunks(CHUNK) {
        let mut at = 0;
        for &value in some {
            let mut rest = spelled(value);
            if rest < 1 << 28 {
                // Up to four bytes without a branch: lengths come as they like.
                let spread = rest & 0x7F | (rest & 0x3F80) << 1 | (rest & 0x1F_C000) << 2 | (rest & 0xFE0_0000) << 3;
                let more = bits(rest >> 7).div_ceil(7);
                let flags = 0x80_8080u64 & ((1u64 << (8 * more)) - 1);
                room[at..at + 4].copy_from_slice(&((spread | flags) as u32).to_le_bytes());
                at += more as usize + 1;
                continue;
            }
            while rest >= 0x80 {
                room[at] = rest as u8 | 0x80;
                at += 1;
                rest >>= 7;
            }
            room[at] = rest as u8;
            at += 1;
        }
        extend(to, &room[..at])?;
    }
    Ok(())
}

const CHUNK: usize = 32;

/// Reads `numbers(c)` and hands each value to `take`. `count` is known to be charged.
#[inline]
pub fn take_numbers(
    schema: &mut Cursor<'_>,
    tokens: &mut Cursor<'_>,
    count: usize,
    mut take: impl FnMut(i64) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    if count > tokens.left() {
        return Err(truncated());
    }
    let predictor = if count > 1 { schema.byte()? } else { 0 };
    let mut last = 0i64;
    match predictor {
        0 => (0..count).try_for_each(|_| take(unzigzag(tokens.varint()?))),
        1 => (0..count).try_for_each(|_| {
            last = last.wrapping_add(unzigzag(tokens.varint()?));
            take(last)
        }),
        2 => {
            let mut step = 0i64;
            (0..count).try_for_each(|index| {
                let residual = unzigzag(tokens.varint()?);
                // Row 1 has no line yet: its step counts from nothing, as that of row 0 does.
                step = if index == 1 { residual } else { step.wrapping_add(residual) };
                last = last.wrapping_add(step);
                take(last)
            })
        }
        _ => malformed(&c"an unknown predictor"),
    }
}
