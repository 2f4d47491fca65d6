//! The edge to CPython: what a value is, what it holds, and how one is made. All `unsafe` of the crate stands here and in
//! `access`, which is `direct.rs` where CPython's layout is known, and `stable.rs` elsewhere.
//!
//! A `Value` is borrowed from the document that `pack` was given. That is sound because `pack` holds the interpreter from
//! its first to its last line and runs no Python code: it calls no method, hashes nothing, makes no object that is
//! tracked by the garbage collector. So nobody can change the document, and what it holds lives as long as it does.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyDict, PyFloat, PyList, PyString};
use pyo3::{ffi, Borrowed};

use crate::access;
use crate::memory::{copied, reserve, with_room};
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
    // SAFETY: a live float.
    unsafe { access::float(value.as_ptr()) }
}

/// Returns an int's value, or None beyond 64 bits. `value` is of class `Int`.
#[inline]
pub fn int_of(value: Value<'_, '_>) -> Option<i64> {
    debug_assert!(class_of(value) == Class::Int);
    // SAFETY: a live int.
    unsafe { access::short_int(value.as_ptr()) }.or_else(|| long_int_of(value))
}

#[inline(never)]
fn long_int_of(value: Value<'_, '_>) -> Option<i64> {
    let mut overflow = 0;
    // SAFETY: a live int; the call sets no error for one, and tells of an overflow in its argument.
    let held = unsafe { ffi::PyLong_AsLongLongAndOverflow(value.as_ptr(), &mut overflow) };
    (overflow == 0).then_some(held)
}

/// Returns a str as UTF-8; anything else, or a lone surrogate in it, is not held.
#[inline]
pub fn text_of<'a>(value: Value<'a, '_>) -> Result<&'a str, Refusal> {
    if class_of(value) != Class::Text {
        return Err(Refusal::NotHeld);
    }
    // SAFETY: a live str; ASCII is UTF-8.
    match unsafe { access::ascii(value.as_ptr()) } {
        Some(ascii) => Ok(unsafe { std::str::from_utf8_unchecked(ascii) }),
        None => utf8_of(value),
    }
}

#[inline(never)]
fn utf8_of<'a>(value: Value<'a, '_>) -> Result<&'a str, Refusal> {
    let mut length = 0;
    // SAFETY: a live str; the bytes are its own or kept with it, are UTF-8 and live as long as it does.
    unsafe {
        let start = ffi::PyUnicode_AsUTF8AndSize(value.as_ptr(), &mut length);
        if start.is_null() {
            return Err(unless_no_memory(Refusal::NotHeld));
        }
        Ok(std::str::from_utf8_unchecked(std::slice::from_raw_parts(start.cast(), length as usize)))
    }
}

/// Tells a `MemoryError` from a refusal of CPython's: keeps the former, and clears the latter in favour of `refusal`.
#[cold]
fn unless_no_memory(refusal: Refusal) -> Refusal {
    // SAFETY: the interpreter is held, and an error is set.
    unsafe {
        if ffi::PyErr_ExceptionMatches(ffi::PyExc_MemoryError) != 0 {
            return Refusal::Python;
        }
        ffi::PyErr_Clear();
    }
    refusal
}

/// Tells the processor that something is looked at soon: what was not touched lately is far from it.
#[inline]
pub fn soon<T>(address: *const T) {
    // SAFETY: every x86-64 has the instruction, which changes nothing and may be given any address.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Pushes the elements of a list, and returns how many they are. `list` is of class `Array`.
#[inline]
pub fn elements<'a, 'py>(list: Value<'a, 'py>, to: &mut Vec<Value<'a, 'py>>) -> Result<usize, Refusal> {
    debug_assert!(class_of(list) == Class::Array);
    // SAFETY: a live list, not changed meanwhile; it keeps its elements alive.
    unsafe {
        let elements = access::elements(list.as_ptr());
        let length = elements.len();
        reserve(to, length)?;
        to.extend(elements.map(|each| {
            soon(each);
            Borrowed::from_ptr(list.py(), each)
        }));
        Ok(length)
    }
}

/// Returns the members of a dict, in its order. `dict` is of class `Object`.
#[inline]
pub fn members<'a, 'py>(dict: Value<'a, 'py>) -> impl Iterator<Item = (Value<'a, 'py>, Value<'a, 'py>)> {
    debug_assert!(class_of(dict) == Class::Object);
    let py = dict.py();
    // SAFETY: a live dict, not changed meanwhile; it keeps its keys and values alive.
    unsafe {
        access::Members::new(dict.as_ptr()).map(move |(key, value)| {
            soon(value);
            (Borrowed::from_ptr(py, key), Borrowed::from_ptr(py, value))
        })
    }
}

/// Returns how many members a dict has. `dict` is of class `Object`.
#[inline]
pub fn size_of(dict: Value<'_, '_>) -> usize {
    debug_assert!(class_of(dict) == Class::Object);
    // SAFETY: a live dict.
    unsafe { access::size(dict.as_ptr()) }
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

/// Makes bytes.
#[inline]
pub fn new_bytes<'py>(py: Python<'py>, bytes: &[u8]) -> Result<Made<'py>, Refusal> {
    // SAFETY: as many bytes as are said; a new reference, or null with an error set.
    unsafe { owned(py, ffi::PyBytes_FromStringAndSize(bytes.as_ptr().cast(), bytes.len() as ffi::Py_ssize_t)) }
}

