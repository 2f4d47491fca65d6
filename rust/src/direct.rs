//! What objects hold, read where CPython keeps it: its headers' macros, and the layout of its dicts, which `build.rs` has
//! looked up for these versions (`Include/internal/pycore_dict.h`). `py::is_as_expected` compares it with the calls.

use pyo3::ffi::{self, PyObject};

/// Returns a float's value.
///
/// # Safety
///
/// A live float.
#[inline]
pub unsafe fn float(object: *mut PyObject) -> f64 {
    // SAFETY: as said above.
    unsafe { ffi::PyFloat_AS_DOUBLE(object) }
}

/// An int: how many digits of 30 bits it has, and which sign; then they, the lowest first.
#[repr(C)]
struct Long {
    ob_base: PyObject,
    size: isize,
    digits: [u32; 2],
}

/// Returns an int's value, unless it has more than 60 bits.
///
/// # Safety
///
/// A live int.
#[inline]
pub unsafe fn short_int(object: *mut PyObject) -> Option<i64> {
    let long = object.cast::<Long>();
    // SAFETY: as said above; a digit is read only where there is one.
    unsafe {
        let size = (*long).size;
        #[cfg(tagged_ints)]
        let (digits, sign) = (size >> 3, 1 - (size as i64 & 3));
        #[cfg(not(tagged_ints))]
        let (digits, sign) = (size.abs(), size.signum() as i64);
        match digits {
            0 => Some(0),
            1 => Some(sign * i64::from((&raw const (*long).digits).cast::<u32>().read())),
            2 => {
                let [low, high] = (*long).digits;
                Some(sign * (i64::from(high) << 30 | i64::from(low)))
            }
            _ => None,
        }
    }
}

/// Returns the bytes of a str, where they are ASCII.
///
/// # Safety
///
/// A live str, which outlives what is returned.
#[inline]
pub unsafe fn ascii<'a>(object: *mut PyObject) -> Option<&'a [u8]> {
    // SAFETY: as said above; such a string's bytes stand behind its head.
    unsafe {
        if ffi::PyUnicode_IS_COMPACT_ASCII(object) == 0 {
            return None;
        }
        let head = object.cast::<ffi::PyASCIIObject>();
        Some(std::slice::from_raw_parts(head.add(1).cast(), (*head).length as usize))
    }
}

/// Makes a str of ASCII bytes: a new reference, or null with an error set.
///
/// # Safety
///
/// Bytes that are ASCII, and an interpreter that is held.
#[inline]
pub unsafe fn new_ascii(bytes: &[u8]) -> *mut PyObject {
    // SAFETY: as said above; the characters of such a string stand behind its head, and nobody has seen it yet. CPython
    // shares strings of one character, and the one of none is not written to.
    unsafe {
        if bytes.len() == 1 {
            return ffi::PyUnicode_FromStringAndSize(bytes.as_ptr().cast(), 1);
        }
        let made = ffi::PyUnicode_New(bytes.len() as ffi::Py_ssize_t, 127);
        if !made.is_null() {
            let to = made.cast::<ffi::PyASCIIObject>().add(1).cast::<u8>();
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        made
    }
}

/// Returns the elements of a list.
///
/// # Safety
///
/// A live list, which is not changed as long as the iterator lives.
#[inline]
pub unsafe fn elements(list: *mut PyObject) -> impl ExactSizeIterator<Item = *mut PyObject> {
    // SAFETY: as said above; an empty list has no array.
    let elements = unsafe {
        match ffi::PyList_GET_SIZE(list) as usize {
            0 => &[],
            length => std::slice::from_raw_parts((*list.cast::<ffi::PyListObject>()).ob_item, length),
        }
    };
    elements.iter().copied()
}

/// Sets an element of a new list, and takes the reference over.
///
/// # Safety
///
/// A new list of more than `index` elements, and a reference that the caller owns.
#[inline]
pub unsafe fn set_element(list: *mut PyObject, index: usize, value: *mut PyObject) {
    // SAFETY: as said above.
    unsafe { ffi::PyList_SET_ITEM(list, index as ffi::Py_ssize_t, value) };
}

/// Returns how many members a dict has.
///
/// # Safety
///
/// A live dict.
#[inline]
pub unsafe fn size(dict: *mut PyObject) -> usize {
    // SAFETY: as said above.
    unsafe { (*dict.cast::<ffi::PyDictObject>()).ma_used as usize }
}

/// The head of a dict's table; behind it stand its indices, and then its entries.
#[repr(C)]
struct Keys {
    dk_refcnt: isize,
    dk_log2_size: u8,
    dk_log2_index_bytes: u8,
    dk_kind: u8,
    dk_version: u32,
    dk_usable: isize,
    dk_nentries: isize,
}

/// All keys are exact strings, and their hashes are not kept again.
const OF_STRINGS: u8 = 1;

#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    key: *mut PyObject,
    value: *mut PyObject,
}

