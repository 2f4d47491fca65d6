//! Keys and layouts of objects that were read before: a faster way to the same result, never another one.
//!
//! A layout is found again by all of its bytes. Both tables have a fixed number of places, and a newcomer takes the place
//! of what stood there, or, where there are many long ones, of all: so nobody can fill the memory, or make a search long.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::memory::{copied, filled, with_room, Shared};
use crate::py;
use crate::refusal::{malformed, Refusal};
use crate::wire::Cursor;

const LAYOUTS: usize = 4096;
const LONGEST_LAYOUT: usize = 1024;
/// How many bytes of layouts are remembered; their templates take fifty times as much at worst.
const MOST_BYTES: usize = 512 << 10;
const KEYS: usize = 4096;
const LONGEST_KEY: usize = 64;

/// The keys and shapes of a node's objects.
pub struct Layout {
    /// Where there is one shape, it has all keys in their order, and this is its template; so little is looked at then.
    pub only: Option<Py<PyDict>>,
    pub keys: Vec<Py<PyString>>,
    /// All shapes, where there are several.
    pub shapes: Vec<Shape>,
}

/// A layout with its bytes, and the place of the one that came after it: documents are like those before them.
struct Known {
    bytes: Box<[u8]>,
    layout: Shared<Layout>,
    next: usize,
    /// Where the template of an only shape is, and its table: addresses to be fetched, never to be followed.
    far: [usize; 2],
}

impl Known {
    /// Fetches what is looked at when the layout is used: at once, not one by one as each leads to the next.
    #[inline]
    fn soon(&self) {
        const LINE_BYTES: usize = 64;
        py::soon(self.bytes.as_ptr());
        py::soon(self.layout.address());
        let [template, table] = self.far;
        for address in [template, table, table + LINE_BYTES] {
            py::soon(address as *const u8);
        }
    }
}

type Key = (Box<[u8]>, Py<PyString>);

/// The keys that some of a node's objects have, in their order.
pub struct Shape {
    pub keys: Vec<u32>,
    /// An object with these keys, whose copies have room for their values from the beginning.
    pub template: Py<PyDict>,
}

pub struct Cache {
    layouts: Vec<Option<Known>>,
    /// The place of the layout that was read last.
    last: usize,
    bytes: usize,
    keys: Vec<Option<Key>>,
}

impl Cache {
    pub fn new() -> Result<Self, Refusal> {
        let mut layouts = with_room(LAYOUTS)?;
        layouts.resize_with(LAYOUTS, || None);
        let mut keys = with_room(KEYS)?;
        keys.resize_with(KEYS, || None);
        Ok(Cache { layouts, last: 0, bytes: 0, keys })
    }

    /// Takes the layout of objects from the schema.
    pub fn layout(&mut self, py: Python<'_>, schema: &mut Cursor<'_>) -> Result<Shared<Layout>, Refusal> {
        let start = schema.rest();
        let next = self.layouts[self.last].as_ref().map_or(0, |known| known.next);
        if let Some(known) = &self.layouts[next] {
            known.soon();
            // A layout tells where it ends, so that no other one begins with its bytes.
            if start.starts_with(&known.bytes) {
                schema.bytes(known.bytes.len())?;
                self.last = next;
                if let Some(following) = &self.layouts[known.next] {
                    following.soon();
                    py::soon(&self.layouts[following.next]);
                }
                return Ok(known.layout.clone());
            }
        }
        self.search(py, schema)
    }

    #[inline(never)]
    fn search(&mut self, py: Python<'_>, schema: &mut Cursor<'_>) -> Result<Shared<Layout>, Refusal> {
        let start = schema.rest();
        let (shape_count, key_count) = skip_layout(schema)?;
        let bytes = &start[..start.len() - schema.left()];
        let place = hash(bytes) as usize % LAYOUTS;
        if let Some(known) = &self.layouts[place] {
            known.soon();
            py::soon(&self.layouts[known.next]);
        }
        if let Some(before) = &mut self.layouts[self.last] {
            before.next = place;
        }
        if let Some(known) = &self.layouts[place] {
            if *known.bytes == *bytes {
                self.last = place;
                return Ok(known.layout.clone());
            }
        }
        let layout = Shared::new(self.read_layout(py, bytes, shape_count, key_count)?)?;
        if bytes.len() <= LONGEST_LAYOUT {
            if self.bytes + bytes.len() > MOST_BYTES {
                self.layouts.fill_with(|| None);
                self.bytes = 0;
            }
            let far = layout.only.as_ref().map_or([0; 2], py::addresses);
            let new = Known { bytes: boxed(bytes)?, layout: layout.clone(), next: place, far };
            self.bytes += bytes.len();
            if let Some(old) = self.layouts[place].replace(new) {
                self.bytes -= old.bytes.len();
            }
            self.last = place;
        }
        Ok(layout)
    }

