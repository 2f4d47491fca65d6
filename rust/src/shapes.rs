//! The keys of many objects, and in which order each has which.

use std::collections::hash_map::{Entry, HashMap};

use crate::memory::{copied, push, reserve, with_room};
use crate::py::{self, text_of, Value};
use crate::refusal::Refusal;

/// The keys of a node's objects, and in which order each object has which; both in the order of first appearance.
#[derive(Default)]
pub struct Shapes<'a, 'py> {
    pub keys: Vec<&'a str>,
    pub shapes: Vec<Vec<u32>>,
    pub of_row: Vec<u32>,
    /// The keys of the last row, which the next row most likely has too.
    last: Vec<Value<'a, 'py>>,
    by_text: HashMap<&'a str, u32>,
    by_keys: HashMap<Vec<u32>, u32>,
}

impl<'a, 'py> Shapes<'a, 'py> {
    /// Adds one object, and pushes its values.
    pub fn add(&mut self, object: Value<'a, 'py>, values: &mut Vec<Value<'a, 'py>>) -> Result<(), Refusal> {
        let size = py::size_of(object);
        let mut same = 0;
        let mut last = self.last.iter();
        reserve(values, size)?;
        for (key, value) in py::members(object) {
            values.push(value);
            same += usize::from(last.next().is_some_and(|last| last.as_ptr() == key.as_ptr()));
        }
        if same == self.last.len() && size == same {
            if let Some(&shape) = self.of_row.last() {
                return push(&mut self.of_row, shape);
            }
        }
        self.add_shape(object)
    }

    #[inline(never)]
    fn add_shape(&mut self, object: Value<'a, 'py>) -> Result<(), Refusal> {
        self.last.clear();
        reserve(&mut self.last, py::size_of(object))?;
        self.last.extend(py::members(object).map(|(key, _)| key));
        if self.shapes.is_empty() {
            reserve(&mut self.keys, self.last.len())?;
            for &key in &self.last {
                self.keys.push(text_of(key)?);
            }
            let mut shape = with_room(self.keys.len())?;
            shape.extend(0..self.keys.len() as u32);
            push(&mut self.shapes, shape)?;
            return push(&mut self.of_row, 0);
        }
        if self.by_keys.is_empty() {
            // Only now are they to be looked up.
            self.by_text.try_reserve(self.keys.len()).map_err(|_| Refusal::NoMemory)?;
            self.by_text.extend(self.keys.iter().copied().zip(0..));
            let first = copied(&self.shapes[0])?;
            self.by_keys.try_reserve(1).map_err(|_| Refusal::NoMemory)?;
            self.by_keys.insert(first, 0);
        }
        let mut shape = with_room(self.last.len())?;
        reserve(&mut self.keys, self.last.len())?;
        self.by_text.try_reserve(self.last.len()).map_err(|_| Refusal::NoMemory)?;
        self.by_keys.try_reserve(1).map_err(|_| Refusal::NoMemory)?;
        for &key in &self.last {
            let next = self.keys.len() as u32;
            shape.push(match self.by_text.entry(text_of(key)?) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    self.keys.push(new.key());
                    *new.insert(next)
                }
            });
        }
        let next = self.shapes.len() as u32;
        let shape = match self.by_keys.entry(shape) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                push(&mut self.shapes, copied(new.key())?)?;
                *new.insert(next)
            }
        };
        push(&mut self.of_row, shape)
    }
}