/// Makes bytes of some parts, one behind the other.
pub fn joined<'py>(py: Python<'py>, parts: &[&[u8]]) -> Result<Made<'py>, Refusal> {
    let length = parts.iter().map(|part| part.len()).sum::<usize>();
    // SAFETY: a new reference, or null with an error set; there is room for as many bytes as all parts have, which nobody
    // reads before they are there.
    unsafe {
        let made = owned(py, ffi::PyBytes_FromStringAndSize(std::ptr::null(), length as ffi::Py_ssize_t))?;
        let mut to = ffi::PyBytes_AsString(made.as_ptr()).cast::<u8>();
        for part in parts {
            to.copy_from_nonoverlapping(part.as_ptr(), part.len());
            to = to.add(part.len());
        }
        Ok(made)
    }
}

/// Copies the bytes of a bytearray.
pub fn copy_of(bytes: &Bound<'_, PyByteArray>) -> Result<Vec<u8>, Refusal> {
    // SAFETY: nothing runs that could change or resize it, as the interpreter is held until the copy is made.
    copied(unsafe { bytes.as_bytes() })
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
    // CPython has the shortest ones already.
    if bytes.len() > 1 && bytes.is_ascii() {
        return new_ascii(py, bytes);
    }
    decoded(py, bytes)
}

#[inline(never)]
fn decoded<'py>(py: Python<'py>, bytes: &[u8]) -> Result<Made<'py>, Refusal> {
    // SAFETY: as many bytes as are said; a new reference, or null with an error set.
    unsafe {
        let length = bytes.len() as ffi::Py_ssize_t;
        owned(py, ffi::PyUnicode_DecodeUTF8(bytes.as_ptr().cast(), length, std::ptr::null()))
            .map_err(|_| unless_no_memory(Refusal::Malformed(&c"text that is not UTF-8")))
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
    // what CPython's own deallocation expects.
    unsafe {
        let list = owned(py, ffi::PyList_New(length as ffi::Py_ssize_t))?;
        for (index, value) in values.take(length).enumerate() {
            access::set_element(list.as_ptr(), index, value.into_ptr());
        }
        Ok(list)
    }
}

/// Makes an empty dict.
pub fn new_dict(py: Python<'_>) -> Result<Bound<'_, PyDict>, Refusal> {
    // SAFETY: a new reference to a dict, or null with an error set.
    unsafe { owned(py, ffi::PyDict_New()).map(|made| made.cast_into_unchecked()) }
}

/// Makes a dict with the keys of another one, whose values are all None: theirs are to be set.
#[inline]
pub fn new_like<'py>(py: Python<'py>, template: &Py<PyDict>) -> Result<Bound<'py, PyDict>, Refusal> {
    // SAFETY: a live dict; a new reference to a dict, or null with an error set.
    unsafe { owned(py, ffi::PyDict_Copy(template.as_ptr())).map(|made| made.cast_into_unchecked()) }
}

/// Returns where a dict is, and where its table is, or 0 where that is not told.
pub fn addresses(dict: &Py<PyDict>) -> [usize; 2] {
    // SAFETY: a live dict.
    [dict.as_ptr() as usize, unsafe { access::table(dict.as_ptr()) } as usize]
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

/// Sets the member of a dict from `new_like` that is its `index`-th, and has this key.
#[inline]
pub fn replace_member<'k>(
    dict: &Bound<'_, PyDict>,
    index: usize,
    value: Made<'_>,
    key: impl FnOnce() -> &'k Py<PyString>,
) -> Result<(), Refusal> {
    // SAFETY: live objects, of which the first is a dict; the value's reference is given away where it is taken.
    unsafe {
        if access::replace(dict.as_ptr(), index, value.as_ptr()) {
            value.into_ptr();
            return Ok(());
        }
    }
    set_member(dict, key(), &value)
}

