//! The keys of many objects, and in which order each has which.

use std::collections::hash_map::{Entry, HashMap};

use crate::py::{self, Value};
use crate::refusal::Refusal;
use crate::writer::text_of;

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
        values.reserve(size);
        for (key, value) in py::members(object) {
            values.push(value);
            same += usize::from(last.next().is_some_and(|last| last.as_ptr() == key.as_ptr()));
        }
        if same == self.last.len() && size == same {
            if let Some(&shape) = self.of_row.last() {
                self.of_row.push(shape);
                return Ok(());
            }
        }
        self.add_shape(object)
    }

    #[inline(never)]
    fn add_shape(&mut self, object: Value<'a, 'py>) -> Result<(), Refusal> {
        self.last.clear();
        self.last.extend(py::members(object).map(|(key, _)| key));
        if self.shapes.is_empty() {
            for &key in &self.last {
                self.keys.push(text_of(key)?);
            }
            self.shapes.push((0..self.keys.len() as u32).collect());
            self.of_row.push(0);
            return Ok(());
        }
        if self.by_keys.is_empty() {
            // Only now are they to be looked up.
            self.by_text.extend(self.keys.iter().copied().zip(0..));
            self.by_keys.insert(self.shapes[0].clone(), 0);
        }
        let mut shape = Vec::with_capacity(self.last.len());
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
        self.of_row.push(match self.by_keys.entry(shape) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.shapes.push(new.key().clone());
                *new.insert(next)
            }
        });
        Ok(())
    }
}
