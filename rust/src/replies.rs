//! Replies of a server: the packets that lie in memory, and rows of what is in them.
//!
//! The Python reference is the law here too (`schemaless/wire/replies.py`): what these functions do not know they leave
//! where it is, and it decides and finds the words.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyInt, PyList};

use crate::memory::with_room;
use crate::py::{self, Made};
use crate::refusal::Refusal;

const HEADER: usize = 4;
const MOST_PIECE: usize = 0xFF_FFFF;
const NULL: u8 = 0xFB;
const END: u8 = 0xFE;
const ERROR: u8 = 0xFF;
const LEAST_LONG_VALUE: usize = 9;
/// So many digits are an integer of 64 bits, whichever they are.
const SURE_DIGITS: usize = 18;

/// Packets as they lie in memory, up to the first one that is not whole, or an error, or numbered otherwise.
struct Packets<'a> {
    here: &'a [u8],
    at: usize,
    number: u8,
}

impl<'a> Packets<'a> {
    /// Returns what is in the next packet; it stays the next one.
    fn peek(&self) -> Option<&'a [u8]> {
        let (header, rest) = self.here.get(self.at..)?.split_first_chunk::<HEADER>()?;
        let [low, middle, high, number] = *header;
        let length = u32::from_le_bytes([low, middle, high, 0]) as usize;
        let packet = rest.get(..length)?;
        (number == self.number && length < MOST_PIECE && !matches!(packet.first(), None | Some(&ERROR)))
            .then_some(packet)
    }

    /// Goes on behind a packet that `peek` gave.
    fn skip(&mut self, packet: &[u8]) {
        self.at += HEADER + packet.len();
        self.number = self.number.wrapping_add(1);
    }

    /// Returns a result tuple: the list found, `more`, and the offset and number of the next packet.
    fn told<'py, const MORE: usize>(
        &self,
        py: Python<'py>,
        found: Bound<'py, PyList>,
        more: [Made<'py>; MORE],
    ) -> Result<Made<'py>, Refusal> {
        let mut told = with_room(3 + MORE)?;
        told.push(found.into_any());
        told.extend(more);
        told.push(py::new_int(py, self.at as i64)?);
        told.push(py::new_int(py, self.number.into())?);
        py::new_tuple(py, told.into_iter())
    }
}

/// Whether a packet ends a reply's columns or rows; a value that long takes more bytes.
fn is_end(packet: &[u8]) -> bool {
    packet[0] == END && packet.len() < LEAST_LONG_VALUE
}

/// Returns the packets that are here up to an end and with it, where the next one begins, and its number.
#[pyfunction]
#[pyo3(signature = (here, number, /))]
pub fn packets<'py>(here: &Bound<'py, PyBytes>, number: u8) -> PyResult<Bound<'py, PyAny>> {
    let py = here.py();
    packets_in(py, here.as_bytes(), number).map_err(|refusal| refusal.raised(py))
}

fn packets_in<'py>(py: Python<'py>, here: &[u8], number: u8) -> Result<Made<'py>, Refusal> {
    let found = py::new_empty_list(py)?;
    let mut left = Packets { here, at: 0, number };
    while let Some(packet) = left.peek() {
        py::append(&found, &py::new_bytes(py, packet)?)?;
        left.skip(packet);
        if is_end(packet) {
            break;
        }
    }
    left.told(py, found, [])
}

