//! zlib streams, by libdeflate. Called through its C interface, as the safe bindings panic where an allocation fails.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Mutex;

use libdeflate_sys as sys;
use pyo3::prelude::*;

use crate::memory::reserve;
use crate::py::{self, Made};
use crate::refusal::Refusal;

/// Initial guess of the payload's length: the stream's times this, and `GUESSED_MORE` bytes.
const GUESSED_RATIO: usize = 16;
const GUESSED_MORE: usize = 1024;
/// Factor by which a guess grows that was too low.
const STEP: usize = 8;
/// Largest buffer to keep for the next stream.
const KEPT_BYTES: usize = 1 << 20;

/// A decompressor with its output buffer.
struct Inflater {
    tables: NonNull<sys::libdeflate_decompressor>,
    room: Vec<u8>,
}

// SAFETY: libdeflate's objects are not tied to a thread, and `&mut self` keeps two threads from using one at once.
unsafe impl Send for Inflater {}

impl Inflater {
    fn new() -> Result<Self, Refusal> {
        // SAFETY: returns null where there is no memory.
        let tables = NonNull::new(unsafe { sys::libdeflate_alloc_decompressor() }).ok_or(Refusal::NoMemory)?;
        Ok(Inflater { tables, room: Vec::new() })
    }

    /// Inflates a whole stream of at most `most` bytes; None for any other.
    fn inflate(&mut self, stream: &[u8], most: usize) -> Result<Option<&[u8]>, Refusal> {
        let mut guess = most.min(stream.len().saturating_mul(GUESSED_RATIO).saturating_add(GUESSED_MORE));
        loop {
            self.room.clear();
            reserve(&mut self.room, guess)?;
            let (mut consumed, mut made) = (0, 0);
            // SAFETY: both buffers have the given lengths; libdeflate only writes to the second one.
            let result = unsafe {
                let room: &mut [MaybeUninit<u8>] = self.room.spare_capacity_mut();
                sys::libdeflate_zlib_decompress_ex(
                    self.tables.as_ptr(),
                    stream.as_ptr().cast(),
                    stream.len(),
                    room.as_mut_ptr().cast(),
                    guess,
                    &mut consumed,
                    &mut made,
                )
            };
            match result {
                sys::libdeflate_result_LIBDEFLATE_SUCCESS if consumed == stream.len() => {
                    // SAFETY: libdeflate has written this many bytes.
                    unsafe { self.room.set_len(made) };
                    return Ok(Some(&self.room));
                }
                sys::libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE if guess < most => {
                    guess = most.min(guess.saturating_mul(STEP));
                }
                _ => return Ok(None),
            }
        }
    }
}

impl Drop for Inflater {
    fn drop(&mut self) {
        // SAFETY: it was allocated by libdeflate, and is used nowhere else.
        unsafe { sys::libdeflate_free_decompressor(self.tables.as_ptr()) };
    }
}

/// A compressor of one level with its output buffer.
struct Deflater {
    level: i32,
    tables: NonNull<sys::libdeflate_compressor>,
    room: Vec<u8>,
}

// SAFETY: as for `Inflater`.
unsafe impl Send for Deflater {}

impl Deflater {
    fn new(level: i32) -> Result<Self, Refusal> {
        // SAFETY: returns null where there is no memory, or for an unknown level, which `deflate` has refused.
        let tables = NonNull::new(unsafe { sys::libdeflate_alloc_compressor(level) }).ok_or(Refusal::NoMemory)?;
        Ok(Deflater { level, tables, room: Vec::new() })
    }

    fn deflate(&mut self, payload: &[u8]) -> Result<&[u8], Refusal> {
        self.room.clear();
        // SAFETY: both buffers have the given lengths; libdeflate only writes to the second one, which is large enough for
        // any stream of this payload, so that compressing cannot fail.
        unsafe {
            let bound = sys::libdeflate_zlib_compress_bound(self.tables.as_ptr(), payload.len());
            reserve(&mut self.room, bound)?;
            let made = sys::libdeflate_zlib_compress(
                self.tables.as_ptr(),
                payload.as_ptr().cast(),
                payload.len(),
                self.room.spare_capacity_mut().as_mut_ptr().cast(),
                bound,
            );
            self.room.set_len(made);
        }
        Ok(&self.room)
    }
}

impl Drop for Deflater {
    fn drop(&mut self) {
        // SAFETY: it was allocated by libdeflate, and is used nowhere else.
        unsafe { sys::libdeflate_free_compressor(self.tables.as_ptr()) };
    }
}

/// One of each is kept for the next call. A thread that finds none, because another one uses it, allocates its own.
static INFLATER: Mutex<Option<Inflater>> = Mutex::new(None);
static DEFLATER: Mutex<Option<Deflater>> = Mutex::new(None);

fn taken<T>(slot: &Mutex<Option<T>>) -> Option<T> {
    slot.lock().ok()?.take()
}

fn kept<T>(slot: &Mutex<Option<T>>, one: T) {
    if let Ok(mut slot) = slot.lock() {
        *slot = Some(one);
    }
}

/// Inflates a stream without the GIL; None where zlib has to decide.
pub fn inflate<'py>(py: Python<'py>, stream: &[u8], most: usize) -> Result<Option<Made<'py>>, Refusal> {
    let mut inflater = match taken(&INFLATER) {
        Some(inflater) => inflater,
        None => Inflater::new()?,
    };
    let payload = match py.detach(|| inflater.inflate(stream, most))? {
        Some(payload) => Some(py::new_bytes(py, payload)?),
        None => None,
    };
    if inflater.room.capacity() <= KEPT_BYTES {
        kept(&INFLATER, inflater);
    }
    Ok(payload)
}

/// Compresses a payload without the GIL.
pub fn deflate<'py>(py: Python<'py>, payload: &[u8], level: i32) -> Result<Made<'py>, Refusal> {
    if !(1..=9).contains(&level) {
        return Err(Refusal::Malformed(&c"a level is 1 to 9"));
    }
    let mut deflater = match taken(&DEFLATER).filter(|deflater| deflater.level == level) {
        Some(deflater) => deflater,
        None => Deflater::new(level)?,
    };
    let stream = py::new_bytes(py, py.detach(|| deflater.deflate(payload))?)?;
    if deflater.room.capacity() <= KEPT_BYTES {
        kept(&DEFLATER, deflater);
    }
    Ok(stream)
}
