//! The edge to CPython: what a value is, what it holds, and how one is made. All `unsafe` of the crate stands here.
//!
//! A `Value` is borrowed from the document that `pack` was given. That is sound because `pack` holds the interpreter from
//! its first to its last line and runs no Python code: it calls no method, hashes nothing, makes no object that is
//! tracked by the garbage collector. So nobody can change the document, and what it holds lives as long as it does.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};
use pyo3::{ffi, Borrowed};

use crate::refusal::{malformed, Refusal};

pub type Value<'a, 'py> = Borrowed<'a, 'py, PyAny>;
pub type Made<'py> = Bound<'py, PyAny>;

/// The longest integer that Python reads from text unless it is told otherwise.
pub const MAX_DIGITS: usize = 4300;

/// What a Python object is to a writer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Null,
    False,
    True,
    Int,
    Float,
    Text,
    Array,
    Object,
    Stranger,
}

/// Tells what `value` is: its exact type counts, so a subclass is a stranger.
#[inline]
pub fn class_of(value: Value<'_, '_>) -> Class {
    // SAFETY: the types and singletons are CPython's own statics; only their addresses are compared.
    unsafe {
        let object = value.as_ptr();
        let kind = ffi::Py_TYPE(object);
        if kind == &raw mut ffi::PyFloat_Type {
            Class::Float
        } else if kind == &raw mut ffi::PyUnicode_Type {
            Class::Text
        } else if kind == &raw mut ffi::PyLong_Type {
            Class::Int
        } else if kind == &raw mut ffi::PyDict_Type {
            Class::Object
        } else if kind == &raw mut ffi::PyList_Type {
            Class::Array
        } else if object == ffi::Py_None() {
            Class::Null
        } else if object == ffi::Py_True() {
            Class::True
        } else if object == ffi::Py_False() {
            Class::False
        } else {
            Class::Stranger
        }
    }
}

/// Returns a float's value. `value` is of class `Float`.
#[inline]
pub fn float_of(value: Value<'_, '_>) -> f64 {
    debug_assert!(class_of(value) == Class::Float);
    // SAFETY: a live float; the call cannot fail for one.
    unsafe { ffi::PyFloat_AsDouble(value.as_ptr()) }
}

/// Returns an int's value, or None beyond 64 bits. `value` is of class `Int`.
#[inline]
pub fn int_of(value: Value<'_, '_>) -> Option<i64> {
    debug_assert!(class_of(value) == Class::Int);
    let mut overflow = 0;
    // SAFETY: a live int; the call sets no error for one, and tells of an overflow in its argument.
    let held = unsafe { ffi::PyLong_AsLongLongAndOverflow(value.as_ptr(), &mut overflow) };
    (overflow == 0).then_some(held)
}

/// Returns a str as UTF-8, or None where it holds a lone surrogate.
#[inline]
pub fn text_of<'a>(value: Value<'a, '_>) -> Option<&'a str> {
    if class_of(value) != Class::Text {
        return None;
    }
    let mut length = 0;
    // SAFETY: a live str; the bytes are its own or kept with it, are UTF-8 and live as long as it does.
    unsafe {
        let start = ffi::PyUnicode_AsUTF8AndSize(value.as_ptr(), &mut length);
        if start.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        Some(std::str::from_utf8_unchecked(std::slice::from_raw_parts(start.cast(), length as usize)))
    }
}

/// Pushes the elements of a list. `list` is of class `Array`.
#[inline]
pub fn elements<'a, 'py>(list: Value<'a, 'py>, to: &mut Vec<Value<'a, 'py>>) -> usize {
    debug_assert!(class_of(list) == Class::Array);
    // SAFETY: a live list, not changed meanwhile; it keeps its elements alive.
    unsafe {
        let length = ffi::PyList_Size(list.as_ptr());
        to.reserve(length as usize);
        for index in 0..length {
            to.push(Borrowed::from_ptr(list.py(), ffi::PyList_GetItem(list.as_ptr(), index)));
        }
        length as usize
    }
}