/// Whether `access` tells of samples what CPython itself does: a Python may be built in its own way.
pub fn is_as_expected(py: Python<'_>) -> PyResult<bool> {
    let digit = 1i64 << 30;
    for held in [0, 1, -1, digit - 1, digit, -digit, digit * digit - 1, 1 - digit * digit, digit * digit, i64::MIN] {
        let int = held.into_pyobject(py)?.into_any();
        if int_of(int.as_borrowed()) != Some(held) || long_int_of(int.as_borrowed()) != Some(held) {
            return Ok(false);
        }
    }
    let dict = PyDict::new(py);
    for (key, value) in [("gone", "none"), ("first", "ASCII"), ("second", "caf\u{e9}")] {
        dict.set_item(key, value)?;
    }
    dict.del_item("gone")?;
    let told = |dict: &Bound<'_, PyDict>| {
        members(dict.as_any().as_borrowed())
            .map(|(key, value)| Some((text_of(key).ok()?.to_owned(), text_of(value).ok()?.to_owned())))
            .collect::<Option<Vec<_>>>()
    };
    let expected =
        dict.iter().map(|(key, value)| Ok((key.extract()?, value.extract()?))).collect::<PyResult<Vec<_>>>()?;
    let of_strings = told(&dict);
    // A table that has held another key keeps the hashes too.
    dict.set_item(1, "")?;
    dict.del_item(1)?;
    let list = PyList::new(py, [1.5, -0.0])?;
    let mut floats = Vec::new();
    if elements(list.as_any().as_borrowed(), &mut floats).is_err() {
        return Ok(false);
    }
    let floats: Vec<f64> = floats.into_iter().map(float_of).collect();
    Ok(makes_strings(py)?
        && fills_templates(py)?
        && of_strings.as_ref() == Some(&expected)
        && told(&dict) == of_strings
        && size_of(dict.as_any().as_borrowed()) == 2
        && floats == [1.5, -0.0])
}