/// Returns a dict's entries, deleted ones too, where its keys are strings and its table is its own.
///
/// # Safety
///
/// A live dict.
#[inline]
unsafe fn entries(dict: *mut PyObject) -> Option<(*mut Entry, usize)> {
    // SAFETY: as said above, and as CPython's headers say.
    unsafe {
        let dict = dict.cast::<ffi::PyDictObject>();
        let keys = (*dict).ma_keys.cast::<Keys>();
        if !(*dict).ma_values.is_null() || (*keys).dk_kind != OF_STRINGS {
            return None;
        }
        let first = keys.add(1).cast::<u8>().add(1 << (*keys).dk_log2_index_bytes).cast::<Entry>();
        Some((first, (*keys).dk_nentries as usize))
    }
}

/// Returns where the table of a dict is, where that is told.
///
/// # Safety
///
/// A live dict.
pub unsafe fn table(dict: *mut PyObject) -> *const u8 {
    // SAFETY: as said above.
    unsafe { (*dict.cast::<ffi::PyDictObject>()).ma_keys.cast() }
}

/// The members of a dict, in its order.
pub struct Members {
    next: *mut Entry,
    end: *mut Entry,
    /// What is asked by calls, where it does not lie open.
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
        // SAFETY: as said above.
        unsafe {
            match entries(dict) {
                Some((next, count)) => Members { next, end: next.add(count), dict: std::ptr::null_mut(), place: 0 },
                None => Members { next: std::ptr::null_mut(), end: std::ptr::null_mut(), dict, place: 0 },
            }
        }
    }

    #[cold]
    fn asked(&mut self) -> Option<(*mut PyObject, *mut PyObject)> {
        let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live dict, not changed meanwhile.
        let found = unsafe { ffi::PyDict_Next(self.dict, &mut self.place, &mut key, &mut value) };
        (found != 0).then_some((key, value))
    }
}

impl Iterator for Members {
    type Item = (*mut PyObject, *mut PyObject);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while self.next != self.end {
            // SAFETY: between the first entry and the last of a dict that is not changed meanwhile.
            let Entry { key, value } = unsafe { *self.next };
            // SAFETY: the same.
            self.next = unsafe { self.next.add(1) };
            if !value.is_null() {
                return Some((key, value));
            }
        }
        if self.dict.is_null() {
            return None;
        }
        self.asked()
    }
}

/// Sets the value of a dict's `index`-th member, which was None, where that is done without a call; then it takes the
/// reference over.
///
/// # Safety
///
/// A live dict, and a reference that the caller owns.
#[inline]
pub unsafe fn replace(dict: *mut PyObject, index: usize, value: *mut PyObject) -> bool {
    // SAFETY: as said above. The old value goes last, as it may run anything.
    unsafe {
        let Some((entries, count)) = entries(dict) else {
            return false;
        };
        if index >= count || (*entries.add(index)).value != ffi::Py_None() {
            return false;
        }
        let kind = ffi::Py_TYPE(value);
        // What cannot be part of a cycle, CPython leaves alone as long as it can.
        if (kind == &raw mut ffi::PyDict_Type || kind == &raw mut ffi::PyList_Type)
            && ffi::PyObject_GC_IsTracked(dict) == 0
        {
            ffi::PyObject_GC_Track(dict.cast());
        }
        (*entries.add(index)).value = value;
        ffi::Py_DECREF(ffi::Py_None());
        true
    }
}