/// The members of a dict, in its order.
pub struct Members<'a, 'py> {
    dict: Value<'a, 'py>,
    place: ffi::Py_ssize_t,
}

/// Returns an iterator over the members of a dict. `dict` is of class `Object`.
#[inline]
pub fn members<'a, 'py>(dict: Value<'a, 'py>) -> Members<'a, 'py> {
    debug_assert!(class_of(dict) == Class::Object);
    Members { dict, place: 0 }
}

impl<'a, 'py> Iterator for Members<'a, 'py> {
    type Item = (Value<'a, 'py>, Value<'a, 'py>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live dict, not changed meanwhile; it keeps its keys and values alive.
        unsafe {
            if ffi::PyDict_Next(self.dict.as_ptr(), &mut self.place, &mut key, &mut value) == 0 {
                return None;
            }
            let py = self.dict.py();
            Some((Borrowed::from_ptr(py, key), Borrowed::from_ptr(py, value)))
        }
    }
}

/// Returns how many members a dict has. `dict` is of class `Object`.
#[inline]
pub fn size_of(dict: Value<'_, '_>) -> usize {
    debug_assert!(class_of(dict) == Class::Object);
    // SAFETY: a live dict.
    unsafe { ffi::PyDict_Size(dict.as_ptr()) as usize }
}

/// Takes over a new reference; there is none where CPython has set an error.
///
/// # Safety
///
/// `made` is what a function of CPython's gave that returns a new reference, or null with an error set.
#[inline]
unsafe fn owned(py: Python<'_>, made: *mut ffi::PyObject) -> Result<Made<'_>, Refusal> {
    // SAFETY: as said above.
    unsafe { Bound::from_owned_ptr_or_opt(py, made) }.ok_or(Refusal::Python)
}

/// Returns None.
#[inline]
pub fn new_null(py: Python<'_>) -> Made<'_> {
    py.None().into_bound(py)
}

/// Returns one of the two booleans.
#[inline]
pub fn new_bool(py: Python<'_>, value: bool) -> Made<'_> {
    PyBool::new(py, value).to_owned().into_any()
}

/// Makes an int.
#[inline]
pub fn new_int(py: Python<'_>, value: i64) -> Result<Made<'_>, Refusal> {
    // SAFETY: a new reference, or null with an error set.
    unsafe { owned(py, ffi::PyLong_FromLongLong(value)) }
}

/// Makes a float.
#[inline]
pub fn new_float(py: Python<'_>, value: f64) -> Result<Made<'_>, Refusal> {
    // SAFETY: a new reference, or null with an error set.
    unsafe { owned(py, ffi::PyFloat_FromDouble(value)) }
}

/// Makes a str; refuses what is not UTF-8.
#[inline]
pub fn new_text<'py>(py: Python<'py>, bytes: &[u8]) -> Result<Made<'py>, Refusal> {
    // SAFETY: as many bytes as are said; a new reference, or null with an error set.
    unsafe {
        let length = bytes.len() as ffi::Py_ssize_t;
        owned(py, ffi::PyUnicode_DecodeUTF8(bytes.as_ptr().cast(), length, std::ptr::null())).or_else(|_| {
            ffi::PyErr_Clear();
            malformed(&"text that is not UTF-8")
        })
    }
}

/// Makes a key; refuses what is not UTF-8.
pub fn new_key(py: Python<'_>, bytes: &[u8]) -> Result<Py<PyString>, Refusal> {
    let key = new_text(py, bytes)?;
    // SAFETY: PyUnicode_DecodeUTF8 makes exact strings.
    Ok(unsafe { key.cast_into_unchecked::<PyString>() }.unbind())
}

/// Makes a list of the next `length` of `values`; they are that many.
#[inline]
pub fn new_list<'py>(
    py: Python<'py>,
    length: usize,
    values: &mut impl Iterator<Item = Made<'py>>,
) -> Result<Made<'py>, Refusal> {
    // SAFETY: nothing runs between making the list and filling it, so nobody sees it before; a place that stays null is
    // what CPython's own deallocation expects. SetItem takes the reference over.
    unsafe {
        let list = owned(py, ffi::PyList_New(length as ffi::Py_ssize_t))?;
        for (index, value) in values.take(length).enumerate() {
            if ffi::PyList_SetItem(list.as_ptr(), index as ffi::Py_ssize_t, value.into_ptr()) != 0 {
                return Err(Refusal::Python);
            }
        }
        Ok(list)
    }
}

/// Makes an empty dict.
pub fn new_dict(py: Python<'_>) -> Bound<'_, PyDict> {
    PyDict::new(py)
}

/// Makes a dict with the keys of another one, whose values are all None: theirs are to be set.
#[inline]
pub fn new_like<'py>(py: Python<'py>, template: &Py<PyDict>) -> Result<Bound<'py, PyDict>, Refusal> {
    // SAFETY: a live dict; a new reference to a dict, or null with an error set.
    unsafe { owned(py, ffi::PyDict_Copy(template.as_ptr())).map(|made| made.cast_into_unchecked()) }
}

