//! Floats as short decimals: which scale a node's floats have, and which of them are decimals there. Knows nothing of
//! Python.

use crate::memory::reserve;
use crate::refusal::Refusal;

pub const SCALES: usize = 16;
const POWERS: [f64; SCALES] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
pub const LARGEST: i64 = 1 << 53;

/// Returns the value that a decimal stands for: one division.
#[inline]
pub fn quotient(scaled: i64, scale: usize) -> f64 {
    scaled as f64 / POWERS[scale]
}

/// Returns `value` times 10^`scale` where that, rounded, gives back its 64 bits; then `value` fits the scale.
#[inline]
pub fn scaled(value: f64, scale: usize) -> Option<i64> {
    let rounded = round(value * POWERS[scale]);
    fits(value, rounded, POWERS[scale]).then_some(rounded as i64)
}

#[inline]
fn fits(value: f64, rounded: f64, power: f64) -> bool {
    // Both comparisons are made, so that a loop over many values has no branch.
    (rounded.abs() <= LARGEST as f64) & ((rounded / power).to_bits() == value.to_bits())
}

/// Rounds to an integer, ties to even; never to -0.0. What stands here is an instruction or two on every processor.
#[inline]
fn round(value: f64) -> f64 {
    const FROM_HERE_ALL_ARE_INTEGERS: f64 = (1i64 << 52) as f64;
    let shift = FROM_HERE_ALL_ARE_INTEGERS.copysign(value);
    let rounded = if value.abs() < FROM_HERE_ALL_ARE_INTEGERS { (value + shift) - shift } else { value };
    rounded + 0.0
}

/// Returns the least scale, from `from` on, that `value` fits, and what it is there.
///
/// `hint` only saves time. As long as a value's product is below 2^50, rounding errs by less than a half. So a value that
/// fits a scale fits the one below if and only if what it is there ends with a zero; and one that does not fit a scale
/// fits none below.
#[inline]
pub fn least_scale(value: f64, from: usize, hint: usize) -> Option<(usize, i64)> {
    const SAFE: f64 = (1i64 << 50) as f64;
    let mut first = from;
    if hint >= from && (value * POWERS[hint]).abs() < SAFE {
        if let Some(mut held) = scaled(value, hint) {
            let mut least = hint;
            while least > from && held % 10 == 0 {
                held /= 10;
                least -= 1;
            }
            return Some((least, held));
        }
        first = hint + 1;
    }
    (first..SCALES).find_map(|scale| scaled(value, scale).map(|held| (scale, held)))
}

/// What a float costs that does not fit the scale of its node; one that does costs the scale.
const MISFIT: u64 = 32;

/// Returns the cheapest scale for `values`, and leaves in `decimals` those that fit it.
pub fn scale_of(values: &[f64], hint: usize, decimals: &mut Vec<i64>) -> Result<usize, Refusal> {
    decimals.clear();
    // Whatever is written to it below fits.
    reserve(decimals, values.len())?;
    decimals.resize(values.len(), 0);
    // The least scale that all fit is found by going up only: whatever is passed over, some value does not fit.
    let (mut scale, mut since) = (0, 0);
    for (index, (some, held)) in values.chunks(CHUNK).zip(decimals.chunks_mut(CHUNK)).enumerate() {
        while !all_fit(some, scale, held) {
            let Some(&misfit) = some.iter().find(|&&value| scaled(value, scale).is_none()) else {
                some.iter().zip(held).for_each(|(&value, held)| *held = scaled(value, scale).unwrap_or_default());
                break;
            };
            match least_scale(misfit, scale + 1, hint) {
                Some((higher, _)) => (scale, since) = (higher, index * CHUNK),
                None => return Ok(count_all(values, hint, decimals)),
            }
        }
    }
    if scale == 0 {
        return Ok(0);
    }
    for (&value, held) in values.iter().zip(decimals.iter_mut()).take(since) {
        match scaled(value, scale) {
            Some(there) => *held = there,
            None => return Ok(count_all(values, hint, decimals)),
        }
    }
    // Those above it cost more. Those below, the more zeros end the numbers here; see `least_scale` for 2^50.
    let all = values.len() as u64;
    let mut fitting = [0u64; SCALES];
    let mut largest = 0;
    for held in decimals.iter().map(|held| held.unsigned_abs()) {
        largest |= held;
        if held % 10 == 0 {
            let (mut least, mut rest) = (scale, held);
            while least > 0 && rest % 10 == 0 {
                rest /= 10;
                least -= 1;
            }
            fitting[least] += 1;
        }
    }
    if largest >= 1 << 50 {
        return Ok(count_all(values, hint, decimals));
    }
    let (mut fits, mut best) = (0, (all * scale as u64, scale));
    for (lower, more) in fitting.into_iter().enumerate().take(scale) {
        fits += more;
        let cost = lower as u64 * fits + MISFIT * (all - fits);
        if cost < best.0 || (cost == best.0 && lower < best.1) {
            best = (cost, lower);
        }
    }
    if best.1 < scale {
        keep_those_that_fit(values, best.1, decimals);
    }
    Ok(best.1)
}

const CHUNK: usize = 32;

/// Whether all of `values` fit `scale` and are far below 2^53 there; then `held` has what they are, in a loop without
/// branches, which a compiler makes vectors of.
#[inline]
fn all_fit(values: &[f64], scale: usize, held: &mut [i64]) -> bool {
    // From 2^52 to 2^53 a float's last bit is 1: adding it rounds to an integer, which then stands in the lowest bits.
    const SHIFT: f64 = (3i64 << 51) as f64;
    const FAR: f64 = (1i64 << 50) as f64;
    let power = POWERS[scale];
    let mut misfits = 0;
    for (&value, held) in values.iter().zip(held) {
        let product = value * power;
        let shifted = product + SHIFT;
        let rounded = shifted - SHIFT;
        *held = shifted.to_bits().wrapping_sub(SHIFT.to_bits()) as i64;
        let is_near = u64::from(product.abs() <= FAR); // and a number
        misfits |= (1 - is_near) | ((rounded / power).to_bits() ^ value.to_bits());
    }
    misfits == 0
}

/// The same by trying every scale, where the numbers cannot tell.
#[inline(never)]
fn count_all(values: &[f64], hint: usize, decimals: &mut Vec<i64>) -> usize {
    let cost_of = |scale: usize, most: u64| {
        let (scale, power) = (scale as u64, POWERS[scale]);
        let mut cost = scale * values.len() as u64;
        for &value in values {
            if !fits(value, round(value * power), power) {
                cost += MISFIT - scale;
                if cost > most {
                    break;
                }
            }
        }
        cost
    };
    let mut best = (cost_of(hint, u64::MAX), hint);
    for scale in 0..SCALES {
        let cost = cost_of(scale, best.0);
        if cost < best.0 || (cost == best.0 && scale < best.1) {
            best = (cost, scale);
        }
    }
    keep_those_that_fit(values, best.1, decimals);
    best.1
}

fn keep_those_that_fit(values: &[f64], scale: usize, decimals: &mut Vec<i64>) {
    decimals.clear();
    decimals.extend(values.iter().filter_map(|&value| scaled(value, scale)));
}
