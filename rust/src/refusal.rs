//! Why something is not packed, or not unpacked. The reference, which is asked next, decides and finds the words.

use std::ffi::CStr;

use pyo3::ffi;
use pyo3::prelude::*;

/// A refusal: two words, so that whatever may be refused still comes back in registers.
#[derive(Clone, Copy)]
pub enum Refusal {
    /// The document is outside the data model, or beyond the format, or deeper than this module goes.
    NotHeld,
    /// A payload is not one, for this reason, or it is deeper than allowed, or than this module goes.
    Malformed(&'static &'static CStr),
    /// It has more values than are allowed here.
    TooMany,
    /// An argument has the wrong type; the message names the right one.
    WrongType(&'static &'static CStr),
    /// An allocation of this crate's failed.
    NoMemory,
    /// CPython has set an error: a failed allocation, or an exception that a callable raised.
    Python,
}

impl Refusal {
    /// Returns the exception to raise, without allocating: `PyErr::new` boxes its arguments, and aborts the process where
    /// that fails.
    #[cold]
    pub fn raised(self, py: Python<'_>) -> PyErr {
        // SAFETY: the interpreter is held; the types are CPython's own, and the messages end with a zero.
        unsafe {
            match self {
                Refusal::NotHeld => ffi::PyErr_SetString(ffi::PyExc_ValueError, c"not held".as_ptr()),
                Refusal::Malformed(reason) => ffi::PyErr_SetString(ffi::PyExc_ValueError, reason.as_ptr()),
                Refusal::TooMany => {
                    ffi::PyErr_SetString(ffi::PyExc_OverflowError, c"more values than are allowed here".as_ptr());
                }
                Refusal::WrongType(expected) => ffi::PyErr_SetString(ffi::PyExc_TypeError, expected.as_ptr()),
                Refusal::NoMemory => {
                    ffi::PyErr_NoMemory();
                }
                Refusal::Python => (),
            }
        }
        PyErr::fetch(py)
    }
}

#[cold]
pub fn truncated() -> Refusal {
    Refusal::Malformed(&c"a section ends too early")
}

#[cold]
pub fn malformed<T>(what: &'static &'static CStr) -> Result<T, Refusal> {
    Err(Refusal::Malformed(what))
}