/// Sets a member of a dict that this crate made, with a key of its own: an exact str, whose hash runs no Python code.
#[inline]
pub fn set_member(dict: &Bound<'_, PyDict>, key: &Py<PyString>, value: &Made<'_>) -> Result<(), Refusal> {
    // SAFETY: three live objects, of which the first is a dict.
    match unsafe { ffi::PyDict_SetItem(dict.as_ptr(), key.as_ptr(), value.as_ptr()) } {
        0 => Ok(()),
        _ => Err(Refusal::Python),
    }
}

/// Makes a str of ASCII bytes that this crate wrote.
#[inline]
pub fn new_ascii<'py>(py: Python<'py>, bytes: &[u8]) -> Result<Made<'py>, Refusal> {
    debug_assert!(bytes.is_ascii());
    // SAFETY: as many bytes as are said; a new reference, or null with an error set.
    unsafe { owned(py, ffi::PyUnicode_FromStringAndSize(bytes.as_ptr().cast(), bytes.len() as ffi::Py_ssize_t)) }
}

/// Makes an int beyond 64 bits of its digits; refuses what are not those of one.
pub fn new_bigint<'py>(py: Python<'py>, digits: &[u8]) -> Result<Made<'py>, Refusal> {
    let unsigned = digits.strip_prefix(b"-").unwrap_or(digits);
    let is_spelled = (19..=MAX_DIGITS).contains(&unsigned.len()) && unsigned.iter().all(u8::is_ascii_digit);
    if let (true, false, Ok(text)) = (is_spelled, unsigned.starts_with(b"0"), std::ffi::CString::new(digits)) {
        // SAFETY: text that ends with a zero; a new reference, or null with an error set.
        let int = unsafe { owned(py, ffi::PyLong_FromString(text.as_ptr(), std::ptr::null_mut(), 10)) }?;
        if int_of(int.as_borrowed()).is_none() {
            return Ok(int);
        }
    }
    malformed(&"not an integer beyond 64 bits")
}

/// Returns the digits of an int, or None where Python will not write so many. `value` is of class `Int`.
pub fn digits_of(value: Value<'_, '_>) -> Option<String> {
    debug_assert!(class_of(value) == Class::Int);
    // SAFETY: a live int, whose text is made without any Python code; a new reference, or null with an error set.
    let digits = unsafe { owned(value.py(), ffi::PyNumber_ToBase(value.as_ptr(), 10)) };
    match digits {
        Ok(digits) => text_of(digits.as_borrowed()).map(str::to_owned),
        Err(_) => {
            // SAFETY: the interpreter is held.
            unsafe { ffi::PyErr_Clear() };
            None
        }
    }
}
