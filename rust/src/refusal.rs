//! Why something is not packed, or not unpacked. The reference, which is asked next, decides and finds the words.

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;

/// A refusal: two words, so that whatever may be refused still comes back in registers.
#[derive(Clone, Copy)]
pub enum Refusal {
    /// The document is outside the data model, or beyond the format, or deeper than this module goes.
    NotHeld,
    /// A payload is not one, for this reason, or it is deeper than allowed, or than this module goes.
    Malformed(&'static &'static str),
    /// It has more values than are allowed here.
    TooMany,
    /// The interpreter has set its own error: there is no memory.
    Python,
}

impl Refusal {
    /// Returns what is raised.
    #[cold]
    pub fn raised(self, py: Python<'_>) -> PyErr {
        match self {
            Refusal::NotHeld => PyValueError::new_err("not held"),
            Refusal::Malformed(reason) => PyValueError::new_err(*reason),
            Refusal::TooMany => PyOverflowError::new_err("more values than are allowed here"),
            Refusal::Python => PyErr::fetch(py),
        }
    }
}

#[cold]
pub fn truncated() -> Refusal {
    Refusal::Malformed(&"a section ends too early")
}

#[cold]
pub fn malformed<T>(what: &'static &'static str) -> Result<T, Refusal> {
    Err(Refusal::Malformed(what))
}
