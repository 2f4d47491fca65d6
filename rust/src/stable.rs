//! What objects hold, asked for by calls of CPython's stable ABI. What `direct.rs` does where it knows CPython's layout.

use pyo3::ffi::{self, PyObject};

/// Returns a float's value.
///
/// # Safety
///
/// A live float.
#[inline]
pub unsafe fn float(object: *mut PyObject) -> f64 {
    // SAFETY: the call cannot fail for a float.
    unsafe { ffi::PyFloat_AsDouble(object) }
}

/// Returns an int's value, where it is told without a call.
///
/// # Safety
///
/// A live int.
#[inline]
pub unsafe fn short_int(_object: *mut PyObject) -> Option<i64> {
    None
}

/// Returns the bytes of a str, where they are ASCII and told without a call.
///
/// # Safety
///
/// A live str, which outlives what is returned.
#[inline]
pub unsafe fn ascii<'a>(_object: *mut PyObject) -> Option<&'a [u8]> {
    None
}

/// Makes a str of ASCII bytes: a new reference, or null with an error set.
///
/// # Safety
///
/// Bytes that are ASCII, and an interpreter that is held.
#[inline]
pub unsafe fn new_ascii(bytes: &[u8]) -> *mut PyObject {
    // SAFETY: as many bytes as are said.
    unsafe { ffi::PyUnicode_FromStringAndSize(bytes.as_ptr().cast(), bytes.len() as ffi::Py_ssize_t) }
}

/// Returns the elements of a list.
///
/// # Safety
///
/// A live list, which is not changed as long as the iterator lives.
#[inline]
pub unsafe fn elements(list: *mut PyObject) -> impl ExactSizeIterator<Item = *mut PyObject> {
    // SAFETY: as said above; a list's length fits.
    unsafe {
        (0..ffi::PyList_Size(list) as usize).map(move |index| ffi::PyList_GetItem(list, index as ffi::Py_ssize_t))
    }
}

/// Sets an element of a new list, and takes the reference over.
///
/// # Safety
///
/// A new list of more than `index` elements, and a reference that the caller owns.
#[inline]
pub unsafe fn set_element(list: *mut PyObject, index: usize, value: *mut PyObject) {
    // SAFETY: as said above, so it cannot fail.
    unsafe { ffi::PyList_SetItem(list, index as ffi::Py_ssize_t, value) };
}

/// Returns how many members a dict has.
///
/// # Safety
///
/// A live dict.
#[inline]
pub unsafe fn size(dict: *mut PyObject) -> usize {
    // SAFETY: as said above.
    unsafe { ffi::PyDict_Size(dict) as usize }
}

/// Returns where the table of a dict is, where that is told.
///
/// # Safety
///
/// A live dict.
pub unsafe fn table(_dict: *mut PyObject) -> *const u8 {
    std::ptr::null()
}

/// The members of a dict, in its order.
pub struct Members {
    dict: *mut PyObject,
    place: ffi::Py_ssize_t,
}

impl Members {
    /// Begins with the first.
    ///
    /// # Safety
    ///
    /// A live dict, which is not changed as long as the iterator lives.
    #[inline]
    pub unsafe fn new(dict: *mut PyObject) -> Self {
        Members { dict, place: 0 }
    }
}

impl Iterator for Members {
    type Item = (*mut PyObject, *mut PyObject);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live dict, not changed meanwhile.
        let found = unsafe { ffi::PyDict_Next(self.dict, &mut self.place, &mut key, &mut value) };
        (found != 0).then_some((key, value))
    }
}

/// Sets the value of a dict's `index`-th member, which was None, where that is done without a call; then it takes the
/// reference over.
///
/// # Safety
///
/// A live dict, and a reference that the caller owns.
#[inline]
pub unsafe fn replace(_dict: *mut PyObject, _index: usize, _value: *mut PyObject) -> bool {
    false
}