/// Whether `access` makes and reads ASCII strings as CPython does.
fn makes_strings(py: Python<'_>) -> PyResult<bool> {
    for length in [0, 1, 2, 7, 8, 9, 100, 5000] {
        let text: String = ('!'..='~').cycle().take(length).collect();
        let Ok(made) = new_ascii(py, text.as_bytes()) else {
            return Ok(false);
        };
        let expected = PyString::new(py, &text);
        let is_same = made.eq(&expected)? && made.hash()? == expected.hash()? && made.len()? == length;
        if !is_same || made.extract::<String>()? != text || text_of(made.as_borrowed()).ok() != Some(text.as_str()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether `access` replaces the members of copied dicts where CPython finds them, with the reference counts and the
/// tracking by the garbage collector that CPython expects; with index tables of one and two bytes an entry.
fn fills_templates(py: Python<'_>) -> PyResult<bool> {
    for size in [1usize, 5, 6, 100, 300] {
        let template = PyDict::new(py);
        let keys: Vec<Py<PyString>> = (0..size).map(|number| PyString::new(py, &number.to_string()).unbind()).collect();
        for key in &keys {
            template.set_item(key, py.None())?;
        }
        let template = template.unbind();
        let Ok(object) = new_like(py, &template) else {
            return Ok(false);
        };
        // The last value is a list, so that the dict has to be tracked by the garbage collector.
        let values: Vec<Made<'_>> = (0..size)
            .map(|number| match number + 1 == size {
                true => PyList::empty(py).into_any(),
                false => PyFloat::new(py, number as f64).into_any(),
            })
            .collect();
        for (index, value) in values.iter().enumerate() {
            if replace_member(&object, index, value.clone(), || &keys[index]).is_err() {
                return Ok(false);
            }
        }
        let is_held = values.iter().all(|value| owners(value) == 2);
        let is_there = object.len() == size
            && object
                .iter()
                .zip(&keys)
                .zip(&values)
                .all(|((member, key), value)| member.0.is(key) && member.1.is(value));
        // SAFETY: a live dict.
        let is_tracked = unsafe { ffi::PyObject_GC_IsTracked(object.as_ptr()) } == 1;
        let is_untouched = template.bind(py).iter().all(|(_, value)| value.is_none());
        drop(object);
        if !(is_held && is_there && is_tracked && is_untouched && values.iter().all(|value| owners(value) == 1)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn owners(value: &Made<'_>) -> isize {
    // SAFETY: a live object.
    unsafe { ffi::Py_REFCNT(value.as_ptr()) as isize }
}

/// Makes a str of ASCII bytes.
#[inline]
pub fn new_ascii<'py>(py: Python<'py>, bytes: &[u8]) -> Result<Made<'py>, Refusal> {
    debug_assert!(bytes.is_ascii());
    // SAFETY: ASCII; a new reference, or null with an error set.
    unsafe { owned(py, access::new_ascii(bytes)) }
}

/// Makes an int beyond 64 bits of its digits; refuses what are not those of one.
pub fn new_bigint<'py>(py: Python<'py>, digits: &[u8]) -> Result<Made<'py>, Refusal> {
    let unsigned = digits.strip_prefix(b"-").unwrap_or(digits);
    let is_spelled = (19..=MAX_DIGITS).contains(&unsigned.len()) && unsigned.iter().all(u8::is_ascii_digit);
    if is_spelled && !unsigned.starts_with(b"0") {
        let mut text = with_room(digits.len() + 1)?;
        text.extend_from_slice(digits);
        text.push(0);
        // SAFETY: text that ends with a zero; a new reference, or null with an error set.
        let int = unsafe { owned(py, ffi::PyLong_FromString(text.as_ptr().cast(), std::ptr::null_mut(), 10)) }?;
        if int_of(int.as_borrowed()).is_none() {
            return Ok(int);
        }
    }
    malformed(&c"not an integer beyond 64 bits")
}

/// Returns the digits of an int as a str; more than Python writes are not held. `value` is of class `Int`.
pub fn digits_of<'py>(value: Value<'_, 'py>) -> Result<Made<'py>, Refusal> {
    debug_assert!(class_of(value) == Class::Int);
    // SAFETY: a live int, whose text is made without any Python code; a new reference, or null with an error set.
    unsafe { owned(value.py(), ffi::PyNumber_ToBase(value.as_ptr(), 10)) }
        .map_err(|_| unless_no_memory(Refusal::NotHeld))
}

/// Makes an empty list, to be appended to.
pub fn new_empty_list(py: Python<'_>) -> Result<Bound<'_, PyList>, Refusal> {
    // SAFETY: a new reference to a list, or null with an error set.
    unsafe { owned(py, ffi::PyList_New(0)).map(|made| made.cast_into_unchecked()) }
}

/// Returns an element of a list, which has that many.
#[inline]
pub fn element<'py>(list: &Bound<'py, PyList>, index: usize) -> Result<Made<'py>, Refusal> {
    // SAFETY: a live list; a borrowed reference, which becomes one of ours at once, or null with an error set.
    unsafe {
        let found = ffi::PyList_GetItem(list.as_ptr(), index as ffi::Py_ssize_t);
        Bound::from_borrowed_ptr_or_opt(list.py(), found).ok_or(Refusal::Python)
    }
}

/// Appends to a list that this crate made.
#[inline]
pub fn append(list: &Bound<'_, PyList>, value: &Made<'_>) -> Result<(), Refusal> {
    // SAFETY: live objects, of which the first is a list.
    match unsafe { ffi::PyList_Append(list.as_ptr(), value.as_ptr()) } {
        0 => Ok(()),
        _ => Err(Refusal::Python),
    }
}

/// Makes a tuple of values.
#[inline]
pub fn new_tuple<'py>(py: Python<'py>, values: impl ExactSizeIterator<Item = Made<'py>>) -> Result<Made<'py>, Refusal> {
    // SAFETY: a new tuple with a place for each value; a place that stays null is what CPython's deallocation expects.
    unsafe {
        let tuple = owned(py, ffi::PyTuple_New(values.len() as ffi::Py_ssize_t))?;
        for (index, value) in values.enumerate() {
            ffi::PyTuple_SetItem(tuple.as_ptr(), index as ffi::Py_ssize_t, value.into_ptr());
        }
        Ok(tuple)
    }
}

/// Calls with one argument.
#[inline]
pub fn call<'py>(callable: &Bound<'py, PyAny>, argument: &Made<'py>) -> Result<Made<'py>, Refusal> {
    let end = std::ptr::null_mut::<ffi::PyObject>();
    // SAFETY: live objects, and null behind the last; a new reference, or null with an error set.
    unsafe { owned(callable.py(), ffi::PyObject_CallFunctionObjArgs(callable.as_ptr(), argument.as_ptr(), end)) }
}

/// A value with one user at a time; like a `Mutex` whose `try_lock` is all that is needed.
pub struct Reserved<T> {
    is_taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the flag lets one user at a time reach the value, so it moves between threads and is never shared.
unsafe impl<T: Send> Sync for Reserved<T> {}

impl<T> Reserved<T> {
    pub const fn new(value: T) -> Self {
        Reserved { is_taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Returns access to the value, which ends with the guard; None while another user has it.
    #[inline]
    pub fn take(&self, _held: Python<'_>) -> Option<Taken<'_, T>> {
        // `direct.rs` is for builds with a GIL: holding it excludes other threads, so no locked instruction is needed.
        let was_taken = match cfg!(direct) {
            true => self.is_taken.load(Ordering::Relaxed),
            false => self.is_taken.swap(true, Ordering::Acquire),
        };
        if was_taken {
            return None;
        }
        self.is_taken.store(true, Ordering::Relaxed);
        Some(Taken(self))
    }
}

pub struct Taken<'a, T>(&'a Reserved<T>);

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Taken<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one guard at a time.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Taken<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
    }
}
