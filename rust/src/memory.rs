//! Fallible allocation, for everything whose size depends on the input: where there is no memory, `Vec::push`, `clone`,
//! `Box::new` and `Arc::new` abort the process. Knows nothing of Python.

use std::alloc::{alloc, dealloc, Layout};
use std::hint::assert_unchecked;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{fence, AtomicUsize, Ordering};

use crate::refusal::Refusal;

#[cold]
fn exhausted() -> Refusal {
    Refusal::NoMemory
}

/// Reserves capacity for `more` elements: as many pushes do not allocate.
#[inline(always)]
pub fn reserve<T>(vector: &mut Vec<T>, more: usize) -> Result<(), Refusal> {
    if vector.capacity() - vector.len() < more {
        grow(vector, more)?;
    }
    // SAFETY: it had this capacity, or `grow` succeeded. The hint removes the capacity checks of the pushes that follow.
    unsafe { assert_unchecked(vector.capacity() - vector.len() >= more) };
    Ok(())
}

#[cold]
#[inline(never)]
fn grow<T>(vector: &mut Vec<T>, more: usize) -> Result<(), Refusal> {
    vector.try_reserve(more).map_err(|_| Refusal::NoMemory)
}

/// Returns an empty vector with capacity for `count` elements.
#[inline]
pub fn with_room<T>(count: usize) -> Result<Vec<T>, Refusal> {
    if count == 0 || size_of::<T>() == 0 {
        return Ok(Vec::new());
    }
    let layout = Layout::array::<T>(count).map_err(|_| exhausted())?;
    // SAFETY: the layout is that of a vector of this capacity, and not empty. `try_reserve_exact` on an empty vector does
    // the same, but made reading a document 2 % slower.
    unsafe {
        let first = NonNull::new(alloc(layout).cast::<T>()).ok_or_else(exhausted)?;
        Ok(Vec::from_raw_parts(first.as_ptr(), 0, count))
    }
}

#[inline(always)]
pub fn push<T>(vector: &mut Vec<T>, value: T) -> Result<(), Refusal> {
    reserve(vector, 1)?;
    vector.push(value);
    Ok(())
}

#[inline(always)]
pub fn extend<T: Copy>(vector: &mut Vec<T>, more: &[T]) -> Result<(), Refusal> {
    reserve(vector, more.len())?;
    vector.extend_from_slice(more);
    Ok(())
}

#[inline]
pub fn copied<T: Copy>(of: &[T]) -> Result<Vec<T>, Refusal> {
    let mut vector = with_room(of.len())?;
    vector.extend_from_slice(of);
    Ok(vector)
}

/// Returns a vector of `count` times the same value.
#[inline]
pub fn filled<T: Copy>(value: T, count: usize) -> Result<Vec<T>, Refusal> {
    let mut vector = with_room(count)?;
    vector.resize(count, value);
    Ok(vector)
}

/// Reference-counted value: an `Arc` without weak references, with a fallible constructor.
pub struct Shared<T>(NonNull<Counted<T>>);

struct Counted<T> {
    owners: AtomicUsize,
    value: T,
}

// SAFETY: as for `Arc`: owners on several threads share the value, and any of them may drop it.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: the same.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub fn new(value: T) -> Result<Self, Refusal> {
        let layout = Layout::new::<Counted<T>>();
        // SAFETY: the layout is not empty, as it has a counter; it is written before anything reads it.
        unsafe {
            let counted = NonNull::new(alloc(layout).cast::<Counted<T>>()).ok_or_else(exhausted)?;
            counted.write(Counted { owners: AtomicUsize::new(1), value });
            Ok(Shared(counted))
        }
    }

    /// Returns the address, to be prefetched and never to be followed.
    pub fn address(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }
}

impl<T> Clone for Shared<T> {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: this owner keeps it alive. There are never as many owners as overflow the counter.
        unsafe { self.0.as_ref() }.owners.fetch_add(1, Ordering::Relaxed);
        Shared(self.0)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this owner keeps it alive.
        &unsafe { self.0.as_ref() }.value
    }
}

impl<T> Drop for Shared<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: only the last owner gets here; the fence orders the other owners' accesses before the drop.
        unsafe {
            if self.0.as_ref().owners.fetch_sub(1, Ordering::Release) == 1 {
                fence(Ordering::Acquire);
                self.0.drop_in_place();
                dealloc(self.0.as_ptr().cast(), Layout::new::<Counted<T>>());
            }
        }
    }
}
