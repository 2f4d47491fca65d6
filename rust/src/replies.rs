//! Replies of a server: the packets that lie in memory, and rows of what is in them.
//!
//! The Python reference is the law here too (`schemaless/wire/replies.py`): what these functions do not know they leave
//! where it is, and it decides and finds the words.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyInt, PyList, PyString, PyTuple};

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
}

/// Whether a packet ends a reply's columns or rows; a value that long takes more bytes.
fn is_end(packet: &[u8]) -> bool {
    packet[0] == END && packet.len() < LEAST_LONG_VALUE
}

/// Returns the packets that are here up to an end and with it, where the next one begins, and its number.
#[pyfunction]
#[pyo3(signature = (here, number, /))]
pub fn packets<'py>(here: &Bound<'py, PyBytes>, number: u8) -> PyResult<(Bound<'py, PyList>, usize, u8)> {
    let found = PyList::empty(here.py());
    let mut left = Packets { here: here.as_bytes(), at: 0, number };
    while let Some(packet) = left.peek() {
        found.append(PyBytes::new(here.py(), packet))?;
        left.skip(packet);
        if is_end(packet) {
            break;
        }
    }
    Ok((found, left.at, left.number))
}

/// What makes a column's values of their bytes.
enum Maker<'a, 'py> {
    Bytes,
    Int(&'a Bound<'py, PyAny>),
    Text(&'a Bound<'py, PyAny>),
    Call(&'a Bound<'py, PyAny>),
}

impl<'a, 'py> Maker<'a, 'py> {
    fn of(maker: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = maker.py();
        if maker.is_none() {
            return Ok(Maker::Bytes);
        }
        if maker.is(py.get_type::<PyInt>()) {
            return Ok(Maker::Int(maker));
        }
        let decode = DECODE.get_or_try_init(py, || py.get_type::<PyBytes>().getattr("decode").map(Bound::unbind))?;
        Ok(if maker.is(decode) { Maker::Text(maker) } else { Maker::Call(maker) })
    }

    fn make(&self, py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let call = match self {
            Maker::Bytes => return Ok(PyBytes::new(py, bytes).into_any()),
            Maker::Int(call) => match integer(bytes) {
                Some(value) => return Ok(value.into_pyobject(py)?.into_any()),
                None => call,
            },
            Maker::Text(call) => match std::str::from_utf8(bytes) {
                Ok(text) => return Ok(PyString::new(py, text).into_any()),
                Err(_) => call,
            },
            Maker::Call(call) => call,
        };
        call.call1((PyBytes::new(py, bytes),))
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
#[allow(clippy::type_complexity)]
pub fn rows<'py>(
    here: &Bound<'py, PyBytes>,
    number: u8,
    makers: Vec<Bound<'py, PyAny>>,
) -> PyResult<(Bound<'py, PyList>, Option<Bound<'py, PyBytes>>, usize, u8)> {
    let py = here.py();
    let makers = makers.iter().map(Maker::of).collect::<PyResult<Vec<_>>>()?;
    let found = PyList::empty(py);
    let mut values = Vec::with_capacity(makers.len());
    let mut left = Packets { here: here.as_bytes(), at: 0, number };
    'rows: while let Some(packet) = left.peek() {
        if is_end(packet) {
            left.skip(packet);
            return Ok((found, Some(PyBytes::new(py, packet)), left.at, left.number));
        }
        let mut row = packet;
        values.clear();
        for maker in &makers {
            match value(&mut row) {
                Some(Some(bytes)) => values.push(maker.make(py, bytes)?),
                Some(None) => values.push(py.None().into_bound(py)),
                None => break 'rows,
            }
        }
        if !row.is_empty() {
            break;
        }
        found.append(PyTuple::new(py, values.drain(..))?)?;
        left.skip(packet);
    }
    Ok((found, None, left.at, left.number))
}