    /// Reads a layout that `skip_layout` has passed over.
    #[inline(never)]
    fn read_layout(
        &mut self,
        py: Python<'_>,
        bytes: &[u8],
        shape_count: usize,
        key_count: usize,
    ) -> Result<Layout, Refusal> {
        let mut cursor = Cursor::new(bytes);
        cursor.varint()?;
        cursor.varint()?;
        let mut keys = with_room(key_count)?;
        let all = py::new_dict(py)?;
        let null = py::new_null(py);
        for _ in 0..key_count {
            let length = cursor.varint()? as usize;
            let key = self.key(py, cursor.bytes(length)?)?;
            py::set_member(&all, &key, &null)?;
            keys.push(key);
        }
        if all.len() < key_count {
            return malformed(&c"a key that comes twice");
        }
        if shape_count == 1 {
            return Ok(Layout { only: Some(all.unbind()), keys, shapes: Vec::new() });
        }
        let mut shapes = with_room(shape_count)?;
        let mut known = std::collections::HashSet::new();
        known.try_reserve(shape_count).map_err(|_| Refusal::NoMemory)?;
        let mut last_shape_with = filled(0usize, key_count)?;
        let mut seen = 0;
        for number in 1..=shape_count {
            let count = cursor.varint()? as usize;
            let mut shape = with_room(count)?;
            let template = py::new_dict(py)?;
            let mut following = 0;
            for _ in 0..count {
                let key = match cursor.varint()? {
                    0 => following,
                    index if index - 1 == following => return malformed(&c"a key named where 0 would do"),
                    index => index - 1,
                };
                if key > seen {
                    return malformed(&c"a key before its turn");
                }
                seen += u64::from(key == seen);
                match last_shape_with.get_mut(usize::try_from(key).unwrap_or(usize::MAX)) {
                    Some(last) if *last == number => return malformed(&c"a key that a shape has twice"),
                    Some(last) => *last = number,
                    None => return malformed(&c"a key that is not there"),
                }
                py::set_member(&template, &keys[key as usize], &null)?;
                shape.push(key as u32);
                following = key + 1;
            }
            if !known.insert(copied(&shape)?) {
                return malformed(&c"a shape that comes twice");
            }
            shapes.push(Shape { keys: shape, template: template.unbind() });
        }
        if seen < key_count as u64 {
            return malformed(&c"a key that no shape has");
        }
        Ok(Layout { only: None, keys, shapes })
    }

    fn key(&mut self, py: Python<'_>, bytes: &[u8]) -> Result<Py<PyString>, Refusal> {
        let place = hash(bytes) as usize % KEYS;
        if let Some((known, key)) = &self.keys[place] {
            if **known == *bytes {
                return Ok(key.clone_ref(py));
            }
        }
        let key = py::new_key(py, bytes)?;
        if bytes.len() <= LONGEST_KEY {
            self.keys[place] = Some((boxed(bytes)?, key.clone_ref(py)));
        }
        Ok(key)
    }
}

fn boxed(bytes: &[u8]) -> Result<Box<[u8]>, Refusal> {
    // A vector without spare capacity becomes a box without another allocation.
    Ok(copied(bytes)?.into_boxed_slice())
}

/// Passes over the layout of objects, without a look at what it says; returns how many shapes and keys it has.
#[inline]
fn skip_layout(schema: &mut Cursor<'_>) -> Result<(usize, usize), Refusal> {
    let shapes = schema.count(schema.left())?;
    let keys = schema.count(schema.left())?;
    if shapes == 0 || (keys == 0 && shapes > 1) {
        return malformed(&c"an impossible number of shapes");
    }
    for _ in 0..keys {
        let length = schema.count(schema.left())?;
        schema.bytes(length)?;
    }
    // An only shape has all keys, in their order, and is not written.
    let listed = if shapes > 1 { shapes } else { 0 };
    for _ in 0..listed {
        for _ in 0..schema.count(keys)? {
            schema.varint()?;
        }
    }
    Ok((shapes, keys))
}

/// A hash of eight bytes at a time. It need not withstand anybody: a collision only costs the place in a table.
#[inline]
fn hash(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut hash = bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        hash = (hash.rotate_left(23) ^ u64::from_le_bytes(eight)).wrapping_mul(FACTOR);
    }
    for &byte in chunks.remainder() {
        hash = (hash.rotate_left(23) ^ u64::from(byte)).wrapping_mul(FACTOR);
    }
    hash ^ (hash >> 32)
}
