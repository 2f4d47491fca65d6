//! The native extension of `schemaless-store`: converts between Python objects and packed payloads, parses rows of
//! server replies (`replies`), and handles zlib streams (`zlib`).
//!
//! `schemaless/codec/FORMAT.md` has the grammar. Input that this module refuses goes to the Python reference
//! implementation, which decides and raises the error.

#[cfg_attr(direct, path = "direct.rs")]
#[cfg_attr(not(direct), path = "stable.rs")]
mod access;
mod cache;
mod memory;
mod py;
mod reader;
mod refusal;
mod replies;
mod scale;
mod shapes;
mod typed;
mod wire;
mod writer;
mod zlib;

use std::ops::RangeInclusive;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use cache::Cache;
use py::Reserved;
use reader::Reader;
use refusal::Refusal;
use writer::Room;

/// The most levels of lists and objects that this module walks: few enough for the smallest stack of a thread.
const MAX_LEVELS: usize = 32;
/// The lengths of arrays that are stored position by position.
const TUPLES: RangeInclusive<i64> = 2..=8;
/// Fewer strings than this are never typed.
const TYPED_MIN: usize = 4;

/// Returns how many values a payload pays for.
fn budget(payload_bytes: usize) -> u64 {
    4 * payload_bytes as u64
}

/// The kinds of values, as rows of mixed nodes name them. Stored; never renumber.
mod kind {
    pub const NULL: u8 = 0;
    pub const FALSE: u8 = 1;
    pub const TRUE: u8 = 2;
    pub const INT: u8 = 3;
    pub const DECIMAL: u8 = 4;
    pub const TEXT: u8 = 5;
    pub const ARRAY: u8 = 6;
    pub const OBJECT: u8 = 7;
    pub const TYPED: u8 = 8;
    pub const DOUBLE: u8 = 9;
    pub const BIGINT: u8 = 10;
    pub const ALL: usize = 11;
    /// The order in which the values of a node are stored; those of the first three kinds are not.
    pub const IN_ORDER: [u8; 8] = [INT, DECIMAL, TEXT, TYPED, DOUBLE, BIGINT, ARRAY, OBJECT];
}

/// The bits of a node's mask. Stored; never renumber.
mod mask {
    pub const NULL: u64 = 1;
    pub const BOOLEAN: u64 = 2;
    pub const TRUE: u64 = 3;
    pub const INT: u64 = 4;
    pub const DECIMAL: u64 = 8;
    pub const TEXT: u64 = 16;
    pub const ARRAY: u64 = 32;
    pub const OBJECT: u64 = 64;
    pub const TYPED: u64 = 128;
    pub const DOUBLE: u64 = 256;
    pub const BIGINT: u64 = 512;
    pub const ALL: u64 = 1023;
    pub const OF_KIND: [u64; super::kind::ALL] =
        [NULL, BOOLEAN, BOOLEAN, INT, DECIMAL, TEXT, ARRAY, OBJECT, TYPED, DOUBLE, BIGINT];
}

/// Shared by all threads, as packing never releases the GIL. A thread-local with a destructor allocates at a thread's first
/// use, and aborts the process where that fails.
static ROOM: Reserved<Room> = Reserved::new(Room::new());

static CACHE: Reserved<Option<Cache>> = Reserved::new(None);

/// Returns a document's payload, or None where only the reference can tell why there is none, or make it.
#[pyfunction]
#[pyo3(signature = (document, /))]
fn pack<'py>(document: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = document.py();
    match ROOM.take(py) {
        Some(mut room) => {
            let packed = packed(document, &mut room);
            if !room.is_small() {
                *room = Room::new();
            }
            packed
        }
        None => packed(document, &mut Room::new()),
    }
    .map_err(|refusal| refusal.raised(py))
}