/// What makes a column's values of their bytes.
enum Maker<'py> {
    Bytes,
    Int(Bound<'py, PyAny>),
    Text(Bound<'py, PyAny>),
    Call(Bound<'py, PyAny>),
}

/// `bytes.decode`: a maker whose results are known without a call.
static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Looks up `bytes.decode` at import: a lookup that fails later would have to be handled by each call.
pub fn prepare(py: Python<'_>) -> PyResult<()> {
    DECODE.get_or_try_init(py, || py.get_type::<PyBytes>().getattr("decode").map(Bound::unbind)).map(|_| ())
}

impl<'py> Maker<'py> {
    fn of(maker: Bound<'py, PyAny>) -> Self {
        let py = maker.py();
        if maker.is_none() {
            Maker::Bytes
        } else if maker.is(py.get_type::<PyInt>()) {
            Maker::Int(maker)
        } else if DECODE.get(py).is_some_and(|decode| maker.is(decode)) {
            Maker::Text(maker)
        } else {
            Maker::Call(maker)
        }
    }

    fn make(&self, py: Python<'py>, bytes: &[u8]) -> Result<Made<'py>, Refusal> {
        let callable = match self {
            Maker::Bytes => return py::new_bytes(py, bytes),
            Maker::Int(callable) => match integer(bytes) {
                Some(value) => return py::new_int(py, value),
                None => callable,
            },
            Maker::Text(callable) => match py::new_text(py, bytes) {
                Err(Refusal::Malformed(_)) => callable,
                made => return made,
            },
            Maker::Call(callable) => callable,
        };
        py::call(callable, &py::new_bytes(py, bytes)?)
    }
}

/// Returns the integer that digits spell; None where Python has to tell.
fn integer(bytes: &[u8]) -> Option<i64> {
    let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
    if digits.is_empty() || digits.len() > SURE_DIGITS {
        return None;
    }
    let mut value = 0;
    for digit in digits {
        value = 10 * value + i64::from(digit.is_ascii_digit().then(|| digit - b'0')?);
    }
    Some(if digits.len() < bytes.len() { -value } else { value })
}

/// Takes the bytes of a row's next value; `Some(None)` is NULL, and None is no value.
fn value<'a>(row: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let (&first, mut rest) = row.split_first()?;
    let length = match first {
        NULL => {
            *row = rest;
            return Some(None);
        }
        ERROR => return None,
        // Of 0xFC, 0xFD and 0xFE, the length stands in 2, 3 and 8 bytes behind it.
        0xFC.. => {
            let (bytes, behind) = rest.split_at_checked([2, 3, 8][usize::from(first - 0xFC)])?;
            rest = behind;
            let mut length = [0; 8];
            length[..bytes.len()].copy_from_slice(bytes);
            usize::try_from(u64::from_le_bytes(length)).ok()?
        }
        short => usize::from(short),
    };
    let (bytes, behind) = rest.split_at_checked(length)?;
    *row = behind;
    Some(Some(bytes))
}

/// Returns the rows that are here up to an end, the packet of that, where the next packet begins, and its number.
#[pyfunction]
#[pyo3(signature = (here, number, makers, /))]
pub fn rows<'py>(here: &Bound<'py, PyBytes>, number: u8, makers: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = here.py();
    rows_in(py, here.as_bytes(), number, makers).map_err(|refusal| refusal.raised(py))
}

fn rows_in<'py>(py: Python<'py>, here: &[u8], number: u8, makers: &Bound<'py, PyAny>) -> Result<Made<'py>, Refusal> {
    let Ok(listed) = makers.cast_exact::<PyList>() else {
        return Err(Refusal::WrongType(&c"makers have to be a list"));
    };
    // A copy, as calling one of them may change the list.
    let mut makers = with_room(listed.len())?;
    for index in 0..listed.len() {
        makers.push(Maker::of(py::element(listed, index)?));
    }
    let found = py::new_empty_list(py)?;
    let mut values = with_room(makers.len())?;
    let mut left = Packets { here, at: 0, number };
    'rows: while let Some(packet) = left.peek() {
        if is_end(packet) {
            left.skip(packet);
            return left.told(py, found, [py::new_bytes(py, packet)?]);
        }
        let mut row = packet;
        values.clear();
        for maker in &makers {
            match value(&mut row) {
                Some(Some(bytes)) => values.push(maker.make(py, bytes)?),
                Some(None) => values.push(py::new_null(py)),
                None => break 'rows,
            }
        }
        if !row.is_empty() {
            break;
        }
        py::append(&found, &py::new_tuple(py, values.drain(..))?)?;
        left.skip(packet);
    }
    left.told(py, found, [py::new_null(py)])
}