fn packed<'py>(document: &Bound<'py, PyAny>, room: &mut Room) -> Result<Option<Bound<'py, PyAny>>, Refusal> {
    match writer::pack(document.as_borrowed(), room) {
        Ok(payload) => py::joined(document.py(), &payload.parts()).map(Some),
        Err(Refusal::NotHeld) => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

/// Returns a payload's document, of at most so many levels, and so many values, keys included.
///
/// Raises ValueError where only the reference can tell, and OverflowError where there are more values.
#[pyfunction]
#[pyo3(signature = (payload, levels, values = u64::MAX, /))]
fn unpack<'py>(payload: &Bound<'py, PyAny>, levels: usize, values: u64) -> PyResult<Bound<'py, PyAny>> {
    unpacked(payload, levels, values).map_err(|refusal| refusal.raised(payload.py()))
}

fn unpacked<'py>(payload: &Bound<'py, PyAny>, levels: usize, values: u64) -> Result<Bound<'py, PyAny>, Refusal> {
    let py = payload.py();
    let payload = Argument::new(payload)?;
    // Making objects may start the garbage collector and, by it, code that unpacks: that has a cache of its own.
    let Some(mut cache) = CACHE.take(py) else {
        return Reader::unpack(py, payload.bytes(), levels, values, &mut Cache::new()?);
    };
    let cache = match &mut *cache {
        Some(cache) => cache,
        none => none.insert(Cache::new()?),
    };
    Reader::unpack(py, payload.bytes(), levels, values, cache)
}

/// The bytes of an argument: borrowed from a `bytes`, copied from a `bytearray`, which other code could resize.
enum Argument<'a> {
    Lent(&'a [u8]),
    Copied(Vec<u8>),
}

impl<'a> Argument<'a> {
    fn new(argument: &'a Bound<'_, PyAny>) -> Result<Self, Refusal> {
        if let Ok(bytes) = argument.cast::<PyBytes>() {
            return Ok(Argument::Lent(bytes.as_bytes()));
        }
        match argument.cast::<PyByteArray>() {
            Ok(bytes) => py::copy_of(bytes).map(Argument::Copied),
            Err(_) => Err(Refusal::WrongType(&c"a payload is bytes or bytearray")),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Argument::Lent(bytes) => bytes,
            Argument::Copied(bytes) => bytes,
        }
    }
}

/// Inflates a zlib stream. Returns None where the reference has to decide: the stream is damaged, incomplete, followed by
/// other bytes, or inflates to more than `most` bytes.
#[pyfunction]
#[pyo3(signature = (stream, most, /))]
fn inflate<'py>(stream: &Bound<'py, PyAny>, most: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = stream.py();
    Argument::new(stream)
        .and_then(|stream| zlib::inflate(py, stream.bytes(), most))
        .map_err(|refusal| refusal.raised(py))
}

/// Compresses a payload to a zlib stream, at level 1 to 9.
#[pyfunction]
#[pyo3(signature = (payload, level, /))]
fn deflate<'py>(payload: &Bound<'py, PyAny>, level: i32) -> PyResult<Bound<'py, PyAny>> {
    let py = payload.py();
    Argument::new(payload)
        .and_then(|payload| zlib::deflate(py, payload.bytes(), level))
        .map_err(|refusal| refusal.raised(py))
}

// References borrowed from a document are sound only while no other thread can change it, so a free-threaded interpreter
// has to enable the GIL when it imports this module.
#[pymodule(gil_used = true)]
fn schemaless_packed(module: &Bound<'_, PyModule>) -> PyResult<()> {
    if !py::is_as_expected(module.py())? {
        return Err(PyImportError::new_err("built for another Python than this"));
    }
    replies::prepare(module.py())?;
    module.add_function(wrap_pyfunction!(pack, module)?)?;
    module.add_function(wrap_pyfunction!(unpack, module)?)?;
    module.add_function(wrap_pyfunction!(inflate, module)?)?;
    module.add_function(wrap_pyfunction!(deflate, module)?)?;
    module.add_function(wrap_pyfunction!(replies::packets, module)?)?;
    module.add_function(wrap_pyfunction!(replies::rows, module)?)
}
